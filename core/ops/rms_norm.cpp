// RMSNorm over a call's rows. The sums are rms_norm_definition.inc, the vector forms x86/.
#include "core/ops/rms_norm.h"

#include "core/base/error.h"
#include "core/ops/host.h"
#include "core/ops/marks.h"

namespace bolt {

NormGroup norm_group_for(Isa isa) {
  switch (isa) {
    case Isa::avx2:
      return norm_group_avx2;
    case Isa::avx512:
      return norm_group_avx512;
    default:
      return cpu_has_fma() ? norm_group_fma : norm_group_portable;
  }
}

void HostOps::rms_norm(const Batch& batch, Rows<const float> x, const float* w, float eps,
                       int group, Rows<float> y) {
  require(group > 0 && x.n_cols % group == 0, "a norm's groups fill its columns");
  const NormGroup norm = norm_group_for(isa_);
  const int grain = 16384 / x.n_cols + 1;  // rows worth waking another thread for
  pool_.parallel_for(x.n_rows, grain, [&](int begin, int end, int) {
    for (int r = begin; r < end; ++r) {
      for (int first = 0; first < x.n_cols; first += group) {
        if (!norm(x.row(r) + first, w + first, group, eps, y.row(r) + first)) mark_row(batch, r);
      }
    }
  });
}

}  // namespace bolt
