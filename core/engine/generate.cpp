// The round: draft, run, keep what the target samples, commit.
#include "core/engine/generate.h"

#include <algorithm>

#include "core/base/error.h"

namespace bolt {

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::eos:
      return "eos";
    case Finish::stop_text:
      return "stop_text";
    case Finish::limit:
      return "limit";
    case Finish::context:
      return "context";
    case Finish::interrupted:
      return "interrupted";
    case Finish::error:
      return "error";
  }
  return "?";
}

Stream::Stream(Model& model, int slot, Request request, TokenSink sink,
               std::unique_ptr<Drafter> drafter, std::int64_t context, int max_drafts,
               const std::atomic<bool>* interrupt, const std::int64_t* aside_ns)
    : model_(model),
      slot_(slot),
      request_(std::move(request)),
      sink_(std::move(sink)),
      drafter_(std::move(drafter)),
      context_(context),
      max_drafts_(max_drafts),
      interrupt_(interrupt),
      aside_ns_(aside_ns),
      aside_before_(aside_ns ? *aside_ns : 0),
      start_(Clock::now()),
      known_(request_.prompt_ids),
      n_run_(static_cast<std::int64_t>(model.ids(slot).size())) {
  reply_.n_prompt = static_cast<std::int64_t>(known_.size());
  reply_.n_reused = n_run_;
  require(in_prompt(), "the slot holds less than the prompt");
  if (request_.want_logits) logits_.resize(static_cast<std::size_t>(model.vocab_size()));
}

bool Stream::looks_interrupted() {
  if (interrupt_ && interrupt_->load(std::memory_order_relaxed)) finish(Finish::interrupted);
  return finished_;
}

// Drafts for the rows after the known one. A window never reaches past the limit or the context, so
// every token it can emit has its place.
void Stream::plan(int n_sharing, int most_drafts) {
  plan_ = DraftPlan{};
  plan_.n_sharing = n_sharing;
  n_levels_ = 0;
  if (!drafter_) return;
  std::int64_t room = context_ - static_cast<std::int64_t>(known_.size());
  if (request_.max_new >= 0) {
    room = std::min(room, request_.max_new - static_cast<std::int64_t>(reply_.ids.size()));
  }
  const int max_drafts =
      static_cast<int>(std::min<std::int64_t>(std::min(max_drafts_, most_drafts), room - 1));
  if (max_drafts >= 1) drafter_->plan(known_, max_drafts, plan_);
  require(static_cast<int>(plan_.ids.size()) <= std::max(0, max_drafts), "drafts fit the window");
}

DraftAsk Stream::ask() const {
  DraftAsk ask;
  ask.block = plan_.block;
  ask.slot = slot_;
  ask.next_id = known_.back();
  ask.max_levels = plan_.max_levels;
  ask.draft_vocab = plan_.draft_vocab;
  ask.sampling = request_.sampling;
  ask.weighs = plan_.costs != nullptr;
  ask.stop_ids = request_.stop_ids;
  ask.go_on = plan_.go_on;
  ask.given = plan_.given;
  return ask;
}

void Stream::take_chain(std::span<const Draft> chain) {
  n_levels_ = static_cast<int>(chain.size());
  if (plan_.block) {
    reply_.counters.block_passes += n_levels_ > 0;
  } else {
    reply_.counters.head_levels += n_levels_;
  }
  drafter_->choose(chain, plan_);
  plan_.max_levels = 0;  // answered
}

Window Stream::window(int max_chunk) {
  Window window;
  window.slot = slot_;
  window.sampling = request_.sampling;
  window.feed_head = feeds_head();
  window.feed_blocks = feeds_blocks();
  rows_.clear();
  if (in_prompt()) {
    std::int64_t n = std::min<std::int64_t>(max_chunk, reply_.n_prompt - n_run_);
    // A chunk that ends where a page does leaves a prefix that others can go on from.
    const std::int64_t page_end = (n_run_ + n) / kPageKeys * kPageKeys;
    if (model_.keeps_prefixes() && n_run_ + n < reply_.n_prompt && page_end > n_run_) {
      n = page_end - n_run_;
    }
    const auto first = known_.begin() + n_run_;
    rows_.assign(first, first + n);
    window.sure = true;
    window.n_sampled = n_run_ + n == reply_.n_prompt && request_.max_new != 0 ? 1 : 0;
  } else {
    rows_.push_back(known_.back());
    rows_.insert(rows_.end(), plan_.ids.begin(), plan_.ids.end());
    window.n_sampled = static_cast<int>(rows_.size());
  }
  window.ids = rows_;
  return window;
}

void Stream::take(const WindowResult& result, int index) {
  in_prompt() ? take_prompt(result, index) : take_window(result, index);
  if (request_.progress) {
    request_.progress({std::min(n_run_, reply_.n_prompt),
                       static_cast<std::int64_t>(reply_.ids.size()), &reply_.counters});
  }
}

