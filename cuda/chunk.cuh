// What the kernels for prompt chunks share (linear_chunk.cu, linear_chunk_float.cu).
#pragma once

#include "cuda/chunk_async.cuh"
#include "cuda/linear_chunk.cuh"

namespace bolt::cuda {

// y = W x of float weights for many rows (linear_chunk_float.cu).
void launch_float_chunk(const LinearArgs& args, Format format, cudaStream_t stream);

// Where a block's rows come from and go to: rows of the call, or places of an expert's slot.
template <bool Slots>
struct Places {
  int first, n_live;
  const std::uint8_t* weights;
  float gain;
  bool gained;

  // False if the block has nothing to do. Every thread of the block calls it.
  BOLT_DEV bool find(const LinearArgs& a, int block, int n_places) {
    first = block * n_places;
    gained = a.gains != nullptr;
    int matrix = 0;
    if (Slots) {
      if (a.n_slots != nullptr && block >= *a.n_slots) return false;
      matrix = a.slot_expert[block];
      // A slot is filled from its first place on.
      const int place = first + static_cast<int>(threadIdx.x);
      n_live =
          __syncthreads_count(static_cast<int>(threadIdx.x) < n_places && a.slot_out[place] >= 0);
    } else {
      n_live = min(n_places, a.n_rows - first);
    }
    weights = a.weights + static_cast<std::int64_t>(matrix) * a.matrix_bytes;
    gain = gained ? a.gains[matrix] : 1.0f;
    return true;
  }
  BOLT_DEV int in(const LinearArgs& a, int i) const {
    return Slots ? a.slot_in[first + i] : first + min(i, n_live - 1);
  }
  BOLT_DEV int out(const LinearArgs& a, int i) const {
    return i >= n_live ? -1 : Slots ? a.slot_out[first + i] : first + i;
  }
  BOLT_DEV int mark(const LinearArgs& a, int i) const {
    return Slots ? a.slot_mark[first + i] : first + i;
  }
};

}  // namespace bolt::cuda
