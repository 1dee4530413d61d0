// Which instruction sets the host kernels may use, and how many threads. Detection only.
#pragma once

#include <string_view>

namespace bolt {

// How, never what: every choice gives the same bits.
enum class Isa { automatic, scalar, avx2, avx512 };

// avx2 needs AVX2, FMA and F16C; avx512 needs F, BW, VL, DQ, VNNI and VBMI, and the OS's consent.
bool cpu_has(Isa isa);
// The best one this processor has, or `wanted`; throws Error(usage) if it lacks `wanted`.
Isa resolve_isa(Isa wanted);
const char* isa_name(Isa isa);

// Whether a scalar fused multiply-add is one instruction here (it needs AVX and FMA). The scalar
// twins are built twice, with it and without, from one source: the same bits, without a call a
// step.
bool cpu_has_fma();

// Cores this process may run on (affinity and cgroup quota, rounded up), at least 1.
int usable_cores();

// Keeps the calling thread, and those that it starts, to its part of the cores that the process may
// run on, where these lie in several memory nodes: part `part` of n_parts in the order of the
// nodes, so that what a part's threads write first lies in their own memory. Elsewhere nothing is
// done.
void keep_to_node_share(int part, int n_parts);

}  // namespace bolt
