// Routed experts (§8): rows are gathered by expert, so that each tile of weights is read once for
// all of them; the combination goes in choice order. An expert's row is the same whoever else is
// there.
#include <algorithm>
#include <functional>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/ops/expert_scratch.h"
#include "core/ops/host.h"
#include "core/ops/linear_kernels.h"
#include "core/ops/marks.h"

namespace bolt {

namespace {

constexpr std::int64_t kScratchBytes = 256
                                       << 20;  // of hidden and output rows; more rows take turns

// Orders the pairs of `n_rows` rows by expert and cuts them into blocks.
void gather(const Moe& moe, int n_rows, ExpertScratch& scratch) {
  const int n_pairs = n_rows * moe.top_k;
  scratch.starts.assign(static_cast<std::size_t>(moe.n_experts) + 1, 0);
  scratch.pairs.resize(static_cast<std::size_t>(n_pairs));
  scratch.rows.resize(static_cast<std::size_t>(n_pairs));
  scratch.blocks.clear();
  int* starts = scratch.starts.data();
  for (int pair = 0; pair < n_pairs; ++pair) {
    ++starts[scratch.choices[static_cast<std::size_t>(pair)].expert + 1];
  }
  for (int expert = 0; expert < moe.n_experts; ++expert) {
    const int count = starts[expert + 1];
    starts[expert + 1] += starts[expert];
    for (int first = 0; first < count; first += kTileWorkRows) {
      scratch.blocks.push_back(
          {expert, starts[expert] + first, std::min(kTileWorkRows, count - first)});
    }
  }
  for (int pair = 0; pair < n_pairs; ++pair) {
    const int place = starts[scratch.choices[static_cast<std::size_t>(pair)].expert]++;
    scratch.pairs[static_cast<std::size_t>(place)] = pair;
    scratch.rows[static_cast<std::size_t>(place)] = pair / moe.top_k;
  }
}

// One of the two projections of all experts: every (block, tile) is one item of work.
//   finish(pair, row, tile, values [32], n): gets a row's sums of a tile, gain applied.
template <class Finish>
void project(ThreadPool& pool, TileKernel kernel, const Weight& w, const OperandRows& x,
             const std::vector<int>& rows, const ExpertScratch& scratch, const Finish& finish) {
  const int tiles = n_tiles(w.n_rows);
  const auto bytes_of_tile = static_cast<std::int64_t>(tile_bytes(w.format, w.n_cols));
  const auto items = [&](int begin, int end, int) {
    alignas(64) float totals[kTileWorkRows * kTileRows];
    for (int item = begin; item < end; ++item) {
      const ExpertBlock& block = scratch.blocks[static_cast<std::size_t>(item / tiles)];
      const int tile = item % tiles, n = std::min(kTileRows, w.n_rows - tile * kTileRows);
      const int* taken = &rows[static_cast<std::size_t>(block.first)];
      kernel({w.matrix(block.expert) + tile * bytes_of_tile, &x, taken, block.n_pairs, totals});
      for (int i = 0; i < block.n_pairs; ++i) {
        float* values = totals + i * kTileRows;
        for (int k = 0; k < kTileRows; ++k) {
          const float sum = w.gains != nullptr ? values[k] * w.gains[block.expert] : values[k];
          values[k] = k < n ? canonical(sum) : 0.0f;
        }
        const auto place = static_cast<std::size_t>(block.first + i);
        finish(scratch.pairs[place], scratch.rows[place], tile, values, n);
      }
    }
  };
  const auto least = static_cast<int>(std::max<std::int64_t>(1, (64 << 10) / bytes_of_tile));
  pool.parallel_for(static_cast<int>(scratch.blocks.size()) * tiles, least, std::ref(items));
}

bool all_finite(const float* values, int n) {
  bool finite = true;
  for (int i = 0; i < n; ++i) finite &= is_finite(values[i]);
  return finite;
}

}  // namespace

// Routes the rows and gathers their pairs by expert.
void HostOps::choose_experts(const Batch& batch, const Moe& moe, Rows<const float> logits,
                             const Operand& operand, ExpertRows taken) {
  const OperandRows& x = static_cast<const HostOperand&>(operand).view();
  ExpertScratch& scratch = *expert_scratch_;
  scratch.choices.resize(static_cast<std::size_t>(taken.n * moe.top_k));
  const auto choose = [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) {
      Choice* choices = &scratch.choices[static_cast<std::size_t>(i * moe.top_k)];
      const int row = taken.first + i;
      if (!route(moe, logits.row(row), choices) || x.nonfinite[row]) mark_row(batch, row);
    }
  };
  pool_.parallel_for(taken.n, 4, std::ref(choose));
  gather(moe, taken.n, scratch);
  if (taken.first > 0) {
    for (int& row : scratch.rows) row += taken.first;
  }
}

