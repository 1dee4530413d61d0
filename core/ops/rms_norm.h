// RMSNorm of one group of columns: the scalar definition and its vector forms. Also the norm behind
// Mamba-2's gate.
#pragma once

#include "core/base/cpu.h"

namespace bolt {

// y = (x * rsqrt(mean(x^2) + eps)) * w over n columns; y may be x. Returns false if the sum of
// squares is not finite (y is then without meaning).
using NormGroup = bool (*)(const float* x, const float* w, int n, float eps, float* y);

bool norm_group_portable(const float* x, const float* w, int n, float eps, float* y);
bool norm_group_fma(const float* x, const float* w, int n, float eps, float* y);
bool norm_group_avx2(const float* x, const float* w, int n, float eps, float* y);
bool norm_group_avx512(const float* x, const float* w, int n, float eps, float* y);

NormGroup norm_group_for(Isa isa);

}  // namespace bolt
