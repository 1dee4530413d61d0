// Row-wise kernels: embedding, residual add, norms (arithmetic.md §5), quantisation (§3).
#include <algorithm>

#include "core/base/error.h"
#include "cuda/launch.cuh"
#include "cuda/quantize.cuh"
#include "cuda/rows.cuh"

namespace bolt::cuda {
namespace {

// Block = one row.
__global__ void embed_rows(const std::byte* table, Format format, int n_cols, const int* ids,
                           float* x, std::int64_t stride) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int row = blockIdx.x;
  const std::int64_t first = static_cast<std::int64_t>(ids[row]) * n_cols;
  for (int i = threadIdx.x; i < n_cols; i += blockDim.x) {
    float v;
    if (format == Format::f32) {
      v = reinterpret_cast<const float*>(table)[first + i];
    } else {
      const unsigned short h = reinterpret_cast<const unsigned short*>(table)[first + i];
      v = format == Format::bf16 ? __uint_as_float(static_cast<std::uint32_t>(h) << 16)
                                 : __half2float(__ushort_as_half(h));
    }
    x[row * stride + i] = v;
  }
}

__global__ void add_rows(const float* x, std::int64_t x_stride, float* y, std::int64_t y_stride,
                         int n_cols) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n_cols) return;
  float* place = y + blockIdx.y * y_stride + i;
  *place = add_rn(*place, x[blockIdx.y * x_stride + i]);
}

// Block = one norm group of one row: thread i holds columns i, i + 512, ... of it, so that a warp
// holds groups of 32 columns, which it can quantise. Threads 0..63 are the contract's 64 chains,
// element k in chain k mod 64. Items: columns a thread. For few rows several blocks do the same sum
// and each writes a part of the columns: writing and quantising on one multiprocessor takes longer.
constexpr int kNormThreads = 512;

template <bool Gated, int Items>
__global__ void __launch_bounds__(kNormThreads) norm_rows(NormArgs a) {
  extern __shared__ float values[];
  __shared__ float chain[64];
  let_next_kernel_start();
  const int first = blockIdx.x * a.group, row = blockIdx.y;
  const int part = (a.group + gridDim.z - 1) / gridDim.z + kGroupCols - 1;
  const int part_cols = part / kGroupCols * kGroupCols;
  const int part_first = blockIdx.z * part_cols, part_last = min(part_first + part_cols, a.group);
  float w[Items];
#pragma unroll
  for (int j = 0; j < Items; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    w[j] = i < a.group ? __ldg(a.w + first + i) : 0.0f;
  }
  wait_for_earlier_kernels();
  const float* x = a.x + row * a.x_stride + first;
  float v[Items];
#pragma unroll
  for (int j = 0; j < Items; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    v[j] = i < a.group ? x[i] : 0.0f;
    if (Gated) {
      const float z = i < a.group ? a.gate[row * a.gate_stride + first + i] : 0.0f;
      v[j] = mul_rn(v[j], mul_rn(z, exact_sigmoid(z)));
    }
  }
#pragma unroll
  for (int j = 0; j < Items; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    if (i < a.group) values[i] = v[j];
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    float c = 0.0f;
#pragma unroll 8
    for (int i = threadIdx.x; i < a.group; i += 64) c = fma_rn(values[i], values[i], c);
    chain[threadIdx.x] = c;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    float c = add_rn(chain[threadIdx.x], chain[threadIdx.x + 32]);
#pragma unroll
    for (int m = 16; m; m >>= 1) c = add_rn(c, __shfl_xor_sync(kFullWarp, c, m));
    if (threadIdx.x == 0) {
      if (!finite(c)) a.marked[row] = 1;
      chain[0] = exact_rsqrt(add_rn(__fdiv_rn(c, static_cast<float>(a.group)), a.eps));
    }
  }
  __syncthreads();
  const float r = chain[0];
  float* y = a.y + row * a.y_stride + first;
#pragma unroll
  for (int j = 0; j < Items; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    const int warp_first = i - (threadIdx.x & 31);  // a multiple of 32, in the group and in the row
    if (warp_first < part_first || warp_first >= part_last) continue;
    const float out = mul_rn(mul_rn(v[j], r), w[j]);
    if (i < a.group) y[i] = out;
    if (a.quantised.slots != nullptr) {
      a.quantised.put(i < a.group ? out : 0.0f, row, (first + i) / kGroupCols, threadIdx.x & 31);
    }
  }
}

// Warp = one group of 32 columns of one row.
__global__ void __launch_bounds__(256) quantize_rows(QuantArgs a) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int lane = threadIdx.x & 31, n_groups = (a.n_cols + kGroupCols - 1) / kGroupCols;
  const int group = blockIdx.x * 8 + (threadIdx.x >> 5), row = blockIdx.y;
  if (group >= n_groups) return;
  const int column = group * kGroupCols + lane;
  const float value = column < a.n_cols ? a.x[row * a.x_stride + column] : 0.0f;
  const std::int64_t place = static_cast<std::int64_t>(row) * n_groups + group;
  quantize_group(value, lane, a.slots + place * 32, a.halves + place * 32, a.scale + place);
}

}  // namespace

void launch_embed(const Weight& table, const int* ids, Rows<float> x, cudaStream_t stream) {
  if (table.layout == Layout::tiles) return launch_embed_tiles(table, ids, x, stream);
  launch(embed_rows, dim3(static_cast<unsigned>(x.n_rows)), dim3(256), 0, stream, table.data,
         table.format, x.n_cols, ids, x.data, x.stride);
}

void launch_add(Rows<const float> x, Rows<float> y, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((y.n_cols + 255) / 256), static_cast<unsigned>(y.n_rows));
  launch(add_rows, grid, dim3(256), 0, stream, x.data, x.stride, y.data, y.stride, y.n_cols);
}

namespace {

template <bool Gated>
void launch_norm_of(const NormArgs& a, cudaStream_t stream) {
  const bool in_place = a.x == a.y;  // then a part's writer would hurt another's reader
  const int n_parts = in_place || a.group < 512 ? 1 : a.n_rows <= 4 ? 8 : a.n_rows <= 32 ? 2 : 1;
  const dim3 grid(static_cast<unsigned>(a.n_cols / a.group), static_cast<unsigned>(a.n_rows),
                  static_cast<unsigned>(n_parts));
  const std::size_t shared = static_cast<std::size_t>(a.group) * sizeof(float);
  const int n_threads = std::min(kNormThreads, (a.group + 63) / 64 * 64);
  const int items = (a.group + n_threads - 1) / n_threads;
  auto* kernel = items <= 1    ? norm_rows<Gated, 1>
                 : items <= 6  ? norm_rows<Gated, 6>
                 : items <= 16 ? norm_rows<Gated, 16>
                               : norm_rows<Gated, 40>;
  require(items <= 40, "a norm's group fits a block's registers");
  allow_shared(kernel, shared);
  launch(kernel, grid, dim3(static_cast<unsigned>(n_threads)), shared, stream, a);
}

}  // namespace

void launch_norm(const NormArgs& a, cudaStream_t stream) {
  a.gate != nullptr ? launch_norm_of<true>(a, stream) : launch_norm_of<false>(a, stream);
}

void launch_quantize(const QuantArgs& a, cudaStream_t stream) {
  const int n_groups = (a.n_cols + kGroupCols - 1) / kGroupCols;
  const dim3 grid(static_cast<unsigned>((n_groups + 7) / 8), static_cast<unsigned>(a.n_rows));
  launch(quantize_rows, grid, dim3(256), 0, stream, a);
}

}  // namespace bolt::cuda
