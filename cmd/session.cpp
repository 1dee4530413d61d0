// One reply: decode text, look for stop texts, collect digests, turn facts into a receipt.
#include "cmd/session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <exception>

#include "cmd/answering.h"
#include "cmd/build_info.h"
#include "cmd/generation.h"
#include "cmd/package_facts.h"
#include "core/pack/repackage.h"
#include "receipts/build_facts.h"
#include "receipts/file.h"

namespace bolt {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t ns_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

double per_second(std::int64_t n, std::int64_t ns) {
  return n > 0 && ns > 0 ? static_cast<double>(n) * 1e9 / static_cast<double>(ns) : 0.0;
}

const char* kv_name(KvKind kv) { return kv == KvKind::i16 ? "i16" : "f32"; }

}  // namespace

double Outcome::decode_tok_per_s() const {
  return per_second(static_cast<std::int64_t>(reply.ids.size()) - 1, reply.decode_ns);
}

double Outcome::prompt_tok_per_s() const {
  return per_second(reply.n_prompt - reply.n_reused, reply.prefill_ns);
}

double Outcome::tokens_per_pass() const {
  const auto n = static_cast<double>(reply.ids.size());
  return reply.counters.target > 0 ? (n - 1.0) / static_cast<double>(reply.counters.target) : 0.0;
}

const char* finish_reason(const std::string& stop) {
  if (stop == "eos" || stop == "stop_text") return "stop";
  if (stop == "limit") return "length";
  if (stop == "context") return "context";
  if (stop == "error") return "error";
  return "cancelled";
}

Session::Session(const ModelOptions& model, const HowOptions& how, const ReceiptOptions& receipt)
    : how_(how), receipt_(receipt) {
  const Clock::time_point start = Clock::now();
  EngineOptions options = engine_options(model, how);
  const std::string path = find_package(model);
  where_ = prepare_receipts(receipt);
  redaction_ = resolve_redaction(receipt);
  if (!receipt.plan_file.empty()) {
    use_plan(receipts::Plan(receipts::read_receipt(receipt.plan_file)));
    (void)plan_->cell(*receipt.cell);  // one that is not planned is an error now
  }
  gpus_ = model.device.gpus;
  package_ = Package::open(
      path, {.n_threads = model.n_threads, .hash_payload_behind = options.device >= 0});
  tokenizer_ = read_tokenizer(*package_);
  package_facts_ = bolt::package_facts(*package_, *tokenizer_);
  options.build_id = receipts::executable_sha256();
  engine_ = Engine::open(*package_, options);
  package_->check_unchanged();
  load_ns_ = ns_since(start);
}

void Session::use_plan(receipts::Plan plan) {
  plan.check_redaction(redaction_);
  plan_ = std::move(plan);
}

std::string Session::description() const {
  std::uint64_t bytes = 0;
  for (const PackageFile& file : package_->files()) bytes += file.bytes;
  return fmt::format(
      "package   {} ({}, {:.1f} MB, loaded in {:.0f} ms)\n"
      "device    {}, {}, {} threads, contract {}, kv {}\n{}context   {}\n",
      package_->path(), config().name, static_cast<double>(bytes) / 1e6,
      static_cast<double>(load_ns_) / 1e6, engine_->backend().name, engine_->backend().arch,
      engine_->n_threads(), package_->arith_id(), kv_name(how_.kv), ranks_line(),
      engine_->context());
}

std::string Session::ranks_line() const {
  if (engine_->n_ranks() == 1) return {};
  std::vector<double> megabytes;
  for (const std::uint64_t bytes : engine_->weight_bytes()) {
    megabytes.push_back(static_cast<double>(bytes) / 1e6);
  }
  return fmt::format("ranks     {}, exchange by {}; weights {:.1f} MB\n", engine_->n_ranks(),
                     engine_->exchange_name(), fmt::join(megabytes, ", "));
}

receipts::Device Session::device_facts() const {
  const Backend& backend = engine_->backend();
  receipts::Device device;
  device.arch = backend.arch;
  device.threads = engine_->n_threads();
  device.ranks = engine_->n_ranks();
  device.name = backend.name;
  device.kind = backend.n_multiprocessors > 0 ? "cuda" : "cpu";
  if (backend.n_multiprocessors > 0) device.sms = backend.n_multiprocessors;
  return device;
}

