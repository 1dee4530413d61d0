// Mamba-2: how a call's rows go through the steps of §6 (mamba_definition.inc; vector forms in
// x86/mamba_*.cpp, device twin in cuda/), and the recurrent cache.
//
// A sequence's stored state lies behind: a call first replays the rows of the last window that were
// kept, then steps its own, and stores the state after those that are sure. Both are the same scan,
// so a rejected draft only changes a count.
#include "core/ops/mamba.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/base/error.h"
#include "core/ops/host.h"
#include "core/ops/marks.h"
#include "core/ops/rms_norm.h"

namespace bolt {
namespace {

constexpr int kPieceRows = 64;      // rows whose convolution is held at once: L2 keeps them
constexpr int kBlockDims = 16;      // dims of a head stepped together: L1 keeps their state
constexpr int kBlockFloats = 4096;  // most state of a block
constexpr int kBlockChannels = 64;

bool clamps(const Mamba2& node) { return std::isfinite(node.dt_max) && node.dt_max > 0.0f; }

// Rows [first, first + n) of a segment's lagging and new rows, counted from the first lagging one.
struct Piece {
  const Segment* segment;
  int first, n;
  int offset;  // of its rows in the call's scratch
};

}  // namespace

const MambaKernels& mamba_kernels_for(Isa isa) {
  switch (isa) {
    case Isa::avx2:
      return kMambaAvx2;
    case Isa::avx512:
      return kMambaAvx512;
    default:
      return cpu_has_fma() ? kMambaFma : kMambaPortable;
  }
}

HostMambaCache::HostMambaCache(const Mamba2& node, int n_slots)
    : node_(node),
      d_conv_(node.d_conv()),
      n_h_(std::int64_t{node.d_inner()} * node.d_state),
      n_conv_(std::int64_t{node.conv_kernel - 1} * d_conv_),
      n_slot_((n_h_ + n_conv_ + std::int64_t{kWindowRowsMax - 1} * lag_cols() + 15) / 16 * 16),
      n_kept_(static_cast<std::size_t>(n_slots)) {
  require(node.d_state > 0 && node.d_state <= kBlockFloats, "0 < d_state <= 4096");
  require(node.conv_kernel >= 1 && node.n_ssm_groups > 0 && node.n_heads % node.n_ssm_groups == 0,
          "a Mamba-2 layer's heads fill its groups");
  require(node.conv_w.data != nullptr, "a Mamba-2 layer's weights are mapped before its cache");
  taps_.resize(static_cast<std::size_t>(node.conv_kernel) * d_conv_);
  for (int c = 0; c < d_conv_; ++c) {
    for (int k = 0; k < node.conv_kernel; ++k) {
      taps_[static_cast<std::size_t>(k) * d_conv_ + c] =
          node.conv_w.as_f32()[c * node.conv_kernel + k];
    }
  }
  // calloc's zero pages cost nothing until a slot is used.
  const auto n = static_cast<std::size_t>(n_slot_) * static_cast<std::size_t>(n_slots);
  memory_.reset(static_cast<float*>(std::calloc(std::max<std::size_t>(n, 1), sizeof(float))));
  if (memory_ == nullptr) {
    throw Error(Exit::fault, "out of memory: " + std::to_string(n * sizeof(float)) +
                                 " bytes for recurrent state");
  }
}

void HostMambaCache::Free::operator()(float* p) const noexcept { std::free(p); }

void HostMambaCache::reset(int slot) {
  std::fill_n(h(slot), n_h_, 0.0f);
  std::fill_n(conv(slot), n_conv_, 0.0f);
  n_kept_[slot] = 0;
}

void HostMambaCache::copy(int from_slot, int to_slot) {
  n_kept_[to_slot] = n_kept_[from_slot];
  std::copy_n(part(from_slot), n_h_ + n_conv_ + std::int64_t{n_kept(from_slot)} * lag_cols(),
              part(to_slot));
}

void HostMambaCache::read(int slot, int n_lag, std::vector<float>& state) const {
  const float *state_of = part(slot), *conv_of = state_of + n_h_, *lag_of = conv_of + n_conv_;
  const MambaKernels& kernels = mamba_kernels_for(Isa::scalar);
  require(n_lag >= 0 && n_lag <= n_kept(slot), "replayed rows are among the kept ones");
  const int d_inner = node_.d_inner(), n_taps = node_.conv_kernel, cols = lag_cols();
  std::vector<float> h(state_of, state_of + n_h_), v(d_conv_), dt(node_.n_heads), dA(node_.n_heads);
  std::vector<const float*> raw;
  for (int k = 0; k < n_taps - 1; ++k)
    raw.push_back(conv_of + static_cast<std::int64_t>(k) * d_conv_);
  for (int i = 0; i < n_lag; ++i) raw.push_back(lag_of + static_cast<std::int64_t>(i) * cols);
  for (int i = 0; i < n_lag; ++i) {
    kernels.conv(raw.data() + i + n_taps - 1, 1, n_taps, taps_.data(), node_.conv_b.as_f32(),
                 d_conv_, 0, d_conv_, v.data(), d_conv_);
    kernels.steps(raw[i + n_taps - 1] + d_conv_, node_.dt_bias.as_f32(), node_.A.as_f32(),
                  node_.n_heads, clamps(node_), node_.dt_min, node_.dt_max, dt.data(), dA.data());
    for (int head = 0; head < node_.n_heads; ++head) {
      const int group = head / (node_.n_heads / node_.n_ssm_groups);
      ScanArgs a;
      a.h = h.data() + static_cast<std::int64_t>(head) * node_.head_dim * node_.d_state;
      a.n_rows = 1, a.n_dims = node_.head_dim, a.d_state = node_.d_state;
      a.x = v.data() + head * node_.head_dim;
      a.B = v.data() + d_inner + group * node_.d_state;
      a.C = a.B + node_.n_ssm_groups * node_.d_state;
      a.dt = &dt[head], a.dA = &dA[head];
      kernels.scan(a);
    }
  }
  state = std::move(h);
  for (int k = 0; k < n_taps - 1; ++k) {
    const float* row = raw[n_lag + k];
    state.insert(state.end(), row, row + d_conv_);
  }
}

std::unique_ptr<MambaCache> HostOps::mamba_cache(const Mamba2& node, int n_slots) {
  return std::make_unique<HostMambaCache>(node, n_slots);
}

void HostOps::mamba(const Batch& batch, const Mamba2& node, float eps, MambaCache& any_cache,
                    Rows<const float> zxbcdt, Rows<float> y) {
  auto& cache = static_cast<HostMambaCache&>(any_cache);
  const MambaKernels& kernels = mamba_kernels_for(isa_);
  const int d_inner = node.d_inner(), d_conv = node.d_conv(), n_history = node.conv_kernel - 1;
  const int d_state = node.d_state, n_heads = node.n_heads;
  require(zxbcdt.n_cols == node.d_in_proj() && y.n_cols == d_inner,
          "Mamba-2's rows have its shape");

  // raw[s]: the segment's rows before (history), lagging and new, as pointers to xBC | dt.
  std::vector<std::vector<const float*>> raw(batch.segments.size());
  std::vector<std::vector<Piece>> rounds;  // pieces that may run at the same time
  for (std::size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    const int slot = segment.slot;
    require(slot >= 0 && slot < cache.n_slots(), "a segment's slot is one of the cache's");
    require(segment.n_lag >= 0 && segment.n_lag <= cache.n_kept(slot),
            "replayed rows are among the kept ones");
    require(segment.n_sure >= 0 && segment.n_sure <= segment.n_live &&
                segment.n_live <= segment.n_rows &&
                segment.n_live - segment.n_sure < kWindowRowsMax,
            "n_sure <= n_live <= n_rows and at most 31 rows lag");
    for (int k = 0; k < n_history; ++k)
      raw[s].push_back(cache.conv(slot) + static_cast<std::int64_t>(k) * d_conv);
    for (int i = 0; i < segment.n_lag; ++i) raw[s].push_back(cache.lag_row(slot, i));
    for (int r = 0; r < segment.n_rows; ++r) {
      raw[s].push_back(zxbcdt.row(segment.first_row + r) + d_inner);
    }
    // Whole pieces while the state is being stored in place; the last takes all that is left.
    const int total = segment.n_lag + segment.n_rows, stored_at = segment.n_lag + segment.n_sure;
    for (int first = 0, p = 0; first < total; ++p) {
      const int n = first + kPieceRows <= stored_at ? kPieceRows : total - first;
      if (static_cast<std::size_t>(p) == rounds.size()) rounds.emplace_back();
      rounds[p].push_back({&segment, first, n, 0});
      first += n;
    }
  }

  const int n_blocks = (d_conv + kBlockChannels - 1) / kBlockChannels;
  const int block_dims = std::clamp(kBlockFloats / d_state, 1, kBlockDims);
  const int dim_blocks = (node.head_dim + block_dims - 1) / block_dims;
  const std::int64_t cols = d_conv + 2 * n_heads;  // v | dt | dA
  for (std::vector<Piece>& pieces : rounds) {
    int n_rows = 0;
    for (Piece& piece : pieces) piece.offset = n_rows, n_rows += piece.n;
    if (mamba_scratch_.size() < static_cast<std::size_t>(n_rows * cols))
      mamba_scratch_.resize(n_rows * cols);
    float* scratch = mamba_scratch_.data();

    // Convolution and step sizes. The last unit of a piece is its step sizes.
    const int conv_units = static_cast<int>(pieces.size()) * (n_blocks + 1);
    const int mean_rows = n_rows / static_cast<int>(pieces.size()) + 1;
    pool_.parallel_for(conv_units, std::max(1, 128 / mean_rows), [&](int begin, int end, int) {
      for (int unit = begin; unit < end; ++unit) {
        const Piece& piece = pieces[unit / (n_blocks + 1)];
        const int block = unit % (n_blocks + 1);
        const float* const* rows =
            raw[piece.segment - batch.segments.data()].data() + n_history + piece.first;
        float* out = scratch + piece.offset * cols;
        if (block < n_blocks) {
          const int first = block * kBlockChannels;
          kernels.conv(rows, piece.n, node.conv_kernel, cache.taps(), node.conv_b.as_f32(), d_conv,
                       first, std::min(kBlockChannels, d_conv - first), out, cols);
        } else {
          for (int t = 0; t < piece.n; ++t) {
            float* dt = out + t * cols + d_conv;
            kernels.steps(rows[t] + d_conv, node.dt_bias.as_f32(), node.A.as_f32(), n_heads,
                          clamps(node), node.dt_min, node.dt_max, dt, dt + n_heads);
          }
        }
      }
    });

    // The recurrence, one block of dims after the other.
    const int units = static_cast<int>(pieces.size()) * n_heads * dim_blocks;
    const int grain = std::max(1, 32768 / (mean_rows * block_dims * d_state));
    pool_.parallel_for(units, grain, [&](int begin, int end, int) {
      alignas(64) float ahead[kBlockFloats];  // state past the stored one
      for (int unit = begin; unit < end; ++unit) {
        const Piece& piece = pieces[unit / (n_heads * dim_blocks)];
        const Segment& segment = *piece.segment;
        const int head = unit / dim_blocks % n_heads, first_dim = unit % dim_blocks * block_dims;
        const int group = head / (n_heads / node.n_ssm_groups);
        const int dim = head * node.head_dim + first_dim;  // among the inner ones
        ScanArgs a;
        a.n_dims = std::min(block_dims, node.head_dim - first_dim);
        a.d_state = d_state, a.stride = cols, a.head_stride = cols, a.y_stride = y.stride;
        a.D = node.D.as_f32()[head];
        // Steps rows [from, to) of the piece; only new rows give an output.
        auto step = [&](int from, int to, float* h, bool output) {
          if (from >= to) return;
          const float* v = scratch + (piece.offset + from) * cols;
          a.h = h, a.n_rows = to - from;
          a.x = v + dim;
          a.B = v + d_inner + group * d_state;
          a.C = a.B + node.n_ssm_groups * d_state;
          a.dt = v + d_conv + head, a.dA = a.dt + n_heads;
          a.y = output ? y.row(segment.first_row + piece.first + from - segment.n_lag) + dim
                       : nullptr;
          kernels.scan(a);
        };
        float* h = cache.h(segment.slot) + static_cast<std::int64_t>(dim) * d_state;
        const int lag_end = std::clamp(segment.n_lag - piece.first, 0, piece.n);
        const int stored = std::clamp(segment.n_lag + segment.n_sure - piece.first, 0, piece.n);
        step(0, lag_end, h, false);
        step(lag_end, stored, h, true);
        if (stored < piece.n) {
          std::memcpy(ahead, h, sizeof(float) * a.n_dims * d_state);
          step(stored, piece.n, ahead, true);
        }
      }
    });
  }

  // Gate and grouped norm, in place.
  const NormGroup norm = norm_group_for(isa_);
  const int group_cols = d_inner / node.n_ssm_groups;
  pool_.parallel_for(batch.n_rows, 8192 / d_inner + 1, [&](int begin, int end, int) {
    for (int r = begin; r < end; ++r) {
      kernels.gate(zxbcdt.row(r), d_inner, y.row(r));
      if (!node.gate_norm.present()) continue;
      for (int first = 0; first < d_inner; first += group_cols) {
        if (!norm(y.row(r) + first, node.gate_norm.as_f32() + first, group_cols, eps,
                  y.row(r) + first)) {
          mark_row(batch, r);
        }
      }
    }
  });

  // What the next call needs: the raw inputs before the stored state, and the rows after it.
  for (std::size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    const int stored_at = segment.n_lag + segment.n_sure;
    if (stored_at > 0 && n_history > 0) {
      std::vector<float>& history = mamba_scratch_;  // through scratch: the rows may overlap
      if (history.size() < static_cast<std::size_t>(n_history) * d_conv)
        history.resize(static_cast<std::size_t>(n_history) * d_conv);
      for (int k = 0; k < n_history; ++k) {
        std::memcpy(history.data() + static_cast<std::int64_t>(k) * d_conv, raw[s][stored_at + k],
                    sizeof(float) * d_conv);
      }
      std::memcpy(cache.conv(segment.slot), history.data(), sizeof(float) * n_history * d_conv);
    }
    for (int i = segment.n_sure; i < segment.n_live; ++i) {
      std::memcpy(cache.lag_row(segment.slot, i - segment.n_sure),
                  raw[s][n_history + segment.n_lag + i], sizeof(float) * cache.lag_cols());
    }
    cache.set_n_kept(segment.slot, segment.n_live - segment.n_sure);
  }
}

}  // namespace bolt
