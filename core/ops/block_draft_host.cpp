// The host's twins of the ops of separate drafters: the readable definition, with loops that a
// compiler makes vectors of.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/exact_math.h"
#include "core/ops/block_draft.h"
#include "core/ops/host.h"
#include "core/ops/marks.h"
#include "core/ops/rms_norm.h"
#include "core/ops/rope_angle.h"

namespace bolt {
namespace {

constexpr int kLanes = 16;

// Sums of lane i mod 16, added in order.
float dot(const float* a, const std::uint16_t* b, int n) {
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) lanes[k] += a[i + k] * bf16_to_float(b[i + k]);
  }
  for (; i < n; ++i) lanes[i % kLanes] += a[i] * bf16_to_float(b[i]);
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return sum;
}
float dot(const float* a, const float* b, int n) {
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) lanes[k] += a[i + k] * b[i + k];
  }
  for (; i < n; ++i) lanes[i % kLanes] += a[i] * b[i];
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// One head at one position: cosines and sines [head_dim / 2].
struct Rotation {
  std::vector<float> cosine, sine;
  Rotation(const RopeTable& rope, int position) {
    const auto half = static_cast<std::size_t>(rope.head_dim / 2);
    cosine.resize(half), sine.resize(half);
    for (std::size_t i = 0; i < half; ++i) {
      rope_angle(static_cast<float>(position) * rope.inv_freq[i], &sine[i], &cosine[i]);
      sine[i] *= rope.magnitude, cosine[i] *= rope.magnitude;
    }
  }
  void turn(float* x) const {
    const std::size_t half = cosine.size();
    for (std::size_t i = 0; i < half; ++i) {
      const float low = x[i], high = x[i + half];
      x[i] = low * cosine[i] - high * sine[i];
      x[i + half] = high * cosine[i] + low * sine[i];
    }
  }
};

struct RowPlace {
  const Segment* segment = nullptr;
  int position = 0;
  bool is_live = false;
};
RowPlace place_of(const Batch& batch, int row) {
  for (const Segment& s : batch.segments) {
    const int i = row - s.first_row;
    if (i >= 0 && i < s.n_rows) return {&s, s.first_position + i, i < s.n_live};
  }
  require(false, "a drafter's row belongs to a segment");
  return {};
}

}  // namespace

void HostOps::round_bf16(Rows<const float> x, Rows<float> y) {
  require(x.n_rows == y.n_rows && x.n_cols == y.n_cols, "a rounding's shapes agree");
  for (int r = 0; r < x.n_rows; ++r) {
    for (int i = 0; i < x.n_cols; ++i) y.row(r)[i] = bf16_to_float(float_to_bf16(x.row(r)[i]));
  }
}

void HostOps::embed_but(const Weight& table, int id, const float* row, std::span<const int> ids,
                        Rows<float> x) {
  embed(table, ids, x);
  for (int r = 0; r < x.n_rows; ++r) {
    if (ids[static_cast<std::size_t>(r)] == id) std::copy_n(row, table.n_cols, x.row(r));
  }
}

void HostOps::rope_heads(const Batch& batch, const RopeTable& rope, float eps, Rows<float> q,
                         const float* q_norm, Rows<float> k, const float* k_norm) {
  const NormGroup norm = norm_group_for(isa_);
  pool_.parallel_for(q.n_rows, 4, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      const Rotation rotation(rope, place_of(batch, row).position);
      const auto heads = [&](Rows<float> x, const float* w) {
        for (int first = 0; first < x.n_cols; first += rope.head_dim) {
          float* head = x.row(row) + first;
          if (!norm(head, w, rope.head_dim, eps, head)) mark_row(batch, row);
          rotation.turn(head);
        }
      };
      heads(q, q_norm);
      heads(k, k_norm);
    }
  });
}

