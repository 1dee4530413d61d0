// Routing (arithmetic.md §8), gathering rows by expert, and the combination in choice order. An
// expert's row is the same whoever shares its slot, so the order inside slots is free.
#include <algorithm>

#include "core/base/error.h"
#include "cuda/device.cuh"
#include "cuda/experts.cuh"
#include "cuda/float_pair.cuh"
#include "cuda/launch.cuh"

namespace bolt::cuda {
namespace {

constexpr int kRouteThreads = 128;

// A number whose order is the float's; NaN and -inf are least, -0 is 0, and 0 is below them all.
BOLT_DEV std::uint32_t ordered(float x) {
  if (!(x > -INFINITY)) return 1;
  const std::uint32_t u = x == 0.0f ? 0u : __float_as_uint(x);
  return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}

// The warp's largest key of `keys`, the lowest index among equals.
BOLT_DEV int best_of(const std::uint32_t* keys, int n, int lane) {
  std::uint32_t best = 0;
  int at = 0x7fffffff;
  for (int i = lane; i < n; i += 32) {
    if (keys[i] > best) {
      best = keys[i];
      at = i;
    }
  }
  const std::uint32_t top = __reduce_max_sync(kFullWarp, best);
  return static_cast<int>(
      __reduce_min_sync(kFullWarp, best == top ? static_cast<unsigned>(at) : 0x7fffffffu));
}

// The choice of one row, by a block of 128 threads.
BOLT_DEV void route_row(const RouteArgs& a, int row) {
  __shared__ float score[kDeviceExpertsMax], raw[kDeviceExpertsMax];
  __shared__ std::uint32_t key[kDeviceExpertsMax], group_key[kDeviceExpertsMax];
  __shared__ int chosen[kDeviceExpertsMax];
  const int lane = threadIdx.x & 31;
  bool good = true;
  const int width = n_tiles(a.n_experts) * kTileRows;
  for (int e = threadIdx.x; e < a.n_experts; e += blockDim.x) {
    float logit = 0.0f;
    if (a.leaves != nullptr) {
      const float* leaf = a.leaves + static_cast<std::int64_t>(row) * a.n_leaves * width + e;
      for (int i = 0; i < a.n_leaves; i += 48) {
        float some[48];
#pragma unroll
        for (int j = 0; j < 48; ++j) {
          if (i + j < a.n_leaves) some[j] = __ldcg(leaf + (i + j) * width);
        }
#pragma unroll
        for (int j = 0; j < 48; ++j) {
          if (i + j < a.n_leaves) logit = add_rn(logit, some[j]);
        }
      }
    } else {
      logit = a.logits[row * a.logits_stride + e];
    }
    const float s = exact_sigmoid(logit);
    const float k = add_rn(s, a.bias[e]);
    good = good && finite(k) && finite(logit);
    score[e] = s;
    raw[e] = k == k ? k : -INFINITY;
    key[e] = ordered(k);
  }
  if (!__syncthreads_and(good) && threadIdx.x == 0) a.marked[row] = 1;
  if (threadIdx.x >= 32) return;

  if (a.n_router_groups > 1) {
    const int size = a.n_experts / a.n_router_groups;
    for (int g = lane; g < a.n_router_groups; g += 32) {
      float first = -INFINITY, second = -INFINITY;
      for (int i = 0; i < size; ++i) {
        const float k = raw[g * size + i];
        if (k > first) {
          second = first;
          first = k;
        } else if (k > second) {
          second = k;
        }
      }
      group_key[g] = ordered(size == 1 ? first : add_rn(first, second));
    }
    __syncwarp();
    // A kept group's key becomes 0, which no other key is.
    for (int i = 0; i < a.top_k_groups; ++i) {
      const int best = best_of(group_key, a.n_router_groups, lane);
      __syncwarp();
      if (lane == 0) group_key[best] = 0;
      __syncwarp();
    }
    for (int e = lane; e < a.n_experts; e += 32) {
      if (group_key[e / size] != 0) key[e] = ordered(-INFINITY);
    }
    __syncwarp();
  }

  float sum = 0.0f;
  for (int i = 0; i < a.top_k; ++i) {
    const int best = best_of(key, a.n_experts, lane);
    sum = add_rn(sum, score[best]);
    __syncwarp();
    if (lane == 0) {
      key[best] = 0;  // taken: below every key
      chosen[i] = best;
      a.choice[row * a.top_k + i] = best;
    }
    __syncwarp();
  }
  for (int i = lane; i < a.top_k; i += 32) {
    float w = score[chosen[i]];
    if (a.norm_top_k) w = __fdiv_rn(w, add_rn(sum, 1e-20f));
    a.weight[row * a.top_k + i] = mul_rn(w, a.scaling_factor);
  }
}

// Gathers rows by expert, by one block. Integer atomics only choose places, which no result depends
// on.
BOLT_DEV void gather(const SlotArgs& a) {
  __shared__ int count[kDeviceExpertsMax], start[kDeviceExpertsMax + 1], next[kDeviceExpertsMax];
  for (int e = threadIdx.x; e < a.n_experts; e += blockDim.x) count[e] = next[e] = 0;
  __syncthreads();
  // Does `act` for each pair, its expert read beforehand, some pairs at a time.
  const auto each_pair = [&](auto act) {
    constexpr int kAtOnce = 8;
    const int step = blockDim.x;
    for (int base = threadIdx.x; base < a.n_pairs; base += kAtOnce * step) {
      int expert[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (base + i * step < a.n_pairs) expert[i] = a.choice[base + i * step];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (base + i * step < a.n_pairs) act(base + i * step, expert[i]);
      }
    }
  };
  each_pair([&](int, int expert) { atomicAdd(&count[expert], 1); });
  __syncthreads();
  // Exclusive sum of the slots of each expert, by one warp.
  if (threadIdx.x < 32) {
    int carried = 0;
    for (int first = 0; first < a.n_experts; first += 32) {
      const int e = first + threadIdx.x;
      const int own = e < a.n_experts ? (count[e] + a.slot_rows - 1) / a.slot_rows : 0;
      int sum = own;
      for (int d = 1; d < 32; d <<= 1) {
        const int other = __shfl_up_sync(kFullWarp, sum, d);
        if (threadIdx.x >= d) sum += other;
      }
      if (e < a.n_experts) start[e] = carried + sum - own;
      carried += __shfl_sync(kFullWarp, sum, 31);
    }
    if (threadIdx.x == 0) {
      start[a.n_experts] = carried;
      *a.n_slots = carried;
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < a.n_experts; e += blockDim.x) {
    for (int s = start[e]; s < start[e + 1]; ++s) a.slot_expert[s] = e;
  }
  for (int place = threadIdx.x; place < start[a.n_experts] * a.slot_rows; place += blockDim.x) {
    a.out_place[place] = -1;
    a.mark_row[place] = -1;
  }
  __syncthreads();
  each_pair([&](int pair, int expert) {
    const int rank = atomicAdd(&next[expert], 1), row = pair / a.top_k;
    const int place = start[expert] * a.slot_rows + rank;  // an expert's slots lie side by side
    a.in_row[place] = row;
    a.in_place[place] = place;
    a.out_place[place] = place;
    a.mark_row[place] = row;
    a.pair_place[pair] = place;
  });
  __syncthreads();
#pragma unroll 4
  for (int place = threadIdx.x; place < start[a.n_experts] * a.slot_rows; place += blockDim.x) {
    if (a.out_place[place] >= 0) continue;
    const int first = place / a.slot_rows * a.slot_rows;  // never empty
    a.in_row[place] = a.in_row[first];
    a.in_place[place] = first;
  }
}

__global__ void __launch_bounds__(kRouteThreads) route_rows(RouteArgs a) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  route_row(a, blockIdx.x);
}

__global__ void __launch_bounds__(1024) gather_slots(SlotArgs a) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  gather(a);
}

// One row has a slot for each of its choices, in order.
BOLT_DEV void place_slots(const SlotArgs& a, int n_rows) {
  if (n_rows > 1) return gather(a);
  for (int i = threadIdx.x; i < a.n_pairs; i += blockDim.x) {
    a.slot_expert[i] = a.choice[i];
    a.in_row[i] = 0;
    a.mark_row[i] = 0;
    a.in_place[i] = a.out_place[i] = a.pair_place[i] = i;
  }
}

constexpr int kRouterRows = 4;  // of a block of router_leaves

// Grid (tiles, segments, blocks of rows), 128 threads: warp t is chain t of the segment, lane =
// expert of the tile.
template <Format F>
__global__ void __launch_bounds__(128) router_leaves(RouterArgs a) {
  __shared__ float x[kRouterRows][kSegmentGroups * kGroupCols];
  constexpr int kSteps = kSegmentGroups * 4;
  const int lane = threadIdx.x & 31, t = threadIdx.x >> 5, tile = blockIdx.x, segment = blockIdx.y;
  const int n_groups = (a.n_cols + kGroupCols - 1) / kGroupCols;
  const int first = segment * kSegmentGroups, count = min(kSegmentGroups, n_groups - first);
  const std::uint8_t* block =
      a.weights + (static_cast<std::int64_t>(tile) * n_groups + first) * block_bytes(F);
  float2 w[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    w[i] = make_float2(0.0f, 0.0f);
    if (i / 4 < count) w[i] = float_pair<F>(block + (i / 4) * block_bytes(F), i % 4, t, lane);
  }
  wait_for_earlier_kernels();
  let_next_kernel_start();  // the shared expert may start: its rows are there
  const int columns = min(count * kGroupCols, a.n_cols - first * kGroupCols);
  const int first_row = blockIdx.z * kRouterRows, n_rows = min(kRouterRows, a.n_rows - first_row);
  for (int r = 0; r < n_rows; ++r) {
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
      x[r][i] = a.x[(first_row + r) * a.x_stride + first * kGroupCols + i];
    }
  }
  __syncthreads();
  for (int r = 0; r < n_rows; ++r) {
    float acc = 0.0f;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int k = i / 4 * kGroupCols + i % 4 * 8 + 2 * t;
      if (k < columns) acc = fma_rn(w[i].x, x[r][k], acc);
      if (k + 1 < columns) acc = fma_rn(w[i].y, x[r][k + 1], acc);
    }
    a.leaves[(static_cast<std::int64_t>(first_row + r) * gridDim.y * 4 + segment * 4 + t) *
                 (gridDim.x * kTileRows) +
             tile * kTileRows + lane] = acc;
  }
}

