// A receipt's limits are kept by asking for fewer tokens, so the engine's own context may be
// larger.
#include "cmd/replayer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "cmd/generation.h"
#include "cmd/package_facts.h"
#include "core/base/sha256.h"
#include "core/engine/engine.h"
#include "core/pack/package.h"
#include "core/text/tokenizer.h"
#include "receipts/build_facts.h"
#include "receipts/digest.h"

namespace bolt {

using receipts::Failure;
using receipts::Status;

struct EngineReplayer::Opened {
  std::unique_ptr<Package> package;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;
  receipts::ReplayerFacts facts;
};

namespace {

Request request_of(const receipts::ReplayTask& task, std::int64_t engine_context) {
  Request request;
  request.prompt_ids = task.prompt_ids;
  request.stop_ids = task.stop_ids;
  request.want_logits = task.want_logits;
  if (task.sampling.kind == "sample") {
    request.sampling.temperature = task.sampling.temperature;
    request.sampling.top_k = static_cast<int>(std::min<std::int64_t>(task.sampling.top_k, 1 << 30));
    request.sampling.top_p = task.sampling.top_p;
    request.sampling.min_p = task.sampling.min_p;
    request.sampling.seed = task.sampling.seed;
  }
  const std::int64_t room = task.context - static_cast<std::int64_t>(task.prompt_ids.size());
  request.max_new = task.max_new < 0 ? room : std::min(task.max_new, room);
  if (static_cast<std::int64_t>(task.prompt_ids.size()) >= engine_context) {
    throw Failure(Status::unmet, fmt::format("not comparable: {} prompt ids, and a context of {} "
                                             "here; give more with -c",
                                             task.prompt_ids.size(), engine_context));
  }
  return request;
}

}  // namespace

DraftOptions parse_mode(const std::string& mode) {
  DraftOptions draft;
  if (mode == "auto") return draft;
  if (mode == "ordinary") {
    draft.source = DraftOptions::Source::off;
    draft.drafts = 0;
    return draft;
  }
  if (mode == "copy" || mode == "mtp" || mode == "dspark" || mode == "dflash") {
    draft.source = *find_draft_source(mode);
    return draft;
  }
  const bool is_k = mode.size() >= 2 && mode.size() <= 3 && mode[0] == 'k' && mode[1] != '0' &&
                    mode.find_first_not_of("0123456789", 1) == std::string::npos;
  draft.drafts = is_k ? std::stoi(mode.substr(1)) : 0;
  if (draft.drafts < 1 || draft.drafts >= kWindowRowsMax) {
    throw Failure(Status::usage,
                  "mode " + receipts::inert(mode) +
                      ": expected ordinary, auto, copy, mtp, dspark, dflash, or k1 to k31");
  }
  return draft;
}

EngineReplayer::EngineReplayer(const ModelOptions& model, const HowOptions& how)
    : opened_(std::make_unique<Opened>()) {
  EngineOptions options = engine_options(model, how);
  const std::string path = find_package(model);
  opened_->package = Package::open(path, {.n_threads = model.n_threads});
  opened_->tokenizer = read_tokenizer(*opened_->package);
  options.build_id = receipts::executable_sha256();
  opened_->engine = Engine::open(*opened_->package, options);
  const receipts::PackageFacts package = package_facts(*opened_->package, *opened_->tokenizer);
  receipts::ReplayerFacts& facts = opened_->facts;
  facts.exe = receipts::executable_sha256();
  facts.package_sha256 = receipts::package_digest(package.files);
  facts.vocab = package.vocab;
  facts.arith.id = opened_->package->arith_id();
  facts.arith.sha256 = opened_->package->arith_sha256();
  facts.arith.kv = how.kv == KvKind::i16 ? "i16" : "f32";
  facts.device_arch = opened_->engine->backend().arch;
  facts.device_sms = opened_->engine->backend().n_multiprocessors;
}

EngineReplayer::~EngineReplayer() = default;

receipts::ReplayerFacts EngineReplayer::facts() const { return opened_->facts; }

receipts::Replayed EngineReplayer::run(const receipts::ReplayTask& task) {
  Engine& engine = *opened_->engine;
  Request request = request_of(task, engine.context());
  request.draft = parse_mode(task.mode);
  // A source that the device lacks drafts nothing; one that the package lacks cannot be meant.
  check_draft(request.draft, opened_->package->graph(), true);
  receipts::Replayed result;
  const TokenSink sink = [&](int, std::span<const float> logits) {
    if (task.want_logits) result.logits.push_back(sha256_hex(std::as_bytes(logits)));
    return true;
  };
  const auto sequence = engine.new_sequence();
  const Reply reply = engine.generate(*sequence, request, sink);
  opened_->package->check_unchanged();
  result.ids = reply.ids;
  result.stop = finish_name(reply.finish);
  // The recorded context, not a limit, was what ended it.
  if (reply.finish == Finish::limit && request.max_new != task.max_new) result.stop = "context";
  return result;
}

receipts::Scored EngineReplayer::score(const receipts::ReplayTask& task,
                                       const std::vector<int>& claimed) {
  Engine& engine = *opened_->engine;
  const Request request = request_of(task, engine.context());
  const auto n_ids = static_cast<std::int64_t>(task.prompt_ids.size() + claimed.size());
  if (n_ids > engine.context()) {
    throw Failure(Status::unmet, fmt::format("not comparable: {} ids of prompt and reply, and a "
                                             "context of {} here; give more with -c",
                                             n_ids, engine.context()));
  }
  receipts::Scored scored;
  const auto start = std::chrono::steady_clock::now();
  const auto sequence = engine.new_sequence();
  const TokenSink sink = [&](int, std::span<const float> logits) {
    if (task.want_logits) scored.logits.push_back(sha256_hex(std::as_bytes(logits)));
    return true;
  };
  Scoring scoring = engine.score(*sequence, request, claimed, sink);
  opened_->package->check_unchanged();
  scored.chosen = std::move(scoring.chosen);
  scored.nonfinite = scoring.n_nonfinite;
  scored.passes = scoring.passes;
  scored.ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
          .count();
  return scored;
}

}  // namespace bolt
