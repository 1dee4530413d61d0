// Kernels of ranks: columns in and out of what is exchanged, and experts' rows by pair.
#pragma once

#include <cuda_runtime.h>

#include "core/base/rows.h"

namespace bolt::cuda {

struct SlotArgs;

// By place of a slot: the (row, choice) pair whose row goes in, an empty place's is its slot's
// first; and the pair whose row comes out, -1 where the place is empty.
struct SlotPairs {
  int *in = nullptr, *out = nullptr;  // [max_slots * slot_rows]
};
void launch_slot_pairs(const SlotArgs& slots, const SlotPairs& pairs, cudaStream_t stream);

// packed [n_rows, slice] = the rank's columns; what lies past the last of all is left.
void launch_pack(Rows<const float> rows, int slice, int rank, float* packed, cudaStream_t stream);
// The others' columns of rows from packed [n_ranks, n_rows, slice].
void launch_unpack(const float* packed, int slice, int rank, Rows<float> rows, cudaStream_t stream);

}  // namespace bolt::cuda
