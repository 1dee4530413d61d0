// What a receipt says, as plain facts: the caller fills them in, body.h turns them into the
// canonical body and its digests. Fields are explained in man/bolt-receipt.5; an empty string, list
// or optional means "no value" and is left out of the body. Digests given as strings are lower-case
// hex.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace bolt::receipts {

// ---- the process and the machine -------------------------------------------------------------

struct Module {
  std::string name;      // file name without its folder, e.g. libcuda.so.1
  std::string sha256;    // of the mapped file
  std::string build_id;  // GNU build id, hex
};

struct Cubin {
  std::string arch;  // sm_90
  std::string sha256;
};

// Filled in by build_facts() (build_facts.h).
struct Build {
  std::string exe;  // SHA-256 of the running executable
  std::vector<Module> modules;
  std::string commit, tree, diff;  // git objects; diff: SHA-256 of the uncommitted changes
  std::string published;
  std::string toolchain, flags;
  std::vector<Cubin> cubins;
  bool jit = false;
  std::optional<std::int64_t> rebuilds;
};

struct EnvEntry {
  std::string name;
  std::string value;   // in clear for a fixed few
  std::string sha256;  // else D("env", value)
};

struct Device {
  std::string kind;  // cpu, cuda
  std::string arch;  // scalar, avx2, avx512 or sm_90
  std::optional<std::int64_t> sms;
  std::int64_t ranks = 1;
  std::int64_t threads = 1;
  std::string name, driver, runtime, uuid_tag;
};

struct Admission {
  bool exclusive = false;
  std::int64_t others = 0;
  bool lock = false;
};

// ---- what was run -----------------------------------------------------------------------------

struct PackageFileFact {
  std::string path;  // relative, inside the package folder
  std::string role;  // manifest, graph, config, tokenizer, draft_vocab, payload, drafter
  std::uint64_t bytes = 0;
  std::string sha256;
  std::string how;  // stream, verity, cached, carried
  std::uint64_t links = 1;
};

struct PackageFacts {
  std::vector<PackageFileFact> files;  // any order; package.sha256 is computed from them
  std::string vocab;                   // vocab_digest() (digest.h)
  std::string source;                  // declared origin, repo@rev or a folder's name
};

struct Arith {
  std::string id;             // bolt-exact/1
  std::string sha256;         // of the contract's test vectors
  std::string kv = "i16";     // i16, f32
  std::string scope = "any";  // any, arch, sm_count
  bool width_invariant = true;
};

struct Sampling {
  std::string kind = "greedy";  // greedy, sample
  // Of kind sample only, every default resolved.
  float temperature = 1.0f, top_p = 1.0f, min_p = 0.0f;
  std::int64_t top_k = 0;
  std::string rng;  // philox4x32-10
  std::uint64_t seed = 0;
};

struct TaskFacts {
  std::vector<int> prompt_ids;
  std::string prompt_text;  // the text that was tokenised; may be any bytes
  bool has_prompt_text = false;
  std::string template_sha256;  // of the chat template, empty if none was used
  Sampling sampling;
  std::vector<int> stop_ids;
  std::vector<std::string> stop_texts;
  bool ignore_eos = false;
  std::int64_t max_new = -1;  // -1: until a stop or the context's end
  std::int64_t context = 0;
};

struct Mode {
  std::string kind = "ordinary";     // ordinary, speculative
  std::int64_t depth = 0;            // most drafts a round; 0 when ordinary
  bool adaptive = false;             // the depth rule chose how many
  std::string source = "off";        // off, mtp, copy, auto, scripted
  std::string geometry = "dynamic";  // dynamic, fixed:R, hybrid:R
  std::string costs;                 // SHA-256 of the cost table, empty if none was asked for
};

struct Sched {
  std::int64_t slots = 1;
  std::int64_t peers = 0;
  std::string cache = "cold";  // cold, resumed
  std::int64_t cached_n = 0;   // leading prompt ids whose state was already there
};

struct Margin {
  float value = 0.0f;   // smallest gap between the chosen logit and the next
  std::int64_t at = 0;  // 1-based position in the reply
};

struct OutFacts {
  std::vector<int> ids;
  std::string text;
  bool has_text = false;
  std::int64_t nonfinite = 0;
  std::vector<std::string> logits;  // SHA-256 of each emitted position's f32 logits
  std::vector<std::string> state;   // digests of the committed state, layer order
  std::string state_boundary;       // where the state was taken, e.g. "end"
  std::optional<Margin> margin;
};

