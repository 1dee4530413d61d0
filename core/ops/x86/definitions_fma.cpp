// The definitions of norms, Mamba-2, attention and the sampler with the processor's fused
// multiply-add: the same source, the same bits.
#include "core/base/bits.h"
#include "core/base/exact_math.h"
#include "core/ops/attention.h"
#include "core/ops/mamba.h"
#include "core/ops/rms_norm.h"
#include "core/ops/sample.h"

namespace bolt {
namespace {

#include "core/ops/attention_definition.inc"
#include "core/ops/mamba_definition.inc"
#include "core/ops/rms_norm_definition.inc"
#include "core/ops/sample_definition.inc"

}  // namespace

const AttentionKernels kAttentionFma = {tile_i16, merge_i16};
const AttentionKernels kAttentionF32Fma = {tile_f32, merge_f32};
const MambaKernels kMambaFma = {conv_rows, step_sizes, scan_rows, gate_row};
const SampleKernels kSampleFma = {largest, divide, collect, exp_below, sum_exp, gumbel};

bool norm_group_fma(const float* x, const float* w, int n, float eps, float* y) {
  return norm_group(x, w, n, eps, y);
}

}  // namespace bolt
