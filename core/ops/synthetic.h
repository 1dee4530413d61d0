// Made-up weights and rows from a counter: the same on every machine, for the contract's vectors,
// the benchmark and the tests. Nothing of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "core/pack/graph.h"

namespace bolt {

// 64 mixed bits of a counter (the finaliser of MurmurHash3, Appleby).
std::uint64_t mix64(std::uint64_t counter);

// The i-th number of stream `seed`, evenly spread over [-1, 1), a multiple of 2^-23: exact, so that
// every machine agrees without an agreement on how to round.
float even_float(std::uint64_t seed, std::uint64_t i);
std::vector<float> even_floats(std::uint64_t seed, int n, float scale = 1.0f);

// The same with what arithmetic gets wrong planted among them: magnitudes of 2^-140 to 2^40, both
// zeros, subnormals, and whole runs of 32 below the quantiser's threshold of 2^-120.
std::vector<float> planted_floats(std::uint64_t seed, int n);

// A tiled weight that owns its bytes; `weight` points into them.
struct SyntheticWeight {
  std::vector<std::byte> storage;
  std::vector<float> gains;
  Weight weight;

  SyntheticWeight() = default;
  SyntheticWeight(SyntheticWeight&&) = default;
  SyntheticWeight& operator=(SyntheticWeight&&) = default;
};
// Values of about `scale`, every code of the format, any shape.
SyntheticWeight synthetic_weight(Format format, int n_matrices, int n_rows, int n_cols,
                                 std::uint64_t seed, float scale = 1.0f);
// A plain f32 one, [n_rows, n_cols].
SyntheticWeight plain_weight(std::vector<float> values, int n_rows, int n_cols);

// What element (row, column) of matrix m means, exactly; in double since a gain may be applied.
// The inverse of the packing, written apart from the kernels.
double weight_value(const Weight& weight, int m, int row, int column);

}  // namespace bolt