// Block = one row; the block that ends last gathers.
__global__ void __launch_bounds__(kRouteThreads) route_and_gather(RouteSlotsArgs a) {
  __shared__ bool is_last;
  wait_for_earlier_kernels();
  let_next_kernel_start();  // what runs beside this reads nothing of it
  route_row(a.route, blockIdx.x);
  if (gridDim.x > 1) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(a.n_done, 1u) + 1 == gridDim.x;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) *a.n_done = 0;
  } else {
    __syncthreads();
  }
  place_slots(a.slots, gridDim.x);
}

__global__ void __launch_bounds__(128) combine_rows(CombineArgs a) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if ((column & ~31) >= a.n_cols) return;
  const bool in = column < a.n_cols;
  float r = 0.0f;
#pragma unroll 4
  for (int i = 0; i < a.top_k; ++i) {
    const std::int64_t place = a.pair_place[row * a.top_k + i];
    const float out = in ? a.out[place * a.n_cols + column] : 0.0f;
    r = fma_rn(a.weight[row * a.top_k + i], out, r);
  }
  float* y = a.y + row * a.y_stride + column;
  if (a.plus != nullptr && in) r = add_rn(r, a.plus[row * a.plus_stride + column]);
  if (a.residual && in) r = add_rn(*y, r);
  if (in) *y = r;
  if (a.quantised.slots != nullptr) {
    a.quantised.put(in ? r : 0.0f, row, column / kGroupCols, threadIdx.x & 31);
  }
}

}  // namespace

