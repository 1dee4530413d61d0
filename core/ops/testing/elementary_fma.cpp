// The scalar elementary functions, with the processor's fused multiply-add.
#include "core/base/exact_math.h"
#include "core/ops/testing/elementary.h"

namespace bolt {
namespace {

#include "core/ops/testing/elementary_scalar.inc"

}  // namespace

void apply_fma(Elementary f, const float* x, float* y, int n) { apply_scalar(f, x, y, n); }

}  // namespace bolt
