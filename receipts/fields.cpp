// The table and its checker. A value that a field cannot have is named with the field's whole path.
#include "receipts/fields.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <vector>

#include "receipts/display.h"
#include "receipts/status.h"

namespace bolt::receipts {
namespace {

using T = FieldType;
constexpr std::string_view kAll = "RSCBPA";

// clang-format off
constexpr Field kFields[] = {
  {"_type", T::choice, 'T', kAll, "", "bolt.receipt/1", "version, and the domain of the rid"},
  {"kind", T::choice, 'T', kAll, "", "run|session|conversion|bench|plan|audit", "no receipt of one kind passes for another"},
  {"run_id", T::id128, 'I', kAll, "", "", "random, unique"},
  {"challenge", T::hex_bytes, 'I', "", kAll, "", "an auditor's nonce: the receipt is younger than it"},

  {"build", T::object, 'P', kAll, "", "", "the program that ran"},
  {"build.exe", T::sha256, 'P', kAll, "", "", "SHA-256 of the executable, read through its own open file"},
  {"build.modules", T::list, 'P', "", kAll, "", "shared objects mapped into it; none in a static binary"},
  {"build.modules[]", T::object, 'P', kAll, "", "", "one shared object"},
  {"build.modules[].name", T::text, 'P', kAll, "", "", "its file name"},
  {"build.modules[].sha256", T::sha256, 'P', "", kAll, "", "of the mapped file"},
  {"build.modules[].build_id", T::hex_bytes, 'P', "", kAll, "", "its GNU build id"},
  {"build.commit", T::hex_bytes, 'P', "", kAll, "", "git commit it was compiled from"},
  {"build.tree", T::hex_bytes, 'P', "", kAll, "", "that commit's tree"},
  {"build.diff", T::sha256, 'P', "", kAll, "", "digest of uncommitted changes"},
  {"build.published", T::hex_bytes, 'I', "", kAll, "", "commit under which the source was published, if another"},
  {"build.toolchain", T::text, 'I', "", kAll, "", "compilers and libraries"},
  {"build.flags", T::text, 'I', "", kAll, "", "compiler flags beyond the project's own"},
  {"build.cubins", T::list, 'P', "", kAll, "", "device code in the binary"},
  {"build.cubins[]", T::object, 'P', kAll, "", "", "code for one architecture"},
  {"build.cubins[].arch", T::text, 'P', kAll, "", "", "sm_90"},
  {"build.cubins[].sha256", T::sha256, 'P', kAll, "", "", "of the code"},
  {"build.jit", T::boolean, 'I', "RSB", "C", "", "device code was compiled by the driver"},
  {"build.rebuilds", T::integer, 'I', "", kAll, "", "independent builds that gave the same bytes"},

  {"package", T::object, 'P', "RSC", "B", "", "the model"},
  {"package.files", T::list, 'P', "rSC", "RB", "", "every file of the package"},
  {"package.files[]", T::object, 'P', kAll, "", "", "one file"},
  {"package.files[].path", T::file_name, 'P', kAll, "", "", "relative to the package folder"},
  {"package.files[].role", T::choice, 'P', kAll, "", "manifest|graph|config|tokenizer|draft_vocab|payload|drafter", "what it is for"},
  {"package.files[].bytes", T::integer, 'P', kAll, "", "", "its size"},
  {"package.files[].sha256", T::sha256, 'P', kAll, "", "", "of its bytes"},
  {"package.files[].how", T::choice, 'P', kAll, "", "stream|verity|cached|carried", "how the hash is known: from the bytes used, from fs-verity, from the hash cache, from the source package"},
  {"package.files[].links", T::integer, 'P', kAll, "", "", "hard links to it: others may write it under other names"},
  {"package.sha256", T::sha256, 'P', "RSC", "B", "", "D(\"pkg\"): paths, roles, sizes and hashes, sorted by path"},
  {"package.vocab", T::sha256, 'T', "RS", "CB", "", "D(\"vocab\"): the bytes of every id, and which are special"},
  {"package.source", T::text, 'I', "", "RSCB", "", "declared origin"},

  {"arith", T::object, 'A', "RS", "CB", "", "the arithmetic contract"},
  {"arith.id", T::text, 'A', "RSCB", "", "", "bolt-exact/1"},
  {"arith.sha256", T::sha256, 'A', "RSCB", "", "", "of the contract's test vectors"},
  {"arith.kv", T::choice, 'A', "RS", "B", "i16|f32", "the contract's KV variant"},
  {"arith.scope", T::choice, 'A', "RS", "B", "any|arch|sm_count", "where equality is promised"},
  {"arith.width_invariant", T::boolean, 'A', "RS", "B", "", "a row's bits do not depend on the rows beside it"},

  {"device", T::object, 'I', "rSB", "RC", "", "the machine; compared where arith.scope is not any"},
  {"device.kind", T::choice, 'I', "RSCB", "", "cpu|cuda", "kind of device"},
  {"device.arch", T::text, 'I', "RSCB", "", "", "instruction set or compute capability used"},
  {"device.sms", T::integer, 'I', "", "RSCB", "", "multiprocessors"},
  {"device.ranks", T::integer, 'I', "RSCB", "", "", "ranks that share the model"},
  {"device.threads", T::integer, 'I', "RSCB", "", "", "host threads"},
  {"device.name", T::text, 'I', "", "RSCB", "", "as the device calls itself"},
  {"device.driver", T::text, 'I', "", "RSCB", "", "driver version"},
  {"device.runtime", T::text, 'I', "", "RSCB", "", "runtime version"},
  {"device.uuid_tag", T::hex_bytes, 'I', "", "RSCB", "", "keyed tag of the device's id"},
  {"env", T::list, 'I', "", kAll, "", "variables that can change device code or inject code"},
  {"env[]", T::object, 'I', kAll, "", "", "one variable"},
  {"env[].name", T::text, 'I', kAll, "", "", "its name; LD_PRELOAD, LD_AUDIT, CUDA_INJECTION64_PATH drop the promise"},
  {"env[].value", T::text, 'I', "", kAll, "", "in clear for a fixed few"},
  {"env[].sha256", T::sha256, 'I', "", kAll, "", "else D(\"env\") of the value"},
  {"admission", T::object, 'I', "", kAll, "", "whether the machine was shared"},
  {"admission.exclusive", T::boolean, 'I', kAll, "", "", "nobody else computed"},
  {"admission.others", T::integer, 'I', kAll, "", "", "other processes seen on the device"},
  {"admission.lock", T::boolean, 'I', kAll, "", "", "a lock kept them away"},

  {"redaction", T::object, 'T', "RSP", "", "", "how prompt and reply are bound"},
  {"redaction.mode", T::choice, 'T', "RSP", "", "plain|keyed|salted", "who can check the digests"},
  {"redaction.key_id", T::sha256, 'T', "", "RSP", "", "D(\"key\") of key or salt"},
  {"redaction.dropped", T::boolean, 'I', "", "RSP", "", "fields of columns I and C were left out"},

  {"task", T::object, 'T', "R", "", "", "what was asked"},
  {"task.prompt_ids", T::sha256, 'T', "R", "", "", "D(\"ids\") of the prompt"},
  {"task.prompt_n", T::integer, 'T', "R", "", "", "ids in the prompt"},
  {"task.text", T::sha256, 'I', "", "R", "", "D(\"text\") of the text that was tokenised"},
  {"task.template", T::sha256, 'I', "", "R", "", "of the chat template"},
  {"task.sampling", T::object, 'T', "R", "", "", "complete, defaults resolved"},
  {"task.sampling.kind", T::choice, 'T', "R", "", "greedy|sample", "greedy has no parameters"},
  {"task.sampling.temperature", T::f32, 'T', "", "R", "", "of kind sample, as all below"},
  {"task.sampling.top_k", T::integer, 'T', "", "R", "", "0: off"},
  {"task.sampling.top_p", T::f32, 'T', "", "R", "", "1: off"},
  {"task.sampling.min_p", T::f32, 'T', "", "R", "", "0: off"},
  {"task.sampling.rng", T::text, 'T', "", "R", "", "philox4x32-10"},
  {"task.sampling.seed", T::u64, 'T', "", "R", "", "given or drawn"},
  {"task.stop_ids", T::list, 'T', "", "R", "", "ids that end the reply"},
  {"task.stop_ids[]", T::integer, 'T', "R", "", "", "one id"},
  {"task.stop_texts", T::list, 'T', "", "R", "", "texts that end the reply"},
  {"task.stop_texts[]", T::sha256, 'T', "R", "", "", "D(\"stop\") of one text"},
  {"task.ignore_eos", T::boolean, 'T', "R", "", "", "stop ids are ignored"},
  {"task.sha256", T::sha256, 'T', "R", "", "", "D(\"task\") of the canonical JSON of all T inputs but _type and limits: seed of the chain"},
  {"request", T::object, 'I', "", "R", "", "the batch line this run answers"},
  {"request.input", T::sha256, 'I', "R", "", "", "D(\"line\") of the line"},
  {"request.line", T::integer, 'I', "R", "", "", "its number"},
  {"request.id", T::sha256, 'I', "", "R", "", "D(\"id\") of its own id"},
  {"limits", T::object, 'T', "R", "", "", "a shorter limit allows a comparison of the common prefix"},
  {"limits.max_new", T::integer, 'T', "", "R", "", "most ids of the reply; absent: no limit"},
  {"limits.context", T::integer, 'T', "R", "", "", "most ids of prompt and reply"},

  {"mode", T::object, 'X', "R", "SB", "", "how tokens were found, never which"},
  {"mode.kind", T::choice, 'X', "RSB", "", "ordinary|speculative", "with drafts or without"},
  {"mode.depth", T::integer, 'X', "RSB", "", "", "most drafts a round"},
  {"mode.adaptive", T::boolean, 'X', "RSB", "", "", "the depth rule chose how many"},
  {"mode.source", T::choice, 'X', "RSB", "", "off|mtp|copy|auto|dspark|dflash|scripted|scripted-mtp|scripted-copy|scripted-dspark|scripted-dflash", "where drafts came from"},
  {"mode.geometry", T::text, 'X', "RSB", "", "", "dynamic, fixed:R or hybrid:R rows"},
  {"mode.costs", T::sha256, 'X', "", "RSB", "", "the cost table of the depth rule"},
  {"sched", T::object, 'X', "R", "SB", "", "what ran beside"},
  {"sched.slots", T::integer, 'X', "RSB", "", "", "sequences that could be open"},
  {"sched.peers", T::integer, 'X', "RSB", "", "", "most sequences that shared a pass"},
  {"sched.cache", T::choice, 'X', "RSB", "", "cold|resumed", "whether state was reused"},
  {"sched.cached_n", T::integer, 'X', "RSB", "", "", "leading prompt ids whose state was there"},

  {"out", T::object, 'O', "R", "", "", "what was answered"},
  {"out.n", T::integer, 'O', "R", "", "", "ids in the reply"},
  {"out.ids", T::sha256, 'O', "R", "", "", "D(\"ids\") of the reply"},
  {"out.chain", T::object, 'O', "R", "", "", "marks that locate a difference"},
  {"out.chain.stride", T::integer, 'O', "R", "", "", "tokens from mark to mark"},
  {"out.chain.marks", T::list, 'O', "", "R", "", "chain values, every stride and at the end"},
  {"out.chain.marks[]", T::sha256, 'O', "R", "", "", "one value"},
  {"out.text", T::sha256, 'O', "", "R", "", "D(\"text\") of the reply's text"},
  {"out.key", T::sha256, 'O', "R", "", "", "D(\"out\") of task.sha256, n, out.ids and stop: the one digest to paste"},
  {"out.state", T::object, 'O', "", "R", "", "the committed state"},
  {"out.state.sha256", T::sha256, 'O', "R", "", "", "D(\"state\") of its digests in layer order"},
  {"out.state.boundary", T::text, 'O', "R", "", "", "where it was taken"},
  {"out.logits", T::sha256, 'O', "", "R", "", "D(\"logits\") of the SHA-256 of each position's f32 logits"},
  {"out.nonfinite", T::integer, 'O', "R", "", "", "rows with NaN or infinity; above 0 bars equality"},
  {"out.margin", T::object, 'I', "", "R", "", "the nearest tie"},
  {"out.margin.value", T::f32, 'I', "R", "", "", "gap between the first two logits"},
  {"out.margin.at", T::integer, 'I', "R", "", "", "token, from 1"},
  {"stop", T::object, 'O', "R", "", "", "why it ended"},
  {"stop.kind", T::choice, 'O', "R", "", "eos|limit|context|stop_text|interrupted|cancelled|error", "never left out"},
  {"stop.id", T::integer, 'O', "", "R", "", "of eos: the id"},
  {"stop.at", T::integer, 'O', "", "R", "", "of error: absolute position of the logits that were not finite"},
  {"count", T::object, 'C', "R", "", "", "exact counters"},
  {"count.target", T::integer, 'C', "R", "", "", "passes after the prompt that held this sequence's rows"},
  {"count.segments", T::integer, 'C', "R", "", "", "0 under bolt-exact"},
  {"count.rounds", T::integer, 'C', "R", "", "", "draft, verify, accept"},
  {"count.prompt_passes", T::integer, 'C', "R", "", "", "passes of the prompt"},
  {"count.drafted", T::integer, 'C', "R", "", "", "tokens proposed"},
  {"count.accepted_at", T::list, 'C', "", "R", "", "tokens accepted, by depth"},
  {"count.accepted_at[]", T::integer, 'C', "R", "", "", "at one depth"},
  {"count.bonus", T::integer, 'C', "R", "", "", "tokens of the target's own sample at a round's end"},
  {"count.cut", T::integer, 'C', "R", "", "", "sampled tokens dropped at a stop or limit"},
  {"count.head_levels", T::integer, 'C', "R", "", "", "levels the draft head ran"},
  {"count.block_passes", T::integer, 'C', "", "R", "", "passes of separate drafters"},
  {"count.copy", T::object, 'C', "R", "", "", "drafts copied from the context (part of the above)"},
  {"count.copy.rounds", T::integer, 'C', "R", "", "", "rounds with copied drafts"},
  {"count.copy.drafted", T::integer, 'C', "R", "", "", "tokens copied"},
  {"count.copy.accepted", T::integer, 'C', "R", "", "", "of them accepted"},
  {"count.state_copies", T::integer, 'C', "", "R", "", "snapshots and merges"},
  {"count.bytes", T::integer, 'C', "", "R", "", "bytes they moved"},

  {"session", T::object, 'O', "S", "", "", "one serve-stdin process"},
  {"session.phase", T::choice, 'O', "S", "", "open|closed", "sealed when it opens and again when it closes"},
  {"session.lines", T::integer, 'O', "", "S", "", "lines read"},
  {"session.answered", T::integer, 'O', "", "S", "", "runs sealed"},
  {"session.failed", T::integer, 'O', "", "S", "", "lines that got an error"},
  {"session.failed_lines", T::list, 'O', "", "S", "", "their numbers, at most 65536"},
  {"session.failed_lines[]", T::integer, 'O', "S", "", "", "one of them"},
  {"session.root", T::sha256, 'O', "", "S", "", "RFC 6962 root over its runs' rids in line order"},

  {"conversion", T::object, 'O', "C", "", "", "how a package was made"},
  {"conversion.source_name", T::text, 'I', "C", "", "", "the source folder's name"},
  {"conversion.source_files", T::list, 'P', "C", "", "", "every file that was read"},
  {"conversion.source_files[]", T::object, 'P', "C", "", "", "one file"},
  {"conversion.source_files[].path", T::file_name, 'P', "C", "", "", "relative to the source folder"},
  {"conversion.source_files[].bytes", T::integer, 'P', "C", "", "", "its size"},
  {"conversion.source_files[].sha256", T::sha256, 'P', "C", "", "", "of its bytes"},
  {"conversion.quant", T::choice, 'P', "C", "", "none|q8|nvfp4", "what was requantised to"},
  {"conversion.keep", T::list, 'P', "", "C", "", "patterns of tensors that were not"},
  {"conversion.keep[]", T::text, 'P', "C", "", "", "one pattern"},
  {"conversion.geometry", T::text, 'P', "C", "", "", "dynamic, fixed:R or hybrid:R"},
  {"conversion.without_mtp", T::boolean, 'P', "C", "", "", "the draft head was left out"},
  {"conversion.verified", T::boolean, 'O', "C", "", "", "each value was decoded from both sides and compared"},
  {"conversion.tensors", T::integer, 'O', "C", "", "", "tensors packed"},
  {"conversion.values_compared", T::integer, 'O', "C", "", "", "values found equal"},
  {"conversion.values_requantised", T::integer, 'O', "C", "", "", "values that quantising changed on purpose"},
  {"conversion.draft_vocab", T::sha256, 'P', "", "C", "", "the draft vocabulary's file"},

  {"bench", T::object, 'O', "B", "", "", "a table of timed runs"},
  {"bench.passes", T::integer, 'I', "B", "", "", "times each cell ran"},
  {"bench.null", T::boolean, 'I', "B", "", "", "a build against itself"},
  {"bench.rows", T::list, 'O', "B", "", "", "one line of the table each"},
  {"bench.rows[]", T::object, 'O', "B", "", "", "one line"},
  {"bench.rows[].name", T::text, 'I', "B", "", "", "what was run"},
  {"bench.rows[].runs", T::integer, 'I', "B", "", "", "timed runs"},
  {"bench.rows[].tokens", T::integer, 'O', "B", "", "", "tokens of one run"},
  {"bench.rows[].equal", T::boolean, 'O', "B", "", "", "all runs gave the same tokens"},
  {"bench.rows[].median_ns", T::integer, 'I', "B", "", "", "of the runs' times"},
  {"bench.rows[].low_ns", T::integer, 'I', "B", "", "", "fastest"},
  {"bench.rows[].high_ns", T::integer, 'I', "B", "", "", "slowest"},

  {"plan", T::object, 'T', "P", "", "", "what will be run, sealed before any run"},
  {"plan.builds", T::list, 'T', "P", "", "", "the programs"},
  {"plan.builds[]", T::object, 'T', "P", "", "", "one program"},
  {"plan.builds[].name", T::text, 'I', "P", "", "", "its name in the matrix"},
  {"plan.builds[].exe", T::sha256, 'T', "P", "", "", "its executable"},
  {"plan.packages", T::list, 'T', "P", "", "", "the packages, by package.sha256"},
  {"plan.packages[]", T::sha256, 'T', "P", "", "", "one package"},
  {"plan.modes", T::list, 'T', "P", "", "", "ordinary, k1 to k31, auto, copy, mtp, dspark, dflash"},
  {"plan.modes[]", T::text, 'T', "P", "", "", "one mode"},
  {"plan.prompts", T::list, 'T', "P", "", "", "the tasks"},
  {"plan.prompts[]", T::object, 'T', "P", "", "", "one task"},
  {"plan.prompts[].name", T::text, 'I', "P", "", "", "its name in the matrix"},
  {"plan.prompts[].line", T::sha256, 'T', "", "P", "", "D(\"line\") of its line"},
  {"plan.prompts[].prompt_ids", T::sha256, 'T', "", "P", "", "D(\"ids\") of its prompt"},
  {"plan.passes", T::list, 'T', "P", "", "", "the order of each pass"},
  {"plan.passes[]", T::choice, 'T', "P", "", "forward|reversed", "one pass"},
  {"plan.max_new", T::integer, 'T', "", "P", "", "limit of each reply"},

  {"audit", T::object, 'O', "A", "", "", "what an audit found"},
  {"audit.plan", T::sha256, 'O', "A", "", "", "the plan's rid"},
  {"audit.planned", T::integer, 'O', "A", "", "", "cells of the plan"},
  {"audit.found", T::integer, 'O', "A", "", "", "cells with exactly one intact run"},
  {"audit.missing", T::integer, 'O', "A", "", "", "cells without a run"},
  {"audit.extra", T::integer, 'O', "A", "", "", "runs beyond the plan, duplicates included"},
  {"audit.broken", T::integer, 'O', "A", "", "", "files that are no intact receipt"},
  {"audit.differing", T::integer, 'O', "A", "", "", "runs whose tokens differ from their task's first"},
  {"audit.order", T::boolean, 'O', "A", "", "", "each pass ran in its order"},
  {"audit.root", T::sha256, 'O', "A", "", "", "RFC 6962 root over the rids in plan order"},

  {"time", T::object, 'I', kAll, "", "", "never in equality"},
  {"time.utc", T::utc, 'I', kAll, "", "", "when it was sealed"},
  {"time.sealed_us", T::integer, 'I', "", kAll, "", "the same in microseconds since 1970"},
  {"time.load_ns", T::integer, 'I', "", kAll, "", "until the model was ready"},
  {"time.prefill_ns", T::integer, 'I', "", kAll, "", "the prompt's passes"},
  {"time.first_token_ns", T::integer, 'I', "", kAll, "", "from the request to the first token"},
  {"time.decode_ns", T::integer, 'I', "", kAll, "", "from the first token to the last"},
  {"time.total_ns", T::integer, 'I', "", kAll, "", "from start to seal"},
  {"series", T::object, 'I', "", "RB", "", "the planned cell it answers"},
  {"series.plan", T::sha256, 'I', "RB", "", "", "the plan's rid"},
  {"series.cell", T::integer, 'I', "RB", "", "", "the cell's number"},
  {"series.pass", T::integer, 'I', "RB", "", "", "the cell's pass"},
  {"series.index", T::integer, 'I', "RB", "", "", "position in the order that was run"},
  {"series.order", T::choice, 'I', "RB", "", "forward|reversed", "the pass's order"},
  {"parents", T::list, 'P', "", kAll, "", "receipts this one builds on"},
  {"parents[]", T::object, 'P', kAll, "", "", "one receipt"},
  {"parents[].role", T::choice, 'P', kAll, "", "conversion|session|bench|control|plan|run", "what it is to this one"},
  {"parents[].rid", T::sha256, 'P', kAll, "", "", "its rid"},
  {"limits_stated", T::list, 'I', "", kAll, "", "what is not claimed"},
  {"limits_stated[]", T::text, 'I', kAll, "", "", "one sentence"},
  {"not_run", T::list, 'I', "", kAll, "", "what was left out"},
  {"not_run[]", T::text, 'I', kAll, "", "", "one sentence"},
};
// clang-format on

bool has(std::string_view kinds, char kind) { return kinds.find(kind) != std::string_view::npos; }

struct Node {
  const Field* field = nullptr;
  std::map<std::string_view, Node, std::less<>> children;
  std::unique_ptr<Node> item;  // of a list
};

// The table as a tree, made once.
const Node& field_tree() {
  static const Node kTree = [] {
    Node root;
    for (const Field& field : kFields) {
      Node* at = &root;
      std::string_view rest = field.path;
      while (!rest.empty()) {
        const std::size_t dot = rest.find('.');
        std::string_view step = rest.substr(0, dot);
        rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
        const bool is_item = step.ends_with("[]");
        if (is_item) step.remove_suffix(2);
        at = &at->children[step];
        if (is_item) {
          if (!at->item) at->item = std::make_unique<Node>();
          at = at->item.get();
        }
      }
      at->field = &field;
    }
    return root;
  }();
  return kTree;
}

bool is_hex(std::string_view s) {
  return s.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_utc(std::string_view s) {
  constexpr std::string_view kPattern = "dddd-dd-ddTdd:dd:ddZ";
  if (s.size() != kPattern.size()) return false;
  for (std::size_t i = 0; i < s.size(); ++i) {
    const bool digit = s[i] >= '0' && s[i] <= '9';
    if (kPattern[i] == 'd' ? !digit : s[i] != kPattern[i]) return false;
  }
  return true;
}

bool is_choice(std::string_view choices, std::string_view value) {
  while (true) {
    const std::size_t bar = choices.find('|');
    if (choices.substr(0, bar) == value) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

class Checker {
 public:
  Checker(const Value& body, const std::string& what) : body_(body), what_(what) {}

  void run() {
    const Value* type = body_.is_object() ? body_.find("_type") : nullptr;
    if (type == nullptr || !type->is_string()) fail("_type", "is missing");
    if (type->as_string() != kBodyType) {
      fail("_type", fmt::format("is {}, expected {}", quoted(type->as_string()), kBodyType));
    }
    const std::string kind = body_.string_at("kind");
    kind_ = kind_letter(kind);
    if (kind_ == '\0') fail("kind", fmt::format("{} is none of those known", quoted(kind)));
    const Value* parents = body_.find("parents");
    if (parents != nullptr && !parents->is_array()) fail("parents", "is no list");
    pack_ = in_pack(body_);
    dropped_ = body_.bool_at("redaction.dropped");
    object(body_, field_tree(), "");
  }

 private:
  [[noreturn]] void fail(const std::string& path, const std::string& problem) const {
    throw Failure(Status::malformed, fmt::format("{}: field {} {}", what_, path, problem));
  }

  // Of a hostile receipt: shortened anywhere, so it may end within a character.
  static std::string quoted(const std::string& text) {
    return '"' + inert(text.substr(0, 80)) + '"';
  }

  bool needed(const Field& field) const {
    if (dropped_ && (field.column == 'I' || field.column == 'C') &&
        field.path.find('[') == std::string_view::npos) {
      return field.path == "run_id";
    }
    return has(field.needed, kind_) || (kind_ == 'R' && !pack_ && has(field.needed, 'r'));
  }
  bool allowed(const Field& field) const {
    return has(field.needed, kind_) || has(field.allowed, kind_) ||
           (kind_ == 'R' && has(field.needed, 'r'));
  }

  void object(const Value& value, const Node& node, const std::string& at) const {
    for (const auto& [key, child] : value.object()) {
      const std::string path = at.empty() ? key : at + "." + key;
      const auto known = node.children.find(key);
      if (known == node.children.end()) fail(path, "is unknown");
      if (!allowed(*known->second.field)) fail(path, "has no place in a receipt of this kind");
      check(child, known->second, path);
    }
    for (const auto& [key, child] : node.children) {
      if (needed(*child.field) && value.object().find(key) == value.object().end()) {
        fail(at.empty() ? std::string(key) : at + "." + std::string(key), "is missing");
      }
    }
  }

  void check(const Value& value, const Node& node, const std::string& path) const {
    const Field& field = *node.field;
    if (field.type == T::object) {
      if (!value.is_object())
        fail(path, fmt::format("is {}, expected an object", value.type_name()));
      if (value.object().empty()) fail(path, "is empty: a field with no value is left out");
      object(value, node, path);
    } else if (field.type == T::list) {
      if (!value.is_array()) fail(path, fmt::format("is {}, expected an array", value.type_name()));
      if (value.array().empty()) fail(path, "is empty: a field with no value is left out");
      for (std::size_t i = 0; i < value.array().size(); ++i) {
        check(value.array()[i], *node.item, fmt::format("{}[{}]", path, i));
      }
    } else {
      scalar(value, field, path);
    }
  }

  void scalar(const Value& value, const Field& field, const std::string& path) const {
    if (field.type == T::integer) {
      if (!value.is_int() || value.as_int() < 0) fail(path, "is no integer of 0 or more");
      return;
    }
    if (field.type == T::boolean) {
      if (!value.is_bool()) fail(path, fmt::format("is {}, expected a boolean", value.type_name()));
      return;
    }
    if (!value.is_string()) fail(path, fmt::format("is {}, expected a string", value.type_name()));
    const std::string& s = value.as_string();
    if (s.empty()) fail(path, "is empty: a field with no value is left out");
    const auto digits = [&](std::size_t n) {
      if (s.size() != n || !is_hex(s)) {
        fail(path, fmt::format("is {}, expected {} lower-case hex digits", quoted(s), n));
      }
    };
    switch (field.type) {
      case T::choice:
        if (!is_choice(field.choices, s)) {
          fail(path, fmt::format("is {}, expected one of {}", quoted(s), field.choices));
        }
        break;
      case T::sha256:
        digits(64);
        break;
      case T::id128:
        digits(32);
        break;
      case T::u64:
        digits(16);
        break;
      case T::f32:
        digits(8);
        break;
      case T::hex_bytes:
        if (s.size() % 2 != 0 || !is_hex(s))
          fail(path, fmt::format("is {}, expected hex", quoted(s)));
        break;
      case T::utc:
        if (!is_utc(s)) fail(path, fmt::format("is {}, expected YYYY-MM-DDThh:mm:ssZ", quoted(s)));
        break;
      case T::file_name:
        if (!is_inside_name(s)) fail(path, fmt::format("{} leads outside its folder", quoted(s)));
        break;
      default:
        break;
    }
  }

  const Value& body_;
  const std::string& what_;
  char kind_ = '\0';
  bool pack_ = false, dropped_ = false;
};

}  // namespace

std::span<const Field> fields() { return kFields; }

const char* type_name(FieldType type) {
  constexpr const char* kNames[] = {"object",  "list",   "string",   "choice", "integer",
                                    "boolean", "sha256", "hex",      "hex16B", "f32",
                                    "u64",     "time",   "file name"};
  return kNames[static_cast<int>(type)];
}

char kind_letter(std::string_view kind) {
  constexpr std::pair<std::string_view, char> kKinds[] = {
      {"run", 'R'},   {"session", 'S'}, {"conversion", 'C'},
      {"bench", 'B'}, {"plan", 'P'},    {"audit", 'A'},
  };
  for (const auto& [name, letter] : kKinds) {
    if (name == kind) return letter;
  }
  return '\0';
}

bool in_pack(const Value& body) {
  const Value* parents = body.find("parents");
  if (parents == nullptr || !parents->is_array()) return false;
  for (const Value& parent : parents->array()) {
    if (parent.is_object() && parent.string_at("role") == "session") return true;
  }
  return false;
}

bool is_inside_name(std::string_view path) {
  if (path.empty() || path.size() > 4096) return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '\\' || c == 0x7f) return false;
  }
  while (true) {
    const std::size_t slash = path.find('/');
    const std::string_view step = path.substr(0, slash);
    if (step.empty() || step == "." || step == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

void check_fields(const Value& body, const std::string& what) { Checker(body, what).run(); }

}  // namespace bolt::receipts