void Stream::take_prompt(const WindowResult& result, int index) {
  ++reply_.counters.prompt_passes;
  if (result.first_marked >= 0) return fail(n_run_ + result.first_marked + 1);
  const bool is_last = n_run_ + static_cast<std::int64_t>(rows_.size()) == reply_.n_prompt;
  const int id = result.sampled.empty() ? -1 : result.sampled[0].id;
  if (!result.sampled.empty() && id < 0) return fail(reply_.n_prompt);
  // Before a sink that may throw: the prompt's state is good whatever becomes of the reply.
  model_.commit(slot_, static_cast<int>(rows_.size()));
  n_run_ += static_cast<std::int64_t>(rows_.size());
  if (is_last || n_run_ % kPageKeys == 0) model_.keep_prefix(slot_);
  if (!is_last) return;
  reply_.prefill_ns = since_start_ns();
  if (id < 0) return finish(Finish::limit);  // max_new is 0
  emit(id, index, 0);
  reply_.first_token_ns = since_start_ns();
}

std::int64_t Stream::since_start_ns() const {
  return (Clock::now() - start_).count() - (aside_ns_ ? *aside_ns_ - aside_before_ : 0);
}

void Stream::take_window(const WindowResult& result, int index) {
  Counters& count = reply_.counters;
  ++count.target;
  ++count.rounds;
  const std::vector<int>& drafts = plan_.ids;
  const int n_drafts = static_cast<int>(drafts.size());
  const std::vector<Sampled>& sampled = result.sampled;
  // The longest run of drafts that are what the target samples; the row after it is reached, too.
  int n_accepted = 0;
  while (n_accepted < n_drafts && sampled[static_cast<std::size_t>(n_accepted)].id ==
                                      drafts[static_cast<std::size_t>(n_accepted)]) {
    ++n_accepted;
  }
  const bool has_bonus = sampled[static_cast<std::size_t>(n_accepted)].id >= 0;
  count.drafted += n_drafts;
  if (static_cast<int>(count.accepted_at.size()) < n_drafts) {
    count.accepted_at.resize(static_cast<std::size_t>(n_drafts), 0);
  }
  for (int i = 0; i < n_accepted; ++i) ++count.accepted_at[static_cast<std::size_t>(i)];
  count.bonus += has_bonus;
  if (plan_.is_copy) {
    ++count.copy_rounds;
    count.copy_drafted += n_drafts;
    count.copy_accepted += n_accepted;
  }
  if (drafter_) drafter_->learn(plan_, n_levels_, n_accepted);

  const int n_tokens = n_accepted + has_bonus;
  int n_emitted = 0;
  bool goes_on = true;
  while (goes_on && n_emitted < n_tokens) {
    goes_on = emit(sampled[static_cast<std::size_t>(n_emitted)].id, index, n_emitted);
    ++n_emitted;
  }
  count.cut += n_tokens - n_emitted;
  reply_.decode_ns = since_start_ns() - reply_.first_token_ns;
  if (goes_on && !has_bonus) return fail(n_run_ + n_accepted + 1);
  // Row i gave token i: rows past the last emitted token were not run by an ordinary reply.
  model_.commit(slot_, n_emitted);
  n_run_ += n_emitted;
  if (finished_) model_.keep_prefix(slot_);
}

bool Stream::emit(int id, int index, int row) {
  known_.push_back(id);
  reply_.ids.push_back(id);
  if (request_.want_logits) model_.read_logits(index, row, logits_);
  const bool wants_more = !sink_ || sink_(id, logits_);
  if (std::find(request_.stop_ids.begin(), request_.stop_ids.end(), id) !=
      request_.stop_ids.end()) {
    reply_.stop_id = id;
    finish(Finish::eos);
  } else if (!wants_more) {
    finish(Finish::stop_text);
  } else if (static_cast<std::int64_t>(reply_.ids.size()) == request_.max_new) {
    finish(Finish::limit);
  } else if (static_cast<std::int64_t>(known_.size()) == context_) {
    finish(Finish::context);
  }
  return !finished_;
}

void Stream::finish(Finish how) {
  reply_.finish = how;
  finished_ = true;
}

// The rows stay uncommitted: the slot counts as broken, and its state is not used again.
void Stream::fail(std::int64_t position) {
  reply_.error_position = position;
  ++reply_.n_nonfinite;
  finish(Finish::error);
}

// A planned stream that has the pass to itself: all of its round in one call. False where the model
// does not take it so.
bool Rounds::run_alone(Stream& stream) {
  if (stream.asks_block()) draft();
  if (!model_.round(stream.round_ask(), round_)) return false;
  if (stream.asks()) stream.take_chain(round_.chain);
  const Window window = stream.window(0);
  require(static_cast<int>(window.ids.size()) == round_.n_verified + 1,
          "the drafter and the model choose alike");
  stream.take(round_.window, 0);
  return true;
}