void HostOps::put_context(const Batch& batch, int first_row, const RopeTable& rope, float eps,
                          const float* k_norms, const BlockCache& cache, Rows<const float> kv) {
  require(kv.n_cols == 2 * cache.n_layers * cache.n_cols, "a context row holds every layer's");
  const NormGroup norm = norm_group_for(isa_);
  pool_.parallel_for(kv.n_rows, 4, [&](int begin, int end, int) {
    std::vector<float> head(static_cast<std::size_t>(rope.head_dim));
    for (int i = begin; i < end; ++i) {
      const RowPlace place = place_of(batch, first_row + i);
      if (!place.is_live) continue;
      const Rotation rotation(rope, place.position);
      const std::int64_t cell = cache.cell(*place.segment, place.position);
      for (int layer = 0; layer < cache.n_layers; ++layer) {
        const float* k = kv.row(i) + 2 * layer * cache.n_cols;
        const float* v = k + cache.n_cols;
        const std::int64_t at = cache.place(layer, cell);
        for (int first = 0; first < cache.n_cols; first += rope.head_dim) {
          if (!norm(k + first, k_norms + layer * rope.head_dim, rope.head_dim, eps, head.data())) {
            mark_row(batch, first_row + i);
          }
          rotation.turn(head.data());
          for (int d = 0; d < rope.head_dim; ++d) {
            cache.keys[at + first + d] = float_to_bf16(head[static_cast<std::size_t>(d)]);
          }
        }
        for (int d = 0; d < cache.n_cols; ++d) cache.values[at + d] = float_to_bf16(v[d]);
      }
    }
  });
}

void HostOps::block_attention(const Batch& batch, const BlockShape& shape, int layer,
                              const float* sinks, const BlockCache& cache, Rows<const float> q,
                              Rows<const float> kv, Rows<float> y) {
  const int dim = shape.head_dim, heads_of_kv = shape.n_heads / shape.n_kv_heads;
  const float scale = exact_rsqrt(static_cast<float>(dim));
  pool_.parallel_for(q.n_rows * shape.n_heads, 4, [&](int begin, int end, int) {
    std::vector<float> scores;
    for (int item = begin; item < end; ++item) {
      const int row = item / shape.n_heads, head = item % shape.n_heads;
      const RowPlace place = place_of(batch, row);
      const Segment& s = *place.segment;
      const int n_block = shape.is_causal ? row - s.first_row + 1 : s.n_live;
      const int first =
          shape.window > 0 ? std::max(s.first_key, place.position - shape.window + 1) : s.first_key;
      const int n_context = std::max(0, s.first_position - first);
      const int column = head / heads_of_kv * dim;
      const float* query = q.row(row) + head * dim;
      scores.resize(static_cast<std::size_t>(n_context) + static_cast<std::size_t>(n_block));
      float largest = sinks != nullptr ? sinks[head] : -std::numeric_limits<float>::infinity();
      for (int j = 0; j < n_context + n_block; ++j) {
        float sum = 0.0f;
        if (j < n_context) {
          sum = dot(query, cache.keys + cache.place(layer, cache.cell(s, first + j)) + column, dim);
        } else {
          sum = dot(query, kv.row(s.first_row + j - n_context) + column, dim);
        }
        scores[static_cast<std::size_t>(j)] = sum * scale;
        largest = std::max(largest, sum * scale);
      }
      float* out = y.row(row) + head * dim;
      std::fill_n(out, dim, 0.0f);
      float total = sinks != nullptr ? exact_exp(sinks[head] - largest) : 0.0f;
      for (int j = 0; j < n_context + n_block; ++j) {
        const float p = exact_exp(scores[static_cast<std::size_t>(j)] - largest);
        total += p;
        if (j < n_context) {
          const std::uint16_t* v =
              cache.values + cache.place(layer, cache.cell(s, first + j)) + column;
          for (int d = 0; d < dim; ++d) out[d] += p * bf16_to_float(v[d]);
        } else {
          const float* v = kv.row(s.first_row + j - n_context) + cache.n_cols + column;
          for (int d = 0; d < dim; ++d) out[d] += p * v[d];
        }
      }
      if (!is_finite(total)) mark_row(batch, row);
      for (int d = 0; d < dim; ++d) out[d] = canonical(out[d] / total);
    }
  });
}

void HostOps::gate_quantize(Rows<const float> gate, Rows<const float> up, Rows<float> y,
                            bool integer, Operand& operand) {
  pool_.parallel_for(y.n_rows, std::max(1, 8192 / y.n_cols), [&](int begin, int end, int) {
    for (int r = begin; r < end; ++r) {
      for (int i = 0; i < y.n_cols; ++i) {
        y.row(r)[i] = canonical(exact_silu(gate.row(r)[i]) * up.row(r)[i]);
      }
    }
  });
  quantize(y, integer, operand);
}

void HostOps::copy(const void* from, std::uint64_t bytes, void* to) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace bolt