std::string Session::cost_line() const {
  const std::string& digest = engine_->cost_digest();
  if (digest.empty()) return {};
  const bool measured = engine_->costs_measured();
  // A cache that could not be written costs nothing but the next measurement: no word of it.
  std::string origin = "measured now";
  if (!how_.cost_table.empty()) {
    origin = (measured ? "measured now, kept in " : "read from ") + how_.cost_table;
  } else if (!measured) {
    origin = "read from the cache";
  }
  return fmt::format("costs     table {}, {}\n", digest.substr(0, 16), origin);
}

Task Session::task(const GenerationOptions& options) const {
  check_draft(options.draft, package_->graph(), engine_->backend().ops->has_block_ops());
  Task task;
  task.sampling = resolve_sampling(options, config());
  task.stop_texts = options.stop_texts;
  task.ignore_eos = options.ignore_eos;
  task.max_new = options.max_tokens.value_or(-1);
  task.draft = options.draft;
  task.cell = receipt_.cell;
  return task;
}

Reply Session::rehearse(Sequence& sequence, const Task& task, std::atomic<bool>& interrupt) {
  const Listener nobody;
  Answering answering(*this, task, nobody, interrupt);
  return engine_->generate(sequence, answering.request(), nullptr, &interrupt);
}

Outcome Session::answer(Sequence& sequence, const Task& task, const Listener& listener,
                        std::atomic<bool>& interrupt) {
  Answering answering(*this, task, listener, interrupt);
  answering.finish(engine_->generate(sequence, answering.request(), answering.sink(), &interrupt));
  return seal(answering, &sequence);
}

Outcome& Session::seal(Answering& answering, Sequence* sequence, const std::string& folder) {
  const Task& task = answering.task();
  const Clock::time_point done = Clock::now();
  receipts::RunFacts sealed = facts(answering, sequence);
  add_process(sealed.common);
  Outcome& outcome = answering.outcome();
  const receipts::Where where =
      folder.empty() ? where_ : receipts::Where{.folder = folder, .file = {}};
  outcome.receipt = receipts::write_run(sealed, where);
  outcome.seal_ns = ns_since(done);
  if (answering.thrown()) std::rethrow_exception(answering.thrown());
  if (plan_ && task.cell) {
    outcome.unplanned =
        plan_->mismatch(plan_->cell(*task.cell), receipts::read_receipt(outcome.receipt.path).body);
  }
  return outcome;
}

void Session::add_process(receipts::Common& common) const {
  common.build = receipts::build_facts(compiled_build());
  common.env = receipts::environment_facts();
  common.device = device_facts();
  common.build.jit = engine_->backend().n_multiprocessors > 0 && receipts::forces_jit(common.env);
  common.time.load_ns = load_ns_;
}

receipts::Arith Session::arith_facts() const {
  return {.id = package_->arith_id(), .sha256 = package_->arith_sha256(), .kv = kv_name(how_.kv)};
}

receipts::Mode Session::mode_facts(const DraftOptions& draft) const {
  const int depth_max = how_.window_rows - 1;
  const int depth = draft.drafts < 0 ? depth_max : std::min(draft.drafts, depth_max);
  receipts::Mode mode;
  mode.geometry = geometry_text(package_->graph().geometry);
  if (draft.source == DraftOptions::Source::off || depth == 0) return mode;
  mode.kind = "speculative";
  mode.depth = depth;
  mode.adaptive = draft.drafts < 0;
  mode.source = draft_source_name(draft.source);
  mode.costs = engine_->cost_digest();
  return mode;
}

receipts::SessionFacts Session::session_facts(const DraftOptions& draft) const {
  receipts::SessionFacts facts;
  add_process(facts.common);
  facts.common.challenge = receipt_.challenge;
  if (!package_->conversion_rid().empty()) {
    facts.common.parents.push_back({"conversion", package_->conversion_rid()});
  }
  facts.package = package_facts_;
  facts.arith = arith_facts();
  facts.mode = mode_facts(draft);
  facts.sched.slots = how_.n_slots;
  facts.redaction = redaction_;
  return facts;
}