struct Stop {
  std::string kind = "limit";      // eos, limit, context, stop_text, interrupted, cancelled, error
  std::optional<std::int64_t> id;  // of eos
  std::optional<std::int64_t> at;  // of error: absolute position whose logits were not finite
};

struct CountFacts {
  std::int64_t target = 0, segments = 0, rounds = 0, prompt_passes = 0;
  std::int64_t drafted = 0;
  std::vector<std::int64_t> accepted_at;  // by depth
  std::int64_t bonus = 0, cut = 0;
  std::int64_t copy_rounds = 0, copy_drafted = 0, copy_accepted = 0;
  std::int64_t head_levels = 0;
  std::optional<std::int64_t> block_passes;
  std::optional<std::int64_t> state_copies, state_bytes;
};

struct Times {
  std::int64_t load_ns = 0, prefill_ns = 0, first_token_ns = 0, decode_ns = 0, total_ns = 0;
  std::int64_t sealed_us = 0;  // since 1970; filled in by the writer when utc is empty
  std::string utc;             // 2026-01-31T12:34:56Z; filled in by the writer when empty
};

// Which line of a batch a run answers.
struct RequestFacts {
  std::string input;  // the line's bytes; only a digest is sealed
  std::int64_t line = 0;
  std::string id;  // the line's own id, as JSON text; empty if none; only a digest is sealed
};

// Which planned cell a run answers. `plan` is the plan receipt's rid.
struct Series {
  std::string plan;
  std::int64_t cell = 0, pass = 0, index = 0;
  std::string order = "forward";  // forward, reversed
};

struct Parent {
  std::string role;  // conversion, session, bench, control, plan, run
  std::string rid;
};

// How the digests of prompt and reply are bound. plain: anyone may check; keyed: holders of `key`
// may; salted: whoever is given the salt, which is attached and may be deleted.
struct Redaction {
  enum class Mode { plain, keyed, salted } mode = Mode::plain;
  std::array<std::uint8_t, 32> key{};  // of keyed: the campaign's; of salted: random, one a receipt
  bool drop_info = false;              // leave out times, device names and counters
};

// Which attachments follow the seal.
struct Attach {
  bool ids = true;
  bool text = false, logits = false, state = false;
};

struct Common {
  std::string run_id;     // 32 hex; filled in by the writer when empty
  std::string challenge;  // an auditor's nonce, hex
  Build build;
  std::vector<EnvEntry> env;
  std::optional<Admission> admission;
  std::optional<Device> device;
  Times time;
  std::vector<Parent> parents;
  std::vector<std::string> limits_stated, not_run;
};

struct RunFacts {
  Common common;
  PackageFacts package;
  Arith arith;
  TaskFacts task;
  Mode mode;
  Sched sched;
  OutFacts out;
  Stop stop;
  CountFacts count;
  std::optional<RequestFacts> request;
  std::optional<Series> series;
  Redaction redaction;
  Attach attach;
};

// ---- other kinds ------------------------------------------------------------------------------

struct SourceFile {
  std::string path;
  std::uint64_t bytes = 0;
  std::string sha256;
};

struct ConversionFacts {
  Common common;
  PackageFacts package;     // the result
  Arith arith;              // id and sha256 as package.json names them; the rest is not sealed
  std::string source_name;  // the checkpoint's or package's folder name, not its path
  std::vector<SourceFile> source_files;
  std::string quant;              // none, q8, nvfp4
  std::vector<std::string> keep;  // patterns exempt from quantising
  std::string geometry = "dynamic";
  bool without_mtp = false;
  bool verified = false;     // every value was decoded from both sides and compared
  std::int64_t tensors = 0;  // tensors read
  std::int64_t values_compared = 0;
  std::int64_t values_requantised = 0;
  std::string draft_vocab_sha256;  // of the ids' file, empty if none
};

// What a session came to, known when it closes.
inline constexpr std::size_t kFailedLinesMax = 65536;
struct SessionTotals {
  std::int64_t lines = 0, answered = 0, failed = 0;
  std::vector<std::int64_t> failed_lines = {};  // at most kFailedLinesMax of them
  std::vector<std::string> rids;                // of its runs, in line order
};

// One serve-stdin process. Sealed once when it opens (no totals: its runs name this rid) and once
// more when it closes (totals and root, the opening rid as parent).
struct SessionFacts {
  Common common;
  PackageFacts package;
  Arith arith;
  Mode mode;
  Sched sched;
  Redaction redaction;
  std::optional<SessionTotals> totals;
};

}  // namespace bolt::receipts