// Those that ask the head share its levels, those that ask a drafter its pass.
void Rounds::draft() {
  drafting_.clear();
  asks_.clear();
  const int n = static_cast<int>(decoding_.size());
  for (Stream* stream : decoding_) {
    if (!stream->asks()) continue;
    drafting_.push_back(stream);
    asks_.push_back(stream->ask());
  }
  if (!asks_.empty()) {
    model_.draft(asks_, chains_);
    for (std::size_t i = 0; i < drafting_.size(); ++i) drafting_[i]->take_chain(chains_[i]);
  }
  if (n > 1) share_rows();
}

// Each sequence weighed its drafts as if the others had none. Of all together, the K likeliest are
// verified, K where their expected tokens less R (V[n + K] - V[n]) are most, and no more than a
// round has rows.
void Rounds::share_rows() {
  candidates_.clear();
  double rate = 0.0;
  int n_rates = 0, n_unweighed = 0;
  const CostTable* costs = nullptr;
  for (Stream* stream : decoding_) {
    const DraftPlan& plan = stream->plan_;
    for (std::size_t k = 0; k < plan.ids.size(); ++k) {
      candidates_.push_back({plan.gains[k], static_cast<int>(k), stream});
      n_unweighed += plan.gains[k] > 1.0f;
    }
    if (plan.costs == nullptr) continue;
    costs = plan.costs;
    rate += plan.rate;
    ++n_rates;
  }
  // Gains never rise along a chain, so the first K hold each draft's predecessors.
  std::stable_sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) {
    return a.gain > b.gain || (a.gain == b.gain && a.depth < b.depth);
  });
  const int n = static_cast<int>(decoding_.size());
  const int most = std::min(static_cast<int>(candidates_.size()), std::max(0, kRoundRowsMax - n));
  int n_best = std::min(n_unweighed, most);
  if (costs != nullptr) {
    rate /= n_rates;
    double gain = 0.0, best = -rate * (costs->window(n + n_best) - costs->window(n));
    for (int k = n_best + 1; k <= most; ++k) {
      gain += static_cast<double>(candidates_[static_cast<std::size_t>(k - 1)].gain);
      const double worth = gain - rate * (costs->window(n + k) - costs->window(n));
      if (worth >= best) best = worth, n_best = k;
    }
  } else {
    n_best = most;
  }
  for (std::size_t i = static_cast<std::size_t>(n_best); i < candidates_.size(); ++i) {
    std::vector<int>& ids = candidates_[i].stream->plan_.ids;
    ids.resize(std::min(ids.size(), static_cast<std::size_t>(candidates_[i].depth)));
  }
}

// Whether this pass leaves the prompts out.
bool Rounds::decodes_alone() {
  if (decoding_.empty() || prompting_.empty()) {
    filling_ns_ = alone_ns_ = 0;
    return false;
  }
  const auto total = static_cast<double>(filling_ns_ + alone_ns_);
  return filling_ns_ > 0 && static_cast<double>(alone_ns_) < decode_share_ * total;
}

void Rounds::run(std::span<Stream* const> streams) {
  decoding_.clear();
  prompting_.clear();
  for (Stream* stream : streams) {
    if (stream->is_finished() || stream->looks_interrupted()) continue;
    (stream->in_prompt() ? prompting_ : decoding_).push_back(stream);
  }
  const auto start = std::chrono::steady_clock::now();
  const bool fills = !decoding_.empty() && !prompting_.empty(), alone = decodes_alone();
  if (alone) prompting_.clear();
  const int n = static_cast<int>(decoding_.size());
  const int most = n == 1 ? kDraftsMax : std::clamp(kRoundRowsMax - n, 0, kDraftsMax);
  for (Stream* stream : decoding_) stream->plan(n, most);
  if (n == 1 && prompting_.empty() && run_alone(*decoding_[0])) {
    if (fills) alone_ns_ += (std::chrono::steady_clock::now() - start).count();
    return;
  }
  draft();
  // Windows first; prompts fill what room is left. A padded call counts as its padding.
  windows_.clear();
  running_.clear();
  const int least = model_.max_window_rows();
  int room = model_.max_rows();
  for (Stream* stream : decoding_) {
    windows_.push_back(stream->window(0));
    running_.push_back(stream);
    room -= std::max(least, static_cast<int>(windows_.back().ids.size()));
  }
  for (Stream* stream : prompting_) {
    const int chunk = std::min(model_.max_chunk_rows(), room);
    if (chunk < 1 || (chunk < least && !windows_.empty())) break;
    windows_.push_back(stream->window(chunk));
    running_.push_back(stream);
    room -= std::max(least, static_cast<int>(windows_.back().ids.size()));
  }
  if (windows_.empty()) return;
  model_.run(windows_, results_);
  for (std::size_t i = 0; i < running_.size(); ++i) {
    running_[i]->take(results_[i], static_cast<int>(i));
  }
  if (fills) {
    (alone ? alone_ns_ : filling_ns_) += (std::chrono::steady_clock::now() - start).count();
  }
}

}  // namespace bolt
