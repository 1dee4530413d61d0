// Routing (arithmetic.md §8), gathering rows by expert, and the combination in choice order. An
// expert's row is the same whoever shares its slot, so the order inside slots is free.
#include <algorithm>

#include "core/base/error.h"
#include "cuda/device.cuh"
#include "cuda/experts.cuh"
#include "cuda/launch.cuh"

namespace bolt::cuda {
namespace {

// A key and its index; the larger key wins, then the lower index.
struct Best {
  float key;
  int index;
};
BOLT_DEV Best better(Best a, Best b) {
  return b.key > a.key || (b.key == a.key && b.index < a.index) ? b : a;
}
BOLT_DEV Best warp_best(Best b) {
#pragma unroll
  for (int m = 16; m; m >>= 1) {
    const Best other{__shfl_xor_sync(kFullWarp, b.key, m), __shfl_xor_sync(kFullWarp, b.index, m)};
    b = better(b, other);
  }
  return b;
}

// Warp = one row. A chosen expert's key becomes taken (below every key, -inf included).
__global__ void __launch_bounds__(32) route_rows(RouteArgs a) {
  __shared__ float score[kDeviceExpertsMax], key[kDeviceExpertsMax];
  __shared__ bool taken[kDeviceExpertsMax];
  __shared__ float group_key[kDeviceExpertsMax];
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int row = blockIdx.x, lane = threadIdx.x;
  const float* logits = a.logits + row * a.logits_stride;
  bool good = true;
  for (int e = lane; e < a.n_experts; e += 32) {
    const float s = exact_sigmoid(logits[e]);
    const float k = add_rn(s, a.bias[e]);
    good = good && finite(k) && finite(logits[e]);
    score[e] = s;
    key[e] = k == k ? k : -INFINITY;
    taken[e] = false;
  }
  if (!__all_sync(kFullWarp, good) && lane == 0) a.marked[row] = 1;
  __syncwarp();

  if (a.n_router_groups > 1) {
    const int size = a.n_experts / a.n_router_groups;
    for (int g = lane; g < a.n_router_groups; g += 32) {
      float first = -INFINITY, second = -INFINITY;
      for (int i = 0; i < size; ++i) {
        const float k = key[g * size + i];
        if (k > first) {
          second = first;
          first = k;
        } else if (k > second) {
          second = k;
        }
      }
      group_key[g] = size == 1 ? first : add_rn(first, second);
    }
    __syncwarp();
    // Each kept group is marked by a NaN key, which no comparison picks again.
    for (int i = 0; i < a.top_k_groups; ++i) {
      Best best{-INFINITY, 0x7fffffff};
      for (int g = lane; g < a.n_router_groups; g += 32) {
        const float k = group_key[g];
        if (k == k) best = better(best, {k, g});
      }
      best = warp_best(best);
      if (lane == 0) group_key[best.index] = __uint_as_float(0x7fc00000u);
      __syncwarp();
    }
    for (int e = lane; e < a.n_experts; e += 32) {
      if (group_key[e / size] == group_key[e / size]) key[e] = -INFINITY;
    }
    __syncwarp();
  }

  float sum = 0.0f;
  for (int i = 0; i < a.top_k; ++i) {
    Best best{-INFINITY, 0x7fffffff};
    for (int e = lane; e < a.n_experts; e += 32) {
      if (!taken[e]) best = better(best, {key[e], e});
    }
    best = warp_best(best);
    sum = add_rn(sum, score[best.index]);
    if (lane == 0) {
      taken[best.index] = true;
      a.choice[row * a.top_k + i] = best.index;
    }
    __syncwarp();
  }
  for (int i = lane; i < a.top_k; i += 32) {
    float w = score[a.choice[row * a.top_k + i]];
    if (a.norm_top_k) w = __fdiv_rn(w, add_rn(sum, 1e-20f));
    a.weight[row * a.top_k + i] = mul_rn(w, a.scaling_factor);
  }
}

// One block. Integer atomics only choose places, which no result depends on.
__global__ void __launch_bounds__(1024) gather_slots(SlotArgs a) {
  __shared__ int count[kDeviceExpertsMax], start[kDeviceExpertsMax + 1], next[kDeviceExpertsMax];
  let_next_kernel_start();
  wait_for_earlier_kernels();
  for (int e = threadIdx.x; e < a.n_experts; e += blockDim.x) count[e] = next[e] = 0;
  __syncthreads();
  for (int pair = threadIdx.x; pair < a.n_pairs; pair += blockDim.x)
    atomicAdd(&count[a.choice[pair]], 1);
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
  for (int pair = threadIdx.x; pair < a.n_pairs; pair += blockDim.x) {
    const int expert = a.choice[pair], rank = atomicAdd(&next[expert], 1), row = pair / a.top_k;
    const int place = start[expert] * a.slot_rows + rank;  // an expert's slots lie side by side
    a.in_row[place] = row;
    a.in_place[place] = place;
    a.out_place[place] = place;
    a.mark_row[place] = row;
    a.pair_place[pair] = place;
  }
  __syncthreads();
  for (int place = threadIdx.x; place < start[a.n_experts] * a.slot_rows; place += blockDim.x) {
    if (a.out_place[place] >= 0) continue;
    const int first = place / a.slot_rows * a.slot_rows;  // never empty
    a.in_row[place] = a.in_row[first];
    a.in_place[place] = first;
  }
}

__global__ void __launch_bounds__(128) combine_rows(CombineArgs a) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (column >= a.n_cols) return;
  float r = 0.0f;
  for (int i = 0; i < a.top_k; ++i) {
    const std::int64_t place = a.pair_place[row * a.top_k + i];
    r = fma_rn(a.weight[row * a.top_k + i], a.out[place * a.n_cols + column], r);
  }
  a.y[row * a.y_stride + column] = r;
}

}  // namespace

int slots_bound(int n_rows, int top_k, int n_experts, int slot_rows) {
  const int pairs = n_rows * top_k;
  return std::min(pairs, n_experts + pairs / slot_rows);
}

void launch_route(const RouteArgs& a, cudaStream_t stream) {
  require(a.n_experts <= kDeviceExpertsMax, "a router's experts fit the device's tables");
  launch(route_rows, dim3(static_cast<unsigned>(a.n_rows)), dim3(32), 0, stream, a);
}

void launch_slots(const SlotArgs& a, cudaStream_t stream) {
  launch(gather_slots, dim3(1), dim3(1024), 0, stream, a);
}

void launch_combine(const CombineArgs& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((a.n_cols + 127) / 128), static_cast<unsigned>(a.n_rows));
  launch(combine_rows, grid, dim3(128), 0, stream, a);
}

}  // namespace bolt::cuda
