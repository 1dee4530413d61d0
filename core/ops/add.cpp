// The residual stream's sum: y = RN(y + x).
#include <algorithm>
#include <functional>

#include "core/base/error.h"
#include "core/ops/host.h"
#include "core/ops/marks.h"

namespace bolt {

void HostOps::add(Rows<const float> x, Rows<float> y) {
  require(x.n_rows == y.n_rows && x.n_cols == y.n_cols, "an addition's shapes agree");
  const auto rows = [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      const float* from = x.row(row);
      float* to = y.row(row);
      for (int i = 0; i < x.n_cols; ++i) to[i] = canonical(to[i] + from[i]);
    }
  };
  pool_.parallel_for(x.n_rows, std::max(1, 32768 / std::max(1, x.n_cols)), std::ref(rows));
}

}  // namespace bolt