receipts::RunFacts Session::facts(const Answering& answering, Sequence* sequence) const {
  const Task& task = answering.task();
  const Outcome& outcome = answering.outcome();
  const Reply& reply = outcome.reply;
  package_->check_unchanged();
  receipts::RunFacts facts;
  facts.common.challenge = receipt_.challenge;
  facts.common.time = {.load_ns = 0,
                       .prefill_ns = reply.prefill_ns,
                       .first_token_ns = reply.first_token_ns,
                       .decode_ns = reply.decode_ns,
                       .total_ns = outcome.total_ns,
                       .utc = {}};
  if (!package_->conversion_rid().empty()) {
    facts.common.parents.push_back({"conversion", package_->conversion_rid()});
  }
  if (plan_ && task.cell) {
    facts.series = plan_->series(*task.cell);
    facts.common.parents.push_back({"plan", plan_->rid()});
    receipts::RequestFacts request;
    request.input = task.input;
    request.line = plan_->cell(*task.cell).prompt + 1;
    if (!task.input.empty()) facts.request = request;
  }
  facts.package = package_facts_;
  facts.arith = arith_facts();

  facts.task.prompt_ids = task.prompt_ids;
  facts.task.prompt_text = task.prompt_text;
  facts.task.has_prompt_text = task.has_prompt_text;
  if (task.templated) facts.task.template_sha256 = config().chat_template_sha256;
  if (task.sampling.temperature > 0.0f) {
    facts.task.sampling = {.kind = "sample",
                           .temperature = task.sampling.temperature,
                           .top_p = task.sampling.top_p,
                           .min_p = task.sampling.min_p,
                           .top_k = task.sampling.top_k,
                           .rng = "philox4x32-10",
                           .seed = task.sampling.seed};
  }
  if (!task.ignore_eos) facts.task.stop_ids = config().stop_ids;
  facts.task.stop_texts = task.stop_texts;
  facts.task.ignore_eos = task.ignore_eos;
  facts.task.max_new = task.max_new;
  facts.task.context = engine_->context();

  facts.mode = mode_facts(task.draft);
  facts.sched.slots = how_.n_slots;
  if (facts.mode.kind == "speculative" && task.script) {
    // A script of right and wrong drafts, at the price of the source that it is put for.
    const bool is_auto = task.draft.source == DraftOptions::Source::automatic;
    facts.mode.source = is_auto ? "scripted" : "scripted-" + facts.mode.source;
  }
  facts.sched.cache = reply.n_reused > 0 ? "resumed" : "cold";
  facts.sched.cached_n = reply.n_reused;

  facts.out.ids = reply.ids;
  facts.out.text = outcome.text;
  facts.out.has_text = true;
  facts.out.nonfinite = reply.n_nonfinite;
  facts.out.logits = answering.logits_digests();
  // A row that was not finite leaves no state to speak of.
  if (receipt_.attach.state && sequence != nullptr && reply.finish != Finish::error) {
    facts.out.state = {sequence->state_digest()};
    facts.out.state_boundary = "end";
  }
  facts.stop.kind = outcome.stop;
  if (reply.finish == Finish::eos) facts.stop.id = reply.stop_id;
  if (reply.finish == Finish::error) facts.stop.at = reply.error_position;

  const Counters& c = reply.counters;
  facts.count.target = c.target;
  facts.count.rounds = c.rounds;
  facts.count.prompt_passes = c.prompt_passes;
  facts.count.drafted = c.drafted;
  facts.count.accepted_at = c.accepted_at;
  facts.count.bonus = c.bonus;
  facts.count.cut = c.cut;
  facts.count.copy_rounds = c.copy_rounds;
  facts.count.copy_drafted = c.copy_drafted;
  facts.count.copy_accepted = c.copy_accepted;
  facts.count.head_levels = c.head_levels;
  if (!package_->graph().drafters.empty()) facts.count.block_passes = c.block_passes;
  facts.attach = receipt_.attach;
  facts.redaction = redaction_;
  return facts;
}

}  // namespace bolt
