// Device primitives the kernels share: rounded arithmetic by name, wide loads, tensor-core integer
// products, programmatic dependent launch. No kernel lives here.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/base/exact_math.h"

namespace bolt::cuda {

#define BOLT_DEV __device__ __forceinline__

constexpr unsigned kFullWarp = 0xffffffffu;

BOLT_DEV float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
BOLT_DEV float mul_rn(float a, float b) { return __fmul_rn(a, b); }
BOLT_DEV float add_rn(float a, float b) { return __fadd_rn(a, b); }
BOLT_DEV bool finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// Weights are read once: keep them out of L1.
BOLT_DEV std::uint32_t load_stream(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
BOLT_DEV uint4 load_stream4(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Programmatic dependent launch: `wait` returns when every earlier kernel's writes are visible;
// before it a kernel may touch only what no kernel writes (weights). No-ops below sm_90.
BOLT_DEV void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
BOLT_DEV void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// d += A B for int8 A [16, 32] and B [32, 8]: rows g and g + 8, columns 2t and 2t + 1 of lane 4g +
// t.
BOLT_DEV void mma_s8_k32(int (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                         std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The same for 16 of K: one half of a group of 32.
BOLT_DEV void mma_s8_k16(int (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// PRMT with the sign-replicate bit of each selector nibble, which __byte_perm masks off.
BOLT_DEV std::uint32_t prmt_raw(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  std::uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

// Eight e2m1 codes (nibble p = slot p, never -0) to twice their values plus 12, by halves of a
// group: slots 0, 1, 4, 5 and 2, 3, 6, 7. The tables hold 12 + 0,1,2,3,4,6,8,12 and 12 - the same;
// a selector nibble with its top bit set replicates a sign bit, which is 0 in both: so each table
// yields v + 12 for its own sign and 0 for the other. The tables' first words are kept in
// registers: an instruction takes one constant, and the compiler would load the other anew for
// each.
struct E2m1Tables {
  std::uint32_t positive, negative;
  BOLT_DEV E2m1Tables() {
    asm volatile("mov.u32 %0, 0x0f0e0d0c;" : "=r"(positive));
    asm volatile("mov.u32 %0, 0x090a0b0c;" : "=r"(negative));
  }
};
BOLT_DEV void e2m1_halves_plus_12(const E2m1Tables& tables, std::uint32_t codes,
                                  std::uint32_t& half0, std::uint32_t& half1) {
  constexpr std::uint32_t kPositive1 = 0x18141210u, kNegative1 = 0x00040608u;
  const std::uint32_t c0 = __byte_perm(codes, 0, 0x4420), c1 = __byte_perm(codes, 0, 0x4431);
  half0 = prmt_raw(tables.positive, kPositive1, c0) |
          prmt_raw(tables.negative, kNegative1, c0 ^ 0x8888u);
  half1 = prmt_raw(tables.positive, kPositive1, c1) |
          prmt_raw(tables.negative, kNegative1, c1 ^ 0x8888u);
}
// Bytes less 12; the borrowed top bit keeps bytes apart.
BOLT_DEV std::uint32_t minus_12(std::uint32_t bytes) {
  return ((bytes | 0x80808080u) - 0x0c0c0c0cu) ^ 0x80808080u;
}

// An e4m3 scale (never negative, never NaN) times 2^-8: its bits as the top of a binary16.
BOLT_DEV float e4m3_scale(std::uint32_t code) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(code << 7)));
}

BOLT_DEV float warp_max(float v) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(kFullWarp, v, m));
  return v;
}

}  // namespace bolt::cuda
