// Choosing a token from a row of logits, §9: the loops over a vocabulary that each instruction set
// provides, and the noise. The rules are sample.cpp.
#pragma once

#include <cstdint>

#include "core/base/cpu.h"

namespace bolt {

struct SampleKernels {
  // The largest of x, -inf if n is 0; *bad is set if x holds a NaN or +Inf.
  float (*largest)(const float* x, int n, bool* bad);
  // y = x / divisor
  void (*divide)(const float* x, int n, float divisor, float* y);
  // The columns of x at or above `least`, ascending; returns how many. columns has room for n.
  int (*collect)(const float* x, int n, float least, int* columns);
  // y = exp(x - largest)
  void (*exp_below)(const float* x, int n, float largest, float* y);
  // The lane sum of exp(x - largest).
  float (*sum_exp)(const float* x, int n, float largest);
  // Standard Gumbel noise -log(-log((x + 1/2) / 2^23)) of 23-bit x.
  void (*gumbel)(const std::uint32_t* x, int n, float* g);
};

extern const SampleKernels kSamplePortable, kSampleFma, kSampleAvx2, kSampleAvx512;
const SampleKernels& sample_kernels_for(Isa isa);

}  // namespace bolt
