// A drafter's pass spelled out in ops that the host calls one after the other, and what a device
// without them answers.
#include "core/ops/block_draft.h"

#include <algorithm>
#include <vector>

#include "core/base/error.h"

namespace bolt {
namespace {

[[noreturn]] void lacks() {
  throw Error(Exit::fault, "this device has no ops of separate drafters; use --draft mtp or copy");
}

}  // namespace

void Ops::round_bf16(Rows<const float>, Rows<float>) { lacks(); }
void Ops::embed_but(const Weight&, int, const float*, std::span<const int>, Rows<float>) {
  lacks();
}
void Ops::rope_heads(const Batch&, const RopeTable&, float, Rows<float>, const float*, Rows<float>,
                     const float*) {
  lacks();
}
void Ops::put_context(const Batch&, int, const RopeTable&, float, const float*, const BlockCache&,
                      Rows<const float>) {
  lacks();
}
void Ops::block_attention(const Batch&, const BlockShape&, int, const float*, const BlockCache&,
                          Rows<const float>, Rows<const float>, Rows<float>) {
  lacks();
}
void Ops::gate_quantize(Rows<const float>, Rows<const float>, Rows<float>, bool, Operand&) {
  lacks();
}

void Ops::copy(const void* from, std::uint64_t bytes, void* to) {
  std::vector<float> words(static_cast<std::size_t>(bytes / sizeof(float)));
  if (words.empty()) return;
  read(static_cast<const float*>(from), words);
  write(words.data(), bytes, to);
}

void Ops::run_block(const BlockTask& task, std::span<Sampled> drafts) {
  begin(task.batch, task.ids);
  replay(task.key, task.ops);
  finish(task.batch);
  const auto n = static_cast<std::size_t>(task.n_sequences);
  std::vector<int> previous(n);
  std::vector<SampleSpec> specs(task.sampling.begin(), task.sampling.end());
  std::vector<std::uint8_t> marks(n);
  std::vector<Sampled> chosen(n);
  for (std::size_t s = 0; s < n; ++s) {
    previous[s] = task.ids[s * static_cast<std::size_t>(task.block_rows)];
  }
  for (int r = 0; r < task.n_drafts; ++r) {
    const Batch step{task.n_sequences, {}, marks};
    begin(step, previous);
    // The draft's row of every block.
    const Rows<float> logits{task.logits.row(r + 1), task.n_sequences, task.logits.n_cols,
                             task.logits.stride * task.block_rows};
    if (task.markov_w1 != nullptr) {
      embed(*task.markov_w1, previous, task.markov_rows);
      quantize(task.markov_rows, is_integer(task.markov_w2->format), *task.markov_operand);
      linear(step, *task.markov_operand, *task.markov_w2, Epilogue::add, logits);
    }
    sample(logits, specs, marks, nullptr, chosen);
    for (std::size_t s = 0; s < n; ++s) {
      const std::size_t at =
          s * static_cast<std::size_t>(task.n_drafts) + static_cast<std::size_t>(r);
      const std::size_t row =
          s * static_cast<std::size_t>(task.block_rows) + static_cast<std::size_t>(r) + 1;
      const bool ended = task.batch.marked[row] != 0 || (r > 0 && drafts[at - 1].id < 0);
      drafts[at] = ended ? Sampled{} : chosen[s];
      previous[s] = std::max(0, drafts[at].id);
      ++specs[s].position;
    }
  }
}

}  // namespace bolt
