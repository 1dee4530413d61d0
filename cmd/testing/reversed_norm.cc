// A planted fault: RMSNorm that adds its squares from the last to the first. Linked into
// bolt_reversed alone, in the place of the norm of every instruction set, for the tests that must
// tell such a build by its receipts. The sum is as accurate as the right one, and no less wrong.
#include "core/base/bits.h"
#include "core/base/exact_math.h"

namespace {

bool reversed_norm(const float* x, const float* w, int n, float eps, float* y) {
  float chain[64] = {};
  for (int k = n - 1; k >= 0; --k) chain[k % 64] = bolt::exact_fma(x[k], x[k], chain[k % 64]);
  for (int half = 32; half >= 1; half /= 2) {
    for (int lane = 0; lane < half; ++lane) chain[lane] = chain[lane] + chain[lane + half];
  }
  const float scale = bolt::exact_rsqrt(chain[0] / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) y[i] = (x[i] * scale) * w[i];
  return bolt::is_finite(chain[0]);
}

}  // namespace

// What the linker's --wrap=SYMBOL calls instead (cmd/CMakeLists.txt).
#define BOLT_WRAP(symbol)                                                                       \
  extern "C" bool __wrap_##symbol(const float* x, const float* w, int n, float eps, float* y) { \
    return reversed_norm(x, w, n, eps, y);                                                      \
  }
BOLT_WRAP(_ZN4bolt19norm_group_portableEPKfS1_ifPf)
BOLT_WRAP(_ZN4bolt14norm_group_fmaEPKfS1_ifPf)
BOLT_WRAP(_ZN4bolt15norm_group_avx2EPKfS1_ifPf)
BOLT_WRAP(_ZN4bolt17norm_group_avx512EPKfS1_ifPf)
