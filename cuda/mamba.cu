// Mamba-2 (arithmetic.md §6) in two kernels: the causal convolution and step sizes, a channel a
// thread; then the recurrence, token by token, with its state in registers. A window, a prompt
// chunk and the replay of lagging rows run the same loop bodies.
#include "cuda/chunk_async.cuh"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/mamba.cuh"

namespace bolt::cuda {
namespace {

// Rows of a segment that a thread of conv_rows walks: more than a kernel reaches back (of at most
// 16 taps), so that only a segment's first block reads the cache.
constexpr int kConvRows = 16;

// Grid (channels, segments, blocks of kConvRows rows). Channels past d_conv are the heads' step
// sizes. The thread of a segment's first block also replays its lagging rows and, last of all,
// moves the channel's cache on: no other thread touches that channel's cache.
__global__ void __launch_bounds__(128) conv_rows(MambaArgs a) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int channel = blockIdx.x * blockDim.x + threadIdx.x;
  const SegmentView segment = a.batch.segments[blockIdx.y];
  const int first = blockIdx.z * kConvRows;
  // A segment without rows only settles its lagging ones.
  if (channel >= a.d_conv + a.n_heads || (first > 0 && first >= segment.n_rows)) return;
  const int last = min(first + kConvRows, segment.n_rows);
  const int begin = first == 0 ? -segment.n_lag : first;  // rows before 0 lag
  const auto scratch_row = [&](int i) {
    return static_cast<std::int64_t>(i >= 0 ? segment.first_row + i
                                            : a.lag_base + 32 * static_cast<int>(blockIdx.y) +
                                                  segment.n_lag + i);
  };

  if (channel >= a.d_conv) {
    const int head = channel - a.d_conv;
    float* cache =
        a.raw_dt + static_cast<std::int64_t>(segment.slot) * kLagRowsMax * a.n_heads + head;
    const float* fresh = a.zxbcdt + a.d_inner + a.d_conv + head;
    const auto raw = [&](int i) {
      return i >= 0 ? fresh[(segment.first_row + i) * a.zxbcdt_stride]
                    : cache[(segment.n_lag + i) * a.n_heads];
    };
    for (int i = begin; i < last; ++i) {
      float dt = exact_softplus(add_rn(raw(i), a.dt_bias[head]));
      if (a.clamp) dt = dt < a.dt_min ? a.dt_min : (dt > a.dt_max ? a.dt_max : dt);
      const std::int64_t place = scratch_row(i) * a.n_heads + head;
      a.dt[place] = dt;
      a.decay[place] = exact_exp(mul_rn(dt, a.A[head]));
    }
    if (first == 0) {
      for (int i = segment.n_sure; i < segment.n_live; ++i) {
        cache[(i - segment.n_sure) * a.n_heads] = raw(i);
      }
    }
    return;
  }

