// The linears' definition for any processor; which kernels an instruction set uses.
#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/exact_math.h"
#include "core/ops/linear_kernels.h"
#include "core/pack/block_values.h"

namespace bolt {

namespace {

#include "core/ops/linear_definition.inc"

}  // namespace

const LinearKernels kLinearPortable = kScalarKernels;

const LinearKernels& linear_kernels(Isa isa) {
  require(isa != Isa::automatic, "the instruction set is a resolved one");
  if (isa == Isa::avx512) return kLinearAvx512;
  if (isa == Isa::avx2) return kLinearAvx2;
  return cpu_has_fma() ? kLinearFma : kLinearPortable;
}

}  // namespace bolt
