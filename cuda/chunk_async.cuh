// What the prompt-chunk kernels (linear_chunk.cu) need besides device.cuh: asynchronous copies into
// shared memory, and integer products that leave their sums as floats.
#pragma once

#include "cuda/device.cuh"

namespace bolt::cuda {

// Copies that `copies_commit` gathers into a group; a zero `bytes` writes zeros and reads nothing.
BOLT_DEV void copy_16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(bytes));
}
BOLT_DEV void copy_4(void* to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(bytes));
}
BOLT_DEV void copies_commit() { asm volatile("cp.async.commit_group;"); }
// Until at most `Left` of this thread's groups are on their way.
template <int Left>
BOLT_DEV void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

// `x`, in a register of its own: the compiler would rather work addresses out anew from the
// thread's number, in every round of a loop, than keep them.
BOLT_DEV std::uint32_t pinned(std::uint32_t x) {
  return __shfl_sync(kFullWarp, x, threadIdx.x & 31);
}

// An integer sum D, |D| < 2^22, started at kSumStart is the float kSumBase + D in its bits. So
// fma(sum, s, -kSumBase * s) is RN(D * s) for any s of at most 21 bits: the product with kSumBase
// is exact, and no conversion is needed.
constexpr int kSumStart = 0x4b400000;
constexpr float kSumBase = 0x1.8p23f;

// d = kSumStart + A B, the operands as in device.cuh.
BOLT_DEV void mma_sum_k32(int (&d)[4], const std::uint32_t (&a)[4], uint2 b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(kSumStart));
}
BOLT_DEV void mma_sum_k16(int (&d)[4], const std::uint32_t (&a)[2], std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b), "r"(kSumStart));
}

}  // namespace bolt::cuda
