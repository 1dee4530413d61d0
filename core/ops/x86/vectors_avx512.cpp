// Norms, Mamba-2, attention and the sampler with AVX-512.
#include <immintrin.h>

#include "core/base/bits.h"
#include "core/base/exact_math.h"
#include "core/ops/attention.h"
#include "core/ops/mamba.h"
#include "core/ops/rms_norm.h"
#include "core/ops/sample.h"

namespace bolt {
namespace {

#include "core/ops/x86/vec.h"
// The rest builds on it.
#include "core/ops/x86/vec_math.h"
// In any order.
#include "core/ops/x86/attention_vec.inc"
#include "core/ops/x86/mamba_vec.inc"
#include "core/ops/x86/rms_norm_vec.inc"
#include "core/ops/x86/sample_vec.inc"

}  // namespace

const AttentionKernels kAttentionAvx512 = {tile_i16, merge_i16};
const AttentionKernels kAttentionF32Avx512 = {tile_f32, merge_f32};
const MambaKernels kMambaAvx512 = {conv_rows, step_sizes, scan_rows, gate_row};
const SampleKernels kSampleAvx512 = {largest, divide, collect, exp_below, sum_exp, gumbel};

bool norm_group_avx512(const float* x, const float* w, int n, float eps, float* y) {
  return norm_group(x, w, n, eps, y);
}

}  // namespace bolt
