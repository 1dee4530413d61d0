// Mamba-2 (arithmetic.md §6) for few rows in one kernel: a block convolves the channels that its
// head's dims and states need (a group's B and C by every block of the group: cheap next to a
// launch), runs the recurrence with its state in registers, and the group's last block to end moves
// the convolution's cache on, which nobody reads any more, and norms the group.
#include "core/base/error.h"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/mamba.cuh"

namespace bolt::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTaps = 4;
constexpr int kDims = 32;        // head dims of a block
constexpr int kChunk = 8;        // rows convolved at once
constexpr int kGroupMax = 2048;  // channels of a group that the last block can norm
constexpr int kNormRows = 2;

// The raw input of channel `c` (of d_conv) at row i of a segment; rows below 0 are the cache's.
struct Raw {
  const float* fresh;
  const float* cache;
  std::int64_t fresh_stride, cache_stride;
  BOLT_DEV float operator()(int i) const {
    return i >= 0 ? fresh[i * fresh_stride] : __ldcg(cache + i * cache_stride);
  }
};
BOLT_DEV float* conv_cache(const MambaArgs& a, const SegmentView& s, int channel) {
  return a.raw + static_cast<std::int64_t>(s.slot) * (kTaps - 1 + kLagRowsMax) * a.d_conv + channel;
}
BOLT_DEV Raw raw_of(const MambaArgs& a, const SegmentView& s, int channel) {
  return {a.zxbcdt + s.first_row * a.zxbcdt_stride + a.d_inner + channel,
          conv_cache(a, s, channel) + static_cast<std::int64_t>(kTaps - 1 + s.n_lag) * a.d_conv,
          a.zxbcdt_stride, a.d_conv};
}
BOLT_DEV float* step_cache(const MambaArgs& a, const SegmentView& s, int head) {
  return a.raw_dt + static_cast<std::int64_t>(s.slot) * kLagRowsMax * a.n_heads + head;
}

// Moves the caches of a group's channels and heads on. Sources lie at or after their places, so an
// ascending copy may work in place, some at a time.
BOLT_DEV void move_caches(const MambaArgs& a, const SegmentView& s, int group) {
  const int heads = a.n_heads / a.n_ssm_groups, width = heads * a.head_dim;
  const int n_kept = kTaps - 1 + s.n_live - s.n_sure;
  for (int i = threadIdx.x; i < width + 2 * a.d_state; i += kThreads) {
    const int channel = i < width               ? group * width + i
                        : i < width + a.d_state ? a.d_inner + group * a.d_state + i - width
                                                : a.d_inner + (a.n_ssm_groups + group) * a.d_state +
                                                      i - width - a.d_state;
    const Raw raw = raw_of(a, s, channel);
    float* cache = conv_cache(a, s, channel);
    for (int j = 0; j < n_kept; j += 8) {
      float some[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (j + k < n_kept) some[k] = raw(s.n_sure - (kTaps - 1) + j + k);
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (j + k < n_kept) cache[static_cast<std::int64_t>(j + k) * a.d_conv] = some[k];
      }
    }
  }
  const int n_lag = s.n_live - s.n_sure;
  for (int i = threadIdx.x; i < heads * n_lag; i += kThreads) {
    const int head = group * heads + i % heads, row = i / heads;
    step_cache(a, s, head)[row * a.n_heads] =
        a.zxbcdt[(s.first_row + s.n_sure + row) * a.zxbcdt_stride + a.d_inner + a.d_conv + head];
  }
}

