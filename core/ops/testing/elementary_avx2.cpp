// The elementary functions' vector forms.
#include <immintrin.h>

#include "core/base/bits.h"
#include "core/base/exact_math.h"
#include "core/ops/testing/elementary.h"

namespace bolt {
namespace {

#include "core/ops/x86/vec.h"
// The rest builds on it.
#include "core/ops/x86/vec_math.h"
// These on both.
#include "core/ops/testing/elementary_scalar.inc"
#include "core/ops/testing/elementary_vector.inc"

}  // namespace

void apply_avx2(Elementary f, const float* x, float* y, int n) { apply_vectors(f, x, y, n); }

}  // namespace bolt
