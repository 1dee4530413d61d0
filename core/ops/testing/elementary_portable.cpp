// The scalar elementary functions, for any processor.
#include "core/base/exact_math.h"
#include "core/ops/testing/elementary.h"

namespace bolt {
namespace {

#include "core/ops/testing/elementary_scalar.inc"

}  // namespace

void apply_portable(Elementary f, const float* x, float* y, int n) { apply_scalar(f, x, y, n); }

}  // namespace bolt
