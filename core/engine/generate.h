// Rounds (Leviathan et al., arXiv:2211.17192, in the exact form of design: a draft is kept if it is
// what the target samples): one loop serves prompts, ordinary and speculative decoding.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "core/engine/drafter.h"
#include "core/engine/engine.h"
#include "core/engine/model.h"

namespace bolt {

// One request being answered on an open slot.
class Stream final : public Generation {
 public:
  // The slot holds a proper prefix of the prompt. context: most ids of the sequence. drafter null:
  // ordinary decoding. max_drafts: what the window leaves. *aside_ns grows by time that the engine
  // spends otherwise.
  Stream(Model& model, int slot, Request request, TokenSink sink, std::unique_ptr<Drafter> drafter,
         std::int64_t context, int max_drafts, const std::atomic<bool>* interrupt,
         const std::int64_t* aside_ns = nullptr);

  bool is_finished() const override { return finished_; }
  const Reply& reply() const override { return reply_; }

 private:
  friend class Rounds;
  using Clock = std::chrono::steady_clock;

  bool in_prompt() const { return n_run_ < reply_.n_prompt; }
  bool looks_interrupted();
  std::int64_t since_start_ns() const;
  void plan(int n_sharing, int most_drafts);
  bool asks() const { return plan_.max_levels > 0; }  // or a separate drafter
  bool asks_block() const { return asks() && plan_.block; }
  DraftAsk ask() const;
  RoundAsk round_ask() const {
    return {ask(), plan_.ids, feeds_head(), feeds_blocks(), plan_.row_prices};
  }
  bool feeds_head() const { return drafter_ && drafter_->uses_head(); }
  BlockSet feeds_blocks() const { return drafter_ ? drafter_->uses_blocks() : BlockSet{}; }
  void take_chain(std::span<const Draft> chain);
  Window window(int max_chunk);
  void take(const WindowResult& result, int index);
  void take_prompt(const WindowResult& result, int index);
  void take_window(const WindowResult& result, int index);
  // Hands one token over; false when the reply has ended with it.
  bool emit(int id, int index, int row);
  void finish(Finish how);
  void fail(std::int64_t position);

  Model& model_;
  const int slot_;
  const Request request_;
  const TokenSink sink_;
  const std::unique_ptr<Drafter> drafter_;
  const std::int64_t context_;
  const int max_drafts_;
  const std::atomic<bool>* const interrupt_;
  const std::int64_t* const aside_ns_;  // grows by time that is not decoding; may be null
  const std::int64_t aside_before_;
  const Clock::time_point start_;

  std::vector<int> known_;  // every id: the prompt, then the reply
  std::int64_t n_run_ = 0;  // of them, rows that were run and kept
  DraftPlan plan_;
  int n_levels_ = 0;       // that the head ran this round
  std::vector<int> rows_;  // the window's tokens
  std::vector<float> logits_;
  Reply reply_;
  bool finished_ = false;
};

// Runs streams over one model, pass by pass.
class Rounds {
 public:
  // decode_share: of the time while prompts fill, the part that goes to passes without them, so
  // that replies keep moving.
  explicit Rounds(Model& model, double decode_share = 0.0)
      : model_(model), decode_share_(decode_share) {}
  // One pass over the next rows of every stream that is not finished: a window of those that
  // decode, a chunk of those in their prompt as far as the call has room.
  void run(std::span<Stream* const> streams);

 private:
  bool run_alone(Stream& stream);
  void draft();
  void share_rows();
  bool decodes_alone();

  Model& model_;
  const double decode_share_;
  std::int64_t filling_ns_ = 0, alone_ns_ = 0;  // passes with prompts, and between them without
  // Of the pass at hand; kept so that passes allocate little.
  std::vector<Stream*> decoding_, prompting_, drafting_, running_;
  std::vector<DraftAsk> asks_;
  std::vector<std::vector<Draft>> chains_;
  struct Candidate {
    float gain;
    int depth;
    Stream* stream;
  };
  std::vector<Candidate> candidates_;
  std::vector<Window> windows_;
  std::vector<WindowResult> results_;
  RoundResult round_;
};

}  // namespace bolt