// y of one group of one row: gate, norm, quantise; element k in chain k mod 64.
BOLT_DEV void norm_group(const MambaArgs& a, int row, int group, int width, float* values,
                         float* chain) {
  const int first = group * width;
  float* y = a.y + row * a.y_stride + first;
  const float* z = a.zxbcdt + row * a.zxbcdt_stride + first;
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += kThreads) {
    values[i] = mul_rn(__ldcg(y + i), mul_rn(z[i], exact_sigmoid(z[i])));
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    float c = 0.0f;
#pragma unroll 8
    for (int i = threadIdx.x; i < width; i += 64) c = fma_rn(values[i], values[i], c);
    chain[threadIdx.x] = c;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    float c = add_rn(chain[threadIdx.x], chain[threadIdx.x + 32]);
#pragma unroll
    for (int m = 16; m; m >>= 1) c = add_rn(c, __shfl_xor_sync(kFullWarp, c, m));
    if (threadIdx.x == 0) {
      if (!finite(c)) a.marked[row] = 1;
      chain[0] = exact_rsqrt(add_rn(__fdiv_rn(c, static_cast<float>(width)), a.eps));
    }
  }
  __syncthreads();
  const float r = chain[0];
  for (int i = threadIdx.x; i < width; i += kThreads) {
    const float out = mul_rn(mul_rn(values[i], r), a.norm_w[first + i]);
    y[i] = out;
    if (a.quantised.slots != nullptr) {
      a.quantised.put(out, row, (first + i) / kGroupCols, threadIdx.x & 31);
    }
  }
}

