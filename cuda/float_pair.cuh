// Weights of the float formats as a lane reads them from their tiles.
#pragma once

#include "core/pack/tiles.h"
#include "cuda/device.cuh"

namespace bolt::cuda {

// Float weights of one group: step i holds columns 8i + 2t, 8i + 2t + 1 of chain t.
template <Format F>
BOLT_DEV float2 float_pair(const std::uint8_t* block, int i, int t, int lane) {
  if constexpr (F == Format::f32) {
    const auto* pairs = reinterpret_cast<const float2*>(block + i * 1024);
    return __ldg(pairs + word_index(t, lane));
  } else {
    const std::uint32_t w =
        load_stream(reinterpret_cast<const std::uint32_t*>(block + i * 512) + word_index(t, lane));
    if constexpr (F == Format::bf16) {
      return {__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)};
    } else {
      return {__half2float(__ushort_as_half(static_cast<unsigned short>(w))),
              __half2float(__ushort_as_half(static_cast<unsigned short>(w >> 16)))};
    }
  }
}

}  // namespace bolt::cuda
