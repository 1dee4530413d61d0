// The linears' definition with the processor's fused multiply-add: the same source, the same bits.
#include "core/base/bits.h"
#include "core/base/exact_math.h"
#include "core/ops/linear_kernels.h"
#include "core/pack/block_values.h"

namespace bolt {

namespace {

#include "core/ops/linear_definition.inc"

}  // namespace

const LinearKernels kLinearFma = kScalarKernels;

}  // namespace bolt
