// Mamba-2 (arithmetic.md §6) in two kernels: the causal convolution and step sizes, a channel a
// thread; then the recurrence, token by token, with its state in registers. A window, a prompt
// chunk and the replay of lagging rows run the same loop bodies.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/mamba.cuh"

namespace bolt::cuda {
namespace {

constexpr int kConvRows = 32;  // rows of a segment that a thread of conv_rows walks

// Grid (channels, segments, blocks of 32 rows). Channels past d_conv are the heads' step sizes. The
// thread of a segment's first block also replays its lagging rows and, last of all, moves the
// channel's cache on: no other thread touches that channel's cache.
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
  for (int i = begin; i < last; ++i) {
    float v = bias;
    for (int tap = 0; tap < k; ++tap) v = fma_rn(w[tap], raw(i - (k - 1) + tap), v);
    a.conv[scratch_row(i) * a.d_conv + channel] = mul_rn(v, exact_sigmoid(v));
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

// One row as a thread of the recurrence needs it: states n = l, l + 16, ... of two dims.
template <int NI>
struct ScanRow {
  float b[NI], c[NI], x[2], dt, decay;

  BOLT_DEV void load(const MambaArgs& a, std::int64_t row, int head, int group, const int (&dim)[2],
                     int l) {
    const float* conv = a.conv + row * a.d_conv;
    const float* B = conv + a.d_inner + group * a.d_state;
    const float* C = B + a.n_ssm_groups * a.d_state;
#pragma unroll
    for (int i = 0; i < NI; ++i) {
      const bool in = l + 16 * i < a.d_state;
      b[i] = in ? B[l + 16 * i] : 0.0f;
      c[i] = in ? C[l + 16 * i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
      x[j] = dim[j] < a.head_dim ? conv[head * a.head_dim + dim[j]] : 0.0f;
    dt = a.dt[row * a.n_heads + head];
    decay = a.decay[row * a.n_heads + head];
  }
};

// Grid (n_heads * blocks of 32 dims, segments), 256 threads: thread 16 p + l owns dims 2p, 2p + 1
// of its block and the states l, l + 16, ... (the contract's sixteen readout chains).
template <int NI>
__global__ void __launch_bounds__(256) scan_rows(MambaArgs a) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int dim_blocks = (a.head_dim + 31) / 32;
  const int head = blockIdx.x / dim_blocks, l = threadIdx.x & 15, p = threadIdx.x >> 4;
  const int group = head / (a.n_heads / a.n_ssm_groups);
  const int dim0 = (blockIdx.x % dim_blocks) * 32 + 2 * p;
  const int dim[2] = {dim0, dim0 + 1};
  const SegmentView segment = a.batch.segments[blockIdx.y];
  float* state =
      a.h + (static_cast<std::int64_t>(segment.slot) * a.n_heads + head) * a.head_dim * a.d_state;
  float h[2][NI];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < NI; ++i) {
      const int n = l + 16 * i;
      h[j][i] = dim[j] < a.head_dim && n < a.d_state ? state[dim[j] * a.d_state + n] : 0.0f;
    }
  }
  const float skip = a.D[head];
  const auto scratch_row = [&](int i) {
    return static_cast<std::int64_t>(i >= 0 ? segment.first_row + i
                                            : a.lag_base + 32 * static_cast<int>(blockIdx.y) +
                                                  segment.n_lag + i);
  };
  const auto store = [&] {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < NI; ++i) {
        const int n = l + 16 * i;
        if (dim[j] < a.head_dim && n < a.d_state) state[dim[j] * a.d_state + n] = h[j][i];
      }
    }
  };

  ScanRow<NI> next;
  if (segment.n_lag + segment.n_rows == 0) return;
  next.load(a, scratch_row(-segment.n_lag), head, group, dim, l);
  for (int r = -segment.n_lag; r < segment.n_rows; ++r) {
    const ScanRow<NI> row = next;
    if (r + 1 < segment.n_rows) next.load(a, scratch_row(r + 1), head, group, dim, l);
    float chain[2] = {0.0f, 0.0f};
    const float dx[2] = {mul_rn(row.dt, row.x[0]), mul_rn(row.dt, row.x[1])};
#pragma unroll
    for (int i = 0; i < NI; ++i) {
      if (l + 16 * i < a.d_state) {  // absent states take no part: adding +0 could change a -0
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          h[j][i] = fma_rn(h[j][i], row.decay, mul_rn(dx[j], row.b[i]));
          chain[j] = fma_rn(h[j][i], row.c[i], chain[j]);
        }
      }
    }
    if (r >= 0) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int m = 8; m; m >>= 1)
          chain[j] = add_rn(chain[j], __shfl_xor_sync(kFullWarp, chain[j], m));
      }
      if (l < 2 && dim[l] < a.head_dim) {
        a.y[(segment.first_row + r) * a.y_stride + head * a.head_dim + dim[l]] =
            fma_rn(skip, l ? row.x[1] : row.x[0], l ? chain[1] : chain[0]);
      }
    }
    if (r + 1 == segment.n_sure) store();
  }
}

}  // namespace

void launch_mamba(const MambaArgs& a, int n_segments, int max_segment_rows, cudaStream_t stream) {
  const dim3 conv_grid(static_cast<unsigned>((a.d_conv + a.n_heads + 127) / 128),
                       static_cast<unsigned>(n_segments),
                       static_cast<unsigned>((max_segment_rows + kConvRows - 1) / kConvRows));
  launch(conv_rows, conv_grid, dim3(128), 0, stream, a);
  const dim3 scan_grid(static_cast<unsigned>(a.n_heads * ((a.head_dim + 31) / 32)),
                       static_cast<unsigned>(n_segments));
  auto* kernel = a.d_state <= 64    ? scan_rows<4>
                 : a.d_state <= 96  ? scan_rows<6>
                 : a.d_state <= 128 ? scan_rows<8>
                                    : scan_rows<16>;
  launch(kernel, scan_grid, dim3(256), 0, stream, a);
}

}  // namespace bolt::cuda
