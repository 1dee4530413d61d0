// y = W x (§4): tiles shared out over the threads, gain and epilogue. The sums are the kernels'.
#include <algorithm>
#include <functional>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/ops/host.h"
#include "core/ops/linear_kernels.h"
#include "core/ops/marks.h"

namespace bolt {

namespace {

constexpr std::int64_t kRunBytes = 64 << 10;  // weight bytes that are worth handing to a thread

// One call's operands, the same for all tiles.
struct LinearCall {
  const Batch& batch;
  const OperandRows& x;
  const Weight& w;
  Epilogue epilogue;
  Rows<float> y;

  // Applies gain and epilogue to one row's sums of a tile: columns [first, first + n) of y.
  void finish(const float* totals, int row, int first, int n) const {
    const float* gain = w.gains;
    float* out = y.row(row) + first;
    bool finite = !x.nonfinite[row];
    for (int i = 0; i < n; ++i) {
      const float sum = canonical(gain != nullptr ? totals[i] * *gain : totals[i]);
      finite &= is_finite(sum);
      switch (epilogue) {
        case Epilogue::store:
          out[i] = sum;
          break;
        case Epilogue::add:
          out[i] = canonical(out[i] + sum);
          break;
        case Epilogue::relu2:
          out[i] = exact_relu2(sum);
          break;
      }
    }
    if (!finite) mark_row(batch, row);
  }
};

}  // namespace

void HostOps::linear(const Batch& batch, const Operand& operand, const Weight& w, Epilogue epilogue,
                     Rows<float> y) {
  const OperandRows& x = static_cast<const HostOperand&>(operand).view();
  require(w.layout == Layout::tiles && w.n_matrices == 1, "a linear's weight is one tiled matrix");
  require(x.n_cols == w.n_cols && y.n_rows == x.n_rows && y.n_cols >= w.n_rows,
          "a linear's shapes agree");
  require(x.integer || !is_integer(w.format), "an integer linear's rows are quantised");
  const LinearCall call{batch, x, w, epilogue, y};
  const TileKernel kernel = linear_kernels(isa_).of(w.format);
  const auto bytes_of_tile = static_cast<std::int64_t>(tile_bytes(w.format, w.n_cols));
  const int n_row_blocks = (x.n_rows + kTileWorkRows - 1) / kTileWorkRows;
  const auto items = [&](int begin, int end, int) {
    alignas(64) float totals[kTileWorkRows * kTileRows];
    int rows[kTileWorkRows];
    for (int item = begin; item < end; ++item) {
      const int tile = item / n_row_blocks, first_row = item % n_row_blocks * kTileWorkRows;
      const int n_rows = std::min(kTileWorkRows, x.n_rows - first_row);
      for (int i = 0; i < n_rows; ++i) rows[i] = first_row + i;
      kernel({w.data + tile * bytes_of_tile, &x, rows, n_rows, totals});
      const int first = tile * kTileRows, n = std::min(kTileRows, w.n_rows - first);
      for (int i = 0; i < n_rows; ++i) {
        call.finish(totals + i * kTileRows, first_row + i, first, n);
      }
    }
  };
  const std::int64_t work = bytes_of_tile * std::max(1, std::min(x.n_rows, kTileWorkRows) / 4);
  pool_.parallel_for(
      n_tiles(w.n_rows) * n_row_blocks,
      static_cast<int>(std::max<std::int64_t>(1, kRunBytes / std::max<std::int64_t>(1, work))),
      std::ref(items));
}

}  // namespace bolt