  const int k = a.conv_kernel;
  const int cache_rows = k - 1 + kLagRowsMax;
  float* cache = a.raw + static_cast<std::int64_t>(segment.slot) * cache_rows * a.d_conv + channel;
  const float* fresh = a.zxbcdt + a.d_inner + channel;
  const auto raw = [&](int i) {
    return i >= 0 ? fresh[(segment.first_row + i) * a.zxbcdt_stride]
                  : cache[static_cast<std::int64_t>(k - 1 + segment.n_lag + i) * a.d_conv];
  };
  const float* w = a.conv_w + channel * k;
  const float bias = a.conv_b[channel];
  const auto put = [&](int i, float v) {
    a.conv[scratch_row(i) * a.d_conv + channel] = mul_rn(v, exact_sigmoid(v));
  };
  if (k == 4) {  // as all models have it: each row is read once
    const float w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    float x0 = raw(begin - 3), x1 = raw(begin - 2), x2 = raw(begin - 1);
#pragma unroll 4
    for (int i = begin; i < last; ++i) {
      const float x3 = raw(i);
      put(i, fma_rn(w3, x3, fma_rn(w2, x2, fma_rn(w1, x1, fma_rn(w0, x0, bias)))));
      x0 = x1, x1 = x2, x2 = x3;
    }
  } else {
    for (int i = begin; i < last; ++i) {
      float v = bias;
      for (int tap = 0; tap < k; ++tap) v = fma_rn(w[tap], raw(i - (k - 1) + tap), v);
      put(i, v);
    }
  }
  if (first == 0) {
    // Sources lie at or after their places, so an ascending copy may work in place, some at a time.
    const int n = k - 1 + segment.n_live - segment.n_sure;
    for (int j = 0; j < n; j += 8) {
      float some[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (j + i < n) some[i] = raw(segment.n_sure - (k - 1) + j + i);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (j + i < n) cache[static_cast<std::int64_t>(j + i) * a.d_conv] = some[i];
      }
    }
  }
}

// Rows of the recurrence on their way into shared memory, 16 at a time.
constexpr int kStageRows = 16, kStageDims = 32;
// Dims a thread, and rows whose readouts are summed at once: a half warp's lanes have as many sums.
constexpr int kThreadDims = 2, kBatchRows = 8;
constexpr int kScanThreads = 16 * kStageDims / kThreadDims;

template <int NI>
struct Stage {
  float b[kStageRows][16 * NI], c[kStageRows][16 * NI], x[kStageRows][kStageDims];
  float dt[kStageRows], decay[kStageRows];
};

// Lanes M apart exchange: each keeps, added up, the half of 2M values that its lane's bit M names.
template <int M>
BOLT_DEV void add_halves(float (&v)[16], bool upper) {
#pragma unroll
  for (int i = 0; i < M; ++i) {
    const float sent = upper ? v[i] : v[i + M], kept = upper ? v[i + M] : v[i];
    v[i] = add_rn(kept, __shfl_xor_sync(kFullWarp, sent, M));
  }
}

// Sums each of 16 values over the 16 lanes of a half warp: lanes 8 apart first, then 4, 2, 1, as a
// butterfly of each would, in 15 exchanges, not 64. Lane l gets the sum of value l.
BOLT_DEV float sum_transposed(float (&v)[16], int l) {
  add_halves<8>(v, (l & 8) != 0);
  add_halves<4>(v, (l & 4) != 0);
  add_halves<2>(v, (l & 2) != 0);
  add_halves<1>(v, (l & 1) != 0);
  return v[0];
}

// Grid (n_heads * blocks of 32 dims, segments), 256 threads: thread 16 p + l owns dims 2p, 2p + 1
// of its block and the states l, l + 16, ... (the contract's sixteen readout chains). Full: d_state
// is 16 * NI.
template <int NI, bool Full>
__global__ void __launch_bounds__(kScanThreads) scan_rows(MambaArgs a) {
  extern __shared__ __align__(16) std::byte shared[];
  auto* const stages = reinterpret_cast<Stage<NI>*>(shared);
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int dim_blocks = (a.head_dim + kStageDims - 1) / kStageDims;
  const int head = blockIdx.x / dim_blocks, l = threadIdx.x & 15;
  const int dim0 = kThreadDims * (threadIdx.x >> 4);
  const int group = head / (a.n_heads / a.n_ssm_groups);
  const int dim_base = blockIdx.x % dim_blocks * kStageDims;
  const SegmentView segment = a.batch.segments[blockIdx.y];
  if (segment.n_lag + segment.n_rows == 0) return;
  const auto scratch_row = [&](int i) {
    return static_cast<std::int64_t>(i >= 0 ? segment.first_row + i
                                            : a.lag_base + 32 * static_cast<int>(blockIdx.y) +
                                                  segment.n_lag + i);
  };
  const int n_dims = min(kStageDims, a.head_dim - dim_base);
  const bool aligned = (a.d_state | a.d_conv | n_dims | a.head_dim) % 4 == 0;
  const auto fetch = [&](Stage<NI>& stage, int first) {
    const int n = min(kStageRows, segment.n_rows - first);
    const int width = 2 * a.d_state + n_dims, step = aligned ? 4 : 1;
    for (int i = static_cast<int>(threadIdx.x) * step; i < n * width; i += kScanThreads * step) {
      const int r = i / width, k = i % width;
      const float* conv = a.conv + scratch_row(first + r) * a.d_conv;
      const float* from;
      float* to;
      if (k < a.d_state) {
        from = conv + a.d_inner + group * a.d_state + k;
        to = &stage.b[r][k];
      } else if (k < 2 * a.d_state) {
        from = conv + a.d_inner + (a.n_ssm_groups + group) * a.d_state + k - a.d_state;
        to = &stage.c[r][k - a.d_state];
      } else {
        from = conv + head * a.head_dim + dim_base + k - 2 * a.d_state;
        to = &stage.x[r][k - 2 * a.d_state];
      }
      aligned ? copy_16(to, from, 16) : copy_4(to, from, 4);
    }
    if (threadIdx.x < 2 * n) {
      const int r = threadIdx.x >> 1;
      const std::int64_t at = scratch_row(first + r) * a.n_heads + head;
      threadIdx.x & 1 ? copy_4(&stage.decay[r], a.decay + at, 4)
                      : copy_4(&stage.dt[r], a.dt + at, 4);
    }
  };
  fetch(stages[0], -segment.n_lag);
  copies_commit();

  float* state =
      a.h + (static_cast<std::int64_t>(segment.slot) * a.n_heads + head) * a.head_dim * a.d_state;
  const auto is_state = [&](int n) { return Full || n < a.d_state; };
  float h[kThreadDims][NI];
#pragma unroll
  for (int j = 0; j < kThreadDims; ++j) {
#pragma unroll
    for (int i = 0; i < NI; ++i) {
      const int dim = dim_base + dim0 + j, n = l + 16 * i;
      h[j][i] = dim < a.head_dim && is_state(n) ? state[dim * a.d_state + n] : 0.0f;
    }
  }
  const float skip = a.D[head];
  const auto store = [&] {
#pragma unroll
    for (int j = 0; j < kThreadDims; ++j) {
#pragma unroll
      for (int i = 0; i < NI; ++i) {
        const int dim = dim_base + dim0 + j, n = l + 16 * i;
        if (dim < a.head_dim && is_state(n)) state[dim * a.d_state + n] = h[j][i];
      }
    }
  };

  int now = 0;
  for (int first = -segment.n_lag; first < segment.n_rows; first += kStageRows, now ^= 1) {
    if (first + kStageRows < segment.n_rows) fetch(stages[now ^ 1], first + kStageRows);
    copies_commit();
    copies_wait<1>();
    __syncthreads();
    const Stage<NI>& stage = stages[now];
    const int n_rows = min(kStageRows, segment.n_rows - first);
    // Row i of the stage: the state moves on, and `chains` get the lane's part of readout u.
    const auto advance = [&](int i, float(&chains)[kBatchRows * kThreadDims], int u) {
      const float dt = stage.dt[i], decay = stage.decay[i];
      const float2 x = *reinterpret_cast<const float2*>(&stage.x[i][dim0]);
      const float dx[kThreadDims] = {mul_rn(dt, x.x), mul_rn(dt, x.y)};
#pragma unroll
      for (int k = 0; k < NI; ++k) {
        if (is_state(l + 16 * k)) {  // absent states take no part: adding +0 could change a -0
          const float b = stage.b[i][l + 16 * k], c = stage.c[i][l + 16 * k];
#pragma unroll
          for (int j = 0; j < kThreadDims; ++j) {
            h[j][k] = fma_rn(h[j][k], decay, mul_rn(dx[j], b));
            float& chain = chains[u * kThreadDims + j];
            chain = fma_rn(h[j][k], c, chain);
          }
        }
      }
    };
    for (int i = 0; i < n_rows; i += kBatchRows) {
      const int r = first + i;
      float chains[kBatchRows * kThreadDims];
#pragma unroll
      for (float& chain : chains) chain = 0.0f;
      const bool splits = segment.n_sure > r && segment.n_sure < r + kBatchRows;
      if (i + kBatchRows <= n_rows && !splits) {
#pragma unroll
        for (int u = 0; u < kBatchRows; ++u) advance(i + u, chains, u);
        if (segment.n_sure == r + kBatchRows) store();
      } else {
#pragma unroll
        for (int u = 0; u < kBatchRows; ++u) {
          if (i + u < n_rows) {
            advance(i + u, chains, u);
            if (segment.n_sure == r + u + 1) store();
          }
        }
      }
      if (r + kBatchRows <= 0) continue;  // all of them lag: nobody asks for their outputs
      const float sum = sum_transposed(chains, l);
      const int u = l / kThreadDims, dim = dim0 + l % kThreadDims;
      if (i + u < n_rows && r + u >= 0 && dim_base + dim < a.head_dim) {
        a.y[(segment.first_row + r + u) * a.y_stride + head * a.head_dim + dim_base + dim] =
            fma_rn(skip, stage.x[i + u][dim], sum);
      }
    }
    __syncthreads();  // the stage takes the rows after the next
  }
}

template <int NI>
void launch_scan(const MambaArgs& a, const dim3& grid, cudaStream_t stream) {
  constexpr std::size_t kShared = 2 * sizeof(Stage<NI>);
  auto* kernel = a.d_state == 16 * NI ? scan_rows<NI, true> : scan_rows<NI, false>;
  allow_shared(kernel, kShared);
  launch(kernel, grid, dim3(kScanThreads), kShared, stream, a);
}

}  // namespace

void launch_mamba(const MambaArgs& a, int n_segments, int max_segment_rows, cudaStream_t stream) {
  const dim3 conv_grid(static_cast<unsigned>((a.d_conv + a.n_heads + 127) / 128),
                       static_cast<unsigned>(n_segments),
                       static_cast<unsigned>((max_segment_rows + kConvRows - 1) / kConvRows));
  launch(conv_rows, conv_grid, dim3(128), 0, stream, a);
  const dim3 scan_grid(static_cast<unsigned>(a.n_heads * ((a.head_dim + 31) / 32)),
                       static_cast<unsigned>(n_segments));
  if (a.d_state <= 64) return launch_scan<4>(a, scan_grid, stream);
  if (a.d_state <= 96) return launch_scan<6>(a, scan_grid, stream);
  if (a.d_state <= 128) return launch_scan<8>(a, scan_grid, stream);
  launch_scan<16>(a, scan_grid, stream);
}

}  // namespace bolt::cuda