// Down, and the combination in choice order, of the rows that were routed.
void HostOps::sum_experts(const Batch& batch, const Moe& moe, const Operand& operand,
                          ExpertRows taken, Rows<float> y) {
  const OperandRows& hidden = static_cast<const HostOperand&>(operand).view();
  const Weight& down = moe.experts_down;
  const LinearKernels& kernels = linear_kernels(isa_);
  ExpertScratch& scratch = *expert_scratch_;
  const auto width = static_cast<std::size_t>(down.n_rows);
  const std::size_t n_pairs = static_cast<std::size_t>(taken.n * moe.top_k);
  if (scratch.outputs.size() < n_pairs * width) scratch.outputs.resize(n_pairs * width);
  project(pool_, kernels.of(down.format), down, hidden, scratch.pairs, scratch,
          [&](int pair, int row, int tile, float* values, int n) {
            if (!all_finite(values, n)) mark_row(batch, row);
            std::copy_n(values, n,
                        &scratch.outputs[static_cast<std::size_t>(pair) * width +
                                         static_cast<std::size_t>(tile) * kTileRows]);
          });
  const auto combine = [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      float* out = y.row(row);
      std::fill_n(out, down.n_rows, 0.0f);
      for (int i = 0; i < moe.top_k; ++i) {
        const auto pair = static_cast<std::size_t>(row * moe.top_k + i);
        kernels.add_scaled(scratch.choices[pair].weight, &scratch.outputs[pair * width],
                           down.n_rows, out);
      }
      for (int k = 0; k < down.n_rows; ++k) out[k] = canonical(out[k]);
    }
  };
  pool_.parallel_for(taken.n, 2, std::ref(combine));
}

void HostOps::experts(const Batch& batch, const Moe& moe, Rows<const float> logits,
                      const Operand& operand, Rows<float> y) {
  const OperandRows& x = static_cast<const HostOperand&>(operand).view();
  const Weight &up = moe.experts_up, &down = moe.experts_down;
  require(up.layout == Layout::tiles && down.layout == Layout::tiles && x.n_cols == up.n_cols &&
              up.n_rows == moe.d_expert && down.n_cols == moe.d_expert && down.n_rows <= y.n_cols &&
              x.n_rows == y.n_rows && logits.n_rows == y.n_rows && logits.n_cols >= moe.n_experts,
          "the experts' shapes agree");
  require(x.integer || !is_integer(up.format), "integer experts' rows are quantised");
  const LinearKernels& kernels = linear_kernels(isa_);
  ExpertScratch& scratch = *expert_scratch_;
  const bool integer = is_integer(down.format);
  const std::int64_t row_bytes =
      static_cast<std::int64_t>(moe.top_k) * (moe.d_expert * (integer ? 3 : 4) + 4 * down.n_rows);
  const int rows_at_once =
      static_cast<int>(std::clamp<std::int64_t>(kScratchBytes / row_bytes, 1, y.n_rows));

  for (int first_row = 0; first_row < y.n_rows; first_row += rows_at_once) {
    const ExpertRows taken{first_row, std::min(rows_at_once, y.n_rows - first_row)};
    const int n_pairs = taken.n * moe.top_k;
    choose_experts(batch, moe, logits, operand, taken);

    HostOperand& hidden = scratch.hidden;
    hidden.reserve(n_pairs, moe.d_expert, integer, !integer);
    hidden.begin(n_pairs, moe.d_expert, integer);
    project(pool_, kernels.of(up.format), up, x, scratch.rows, scratch,
            [&](int pair, int row, int tile, float* values, int n) {
              bool finite = all_finite(values, n);
              for (int k = 0; k < n; ++k) values[k] = exact_relu2(values[k]);
              if (integer) {
                finite &= quantize_group(values, kGroupCols, hidden.group(pair, tile));
              } else {
                std::copy_n(values, kGroupCols, hidden.padded_row(pair) + tile * kGroupCols);
              }
              if (!finite) mark_row(batch, row);
            });
    sum_experts(batch, moe, hidden, taken, y.rows(first_row, taken.n));
  }
}

void HostOps::experts_up(const Batch& batch, const Moe& moe, Rows<const float> logits,
                         const Operand& operand, int first_row, Rows<float> hidden) {
  const OperandRows& x = static_cast<const HostOperand&>(operand).view();
  const Weight& up = moe.experts_up;
  const ExpertRows taken{first_row, hidden.n_rows / moe.top_k};
  require(taken.n * moe.top_k == hidden.n_rows && hidden.n_cols == up.n_rows &&
              first_row + taken.n <= std::min(x.n_rows, logits.n_rows) &&
              logits.n_cols >= moe.n_experts && (x.integer || !is_integer(up.format)),
          "the experts' shapes agree");
  choose_experts(batch, moe, logits, operand, taken);
  if (up.n_rows == 0) return;
  require(up.layout == Layout::tiles && x.n_cols == up.n_cols, "the experts' shapes agree");
  project(pool_, linear_kernels(isa_).of(up.format), up, x, expert_scratch_->rows, *expert_scratch_,
          [&](int pair, int row, int tile, float* values, int n) {
            if (!all_finite(values, n)) mark_row(batch, row);
            float* out = hidden.row(pair) + tile * kTileRows;
            for (int k = 0; k < n; ++k) out[k] = exact_relu2(values[k]);
          });
}

void HostOps::experts_down(const Batch& batch, const Moe& moe, const Operand& operand,
                           int first_row, Rows<float> y) {
  const OperandRows& hidden = static_cast<const HostOperand&>(operand).view();
  const Weight& down = moe.experts_down;
  const int n_pairs = y.n_rows * moe.top_k;
  require(hidden.n_rows == n_pairs &&
              expert_scratch_->choices.size() == static_cast<std::size_t>(n_pairs),
          "the rows' experts were chosen");
  for (int pair = 0; pair < n_pairs; ++pair) {
    if (hidden.nonfinite[pair]) mark_row(batch, first_row + pair / moe.top_k);
  }
  if (down.n_rows == 0) return;
  require(down.layout == Layout::tiles && hidden.n_cols == down.n_cols && y.n_cols == down.n_rows &&
              (hidden.integer || !is_integer(down.format)),
          "the experts' shapes agree");
  sum_experts(batch, moe, operand, {first_row, y.n_rows}, y);
}

}  // namespace bolt