// Grid (n_heads * blocks of 32 dims, segments): thread 16 p + l owns dims 2p, 2p + 1 of its block
// and the states l, l + 16, ... (the contract's sixteen readout chains).
template <int NI>
__global__ void __launch_bounds__(kThreads) step_rows(MambaArgs a, bool norms) {
  constexpr int kStates = 16 * NI, kChannels = kDims + 2 * kStates;
  constexpr int kOwn = (kChannels + kThreads - 1) / kThreads;  // channels a thread convolves
  __shared__ float conv[kChunk][kChannels];
  __shared__ float step[kChunk], decay[kChunk];
  __shared__ float values[kGroupMax], chain[64];
  __shared__ bool is_last;
  let_next_kernel_start();
  const int dim_blocks = (a.head_dim + kDims - 1) / kDims, heads = a.n_heads / a.n_ssm_groups;
  const int head = blockIdx.x / dim_blocks, group = head / heads;
  const int dim_base = blockIdx.x % dim_blocks * kDims;

  // Before anything of this call is there: this thread's channels and their taps.
  int channel[kOwn];
  float tap[kOwn][kTaps], bias[kOwn];
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int c = threadIdx.x + j * kThreads;
    const int state = (c - kDims) % kStates;
    channel[j] = -1;
    if (c < kDims) {
      if (dim_base + c < a.head_dim) channel[j] = head * a.head_dim + dim_base + c;
    } else if (c < kChannels && state < a.d_state) {
      channel[j] =
          a.d_inner + (c - kDims < kStates ? group : a.n_ssm_groups + group) * a.d_state + state;
    }
    if (channel[j] < 0) continue;
    bias[j] = __ldg(a.conv_b + channel[j]);
#pragma unroll
    for (int k = 0; k < kTaps; ++k) tap[j][k] = __ldg(a.conv_w + channel[j] * kTaps + k);
  }
  const float step_bias = __ldg(a.dt_bias + head), slope = __ldg(a.A + head),
              skip = __ldg(a.D + head);
  wait_for_earlier_kernels();
  const SegmentView s = a.batch.segments[blockIdx.y];
  if (s.n_lag + s.n_rows == 0) return;

  const int l = threadIdx.x & 15, dim0 = 2 * (threadIdx.x >> 4);
  float* state =
      a.h + (static_cast<std::int64_t>(s.slot) * a.n_heads + head) * a.head_dim * a.d_state;
  float h[2][NI];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < NI; ++i) {
      const int dim = dim_base + dim0 + j, n = l + 16 * i;
      h[j][i] = dim < a.head_dim && n < a.d_state ? state[dim * a.d_state + n] : 0.0f;
    }
  }

  for (int first = -s.n_lag; first < s.n_rows; first += kChunk) {
    const int n = min(kChunk, s.n_rows - first);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (channel[j] < 0) continue;
      const Raw raw = raw_of(a, s, channel[j]);
      float in[kTaps - 1 + kChunk];
#pragma unroll
      for (int i = 0; i < kTaps - 1 + kChunk; ++i) {
        in[i] = i < kTaps - 1 + n ? raw(first - (kTaps - 1) + i) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        if (i >= n) break;
        float v = bias[j];
#pragma unroll
        for (int k = 0; k < kTaps; ++k) v = fma_rn(tap[j][k], in[i + k], v);
        conv[i][threadIdx.x + j * kThreads] = mul_rn(v, exact_sigmoid(v));
      }
    }
    // The last warp has the fewest channels.
    const int row = static_cast<int>(threadIdx.x) - (kThreads - 32);
    if (row >= 0 && row < n) {
      const int i = first + row;
      const float raw =
          i >= 0 ? a.zxbcdt[(s.first_row + i) * a.zxbcdt_stride + a.d_inner + a.d_conv + head]
                 : __ldcg(step_cache(a, s, head) + (s.n_lag + i) * a.n_heads);
      float dt = exact_softplus(add_rn(raw, step_bias));
      if (a.clamp) dt = dt < a.dt_min ? a.dt_min : (dt > a.dt_max ? a.dt_max : dt);
      step[row] = dt;
      decay[row] = exact_exp(mul_rn(dt, slope));
    }
    __syncthreads();
    for (int i = 0; i < n; ++i) {
      const int r = first + i;
      const float x[2] = {conv[i][dim0], conv[i][dim0 + 1]};
      const float dx[2] = {mul_rn(step[i], x[0]), mul_rn(step[i], x[1])};
      float sum[2] = {0.0f, 0.0f};
#pragma unroll
      for (int k = 0; k < NI; ++k) {
        if (l + 16 * k < a.d_state) {  // absent states take no part: adding +0 could change a -0
          const float b = conv[i][kDims + l + 16 * k], c = conv[i][kDims + kStates + l + 16 * k];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            h[j][k] = fma_rn(h[j][k], decay[i], mul_rn(dx[j], b));
            sum[j] = fma_rn(h[j][k], c, sum[j]);
          }
        }
      }
      if (r >= 0) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int m = 8; m; m >>= 1)
            sum[j] = add_rn(sum[j], __shfl_xor_sync(kFullWarp, sum[j], m));
        }
        const int dim = dim_base + dim0 + l;
        if (l < 2 && dim < a.head_dim) {
          a.y[(s.first_row + r) * a.y_stride + head * a.head_dim + dim] =
              fma_rn(skip, l ? x[1] : x[0], l ? sum[1] : sum[0]);
        }
      }
      if (r + 1 == s.n_sure) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int k = 0; k < NI; ++k) {
            const int d = dim_base + dim0 + j, m = l + 16 * k;
            if (d < a.head_dim && m < a.d_state) state[d * a.d_state + m] = h[j][k];
          }
        }
      }
    }
  }

  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned* done = a.n_done + blockIdx.y * a.n_ssm_groups + group;
    is_last = atomicAdd(done, 1u) + 1 == static_cast<unsigned>(heads * dim_blocks);
    if (is_last) *done = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  move_caches(a, s, group);
  if (!norms) return;
  for (int r = 0; r < s.n_rows; ++r) {
    norm_group(a, s.first_row + r, group, heads * a.head_dim, values, chain);
  }
}

}  // namespace

bool step_serves(const MambaArgs& a, int max_segment_rows) {
  return a.conv_kernel == kTaps && max_segment_rows <= 32;
}

bool step_norms(const MambaArgs& a, int n_rows) {
  const int width = a.d_inner / a.n_ssm_groups;
  return n_rows <= kNormRows && width <= kGroupMax && width % kGroupCols == 0;
}

void launch_mamba_step(const MambaArgs& a, int n_segments, bool norms, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.n_heads * ((a.head_dim + kDims - 1) / kDims)),
                  static_cast<unsigned>(n_segments));
  auto* kernel = a.d_state <= 64    ? step_rows<4>
                 : a.d_state <= 96  ? step_rows<6>
                 : a.d_state <= 128 ? step_rows<8>
                                    : step_rows<16>;
  launch(kernel, grid, dim3(kThreads), 0, stream, a, norms);
}

}  // namespace bolt::cuda