int slots_bound(int n_rows, int top_k, int n_experts, int slot_rows) {
  const int pairs = n_rows * top_k;
  return std::min(pairs, n_experts + pairs / slot_rows);
}

void launch_route(const RouteArgs& a, cudaStream_t stream) {
  require(a.n_experts <= kDeviceExpertsMax, "a router's experts fit the device's tables");
  launch(route_rows, dim3(static_cast<unsigned>(a.n_rows)), dim3(kRouteThreads), 0, stream, a);
}

void launch_router(const RouterArgs& a, cudaStream_t stream) {
  const int n_segments = (n_groups(a.n_cols) + kSegmentGroups - 1) / kSegmentGroups;
  const dim3 grid(static_cast<unsigned>(n_tiles(a.n_experts)), static_cast<unsigned>(n_segments),
                  static_cast<unsigned>((a.n_rows + kRouterRows - 1) / kRouterRows));
  auto* kernel = a.format == Format::f32    ? router_leaves<Format::f32>
                 : a.format == Format::bf16 ? router_leaves<Format::bf16>
                                            : router_leaves<Format::f16>;
  launch(kernel, grid, dim3(128), 0, stream, a);
}

void launch_route_slots(const RouteSlotsArgs& a, cudaStream_t stream) {
  require(a.route.n_experts <= kDeviceExpertsMax, "a router's experts fit the device's tables");
  launch(route_and_gather, dim3(static_cast<unsigned>(a.route.n_rows)), dim3(kRouteThreads), 0,
         stream, a);
}

void launch_slots(const SlotArgs& a, cudaStream_t stream) {
  launch(gather_slots, dim3(1), dim3(1024), 0, stream, a);
}

void launch_combine(const CombineArgs& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((a.n_cols + 127) / 128), static_cast<unsigned>(a.n_rows));
  launch(combine_rows, grid, dim3(128), 0, stream, a);
}

}  // namespace bolt::cuda
