// Kernels of the linear layers (§4), one per weight format and instruction set, all equal in bits.
// The readable definition is linear_definition.inc; the fast forms lie in core/ops/x86.
#pragma once

#include <cstddef>

#include "core/base/cpu.h"
#include "core/ops/operand.h"
#include "core/pack/graph.h"

namespace bolt {

inline constexpr int kTileWorkRows = 128;  // most rows of one call: their sums stay in the L1 cache

// One tile of 32 outputs against some rows of an operand.
struct TileWork {
  const std::byte* blocks;  // the tile's blocks, x->n_groups of them
  const OperandRows* x;
  const int* rows;  // which rows of x; [n_rows]
  int n_rows;       // 1 to kTileWorkRows
  float* totals;    // [n_rows][32], 64-byte aligned: `tot` of §4, before the gain
};
using TileKernel = void (*)(const TileWork& work);

struct LinearKernels {
  TileKernel f32, bf16, f16, q8, nvfp4;
  TileKernel (*block)(Format format);                            // fp8 and GGUF's blocks
  void (*add_scaled)(float w, const float* x, int n, float* y);  // y = fma(w, x, y)

  TileKernel of(Format format) const {
    switch (format) {
      case Format::f32:
        return f32;
      case Format::bf16:
        return bf16;
      case Format::f16:
        return f16;
      case Format::q8:
        return q8;
      case Format::nvfp4:
        return nvfp4;
      default:
        return block(format);
    }
  }
};

// x86/linear_blocks_avx2.cpp's and x86/linear_blocks_avx512.cpp's.
TileKernel block_kernel_avx2(Format format);
TileKernel block_kernel_avx512(Format format);

const LinearKernels& linear_kernels(Isa isa);  // a resolved one

// Each is defined by the file of its name.
extern const LinearKernels kLinearPortable, kLinearFma, kLinearAvx2, kLinearAvx512;

}  // namespace bolt
