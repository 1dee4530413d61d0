// Ranks on GPUs: opening them, copies that the host orders, and the kernels around an exchange.
#include <algorithm>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/engine/ranks.h"
#include "cuda/check.h"
#include "cuda/device.cuh"
#include "cuda/experts.cuh"
#include "cuda/launch.cuh"
#include "cuda/ranks.cuh"
#include "cuda/ranks.h"

namespace bolt {
namespace cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) pairs_of_slots(SlotArgs a, SlotPairs pairs) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  // Each place by itself: the pair that went there is found among those of its row.
  const int n_places = *a.n_slots * a.slot_rows;
  for (int place = blockIdx.x * blockDim.x + threadIdx.x; place < n_places;
       place += gridDim.x * blockDim.x) {
    const int from = a.in_place[place], row = a.in_row[place];
    int pair = row * a.top_k;
    while (a.pair_place[pair] != from) ++pair;
    pairs.in[place] = pair;
    pairs.out[place] = a.out_place[place] < 0 ? -1 : pair;
  }
}

// Grid (columns, rows).
__global__ void __launch_bounds__(kThreads)
    pack_columns(Rows<const float> rows, int first, int n, int slice, float* packed) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  for (int row = blockIdx.y; column < n && row < rows.n_rows; row += gridDim.y) {
    packed[static_cast<std::int64_t>(row) * slice + column] =
        rows.data[row * rows.stride + first + column];
  }
}

__global__ void __launch_bounds__(kThreads)
    unpack_columns(const float* packed, int slice, int rank, Rows<float> rows) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= rows.n_cols || column / slice == rank) return;
  const std::int64_t of_rank =
      static_cast<std::int64_t>(column / slice) * rows.n_rows * slice + column % slice;
  for (int row = blockIdx.y; row < rows.n_rows; row += gridDim.y) {
    rows.data[row * rows.stride + column] =
        packed[of_rank + static_cast<std::int64_t>(row) * slice];
  }
}

dim3 grid_of(int n_cols, int n_rows) {
  return dim3(static_cast<unsigned>((n_cols + kThreads - 1) / kThreads),
              static_cast<unsigned>(std::min(n_rows, 65535)));
}

class CudaMemory final : public RankMemory {
 public:
  explicit CudaMemory(CudaOps& ops) : ops_(ops) {}
  void settle() override { ops_.wait(); }
  void copy(Rows<const float> from, Rows<float> to) override {
    const auto bytes = [](std::int64_t n) { return static_cast<std::size_t>(n) * sizeof(float); };
    check(cudaMemcpy2DAsync(to.data, bytes(to.stride), from.data, bytes(from.stride),
                            bytes(to.n_cols), static_cast<std::size_t>(to.n_rows),
                            cudaMemcpyDefault, ops_.stream()),
          "exchanging rows");
  }
  void read_marks(const std::uint8_t* marks, std::span<std::uint8_t> to) override {
    check(cudaMemcpyAsync(to.data(), marks, to.size(), cudaMemcpyDeviceToHost, ops_.stream()),
          "reading marks");
    settle();
  }
  void write_marks(std::span<const std::uint8_t> from, std::uint8_t* marks) override {
    check(cudaMemcpyAsync(marks, from.data(), from.size(), cudaMemcpyHostToDevice, ops_.stream()),
          "writing marks");
    settle();
  }

 private:
  CudaOps& ops_;
};

// Ranks are in step only on GPUs that are as fast and large as each other.
void check_alike(const std::vector<int>& ordinals) {
  const std::vector<CudaDevice> devices = cuda_devices();
  const auto find = [&](int ordinal) -> const CudaDevice* {
    for (const CudaDevice& d : devices) {
      if (d.ordinal == ordinal) return &d;
    }
    return nullptr;
  };
  const CudaDevice* const first = find(ordinals[0]);
  for (const int ordinal : ordinals) {
    const CudaDevice* const d = find(ordinal);
    if (d == nullptr || first == nullptr) continue;  // open_part says so
    if (d->name == first->name && d->arch == first->arch &&
        d->memory_bytes / 100 == first->memory_bytes / 100) {
      continue;
    }
    throw Error(Exit::usage, "--device cuda:" + std::to_string(ordinals[0]) + "+" +
                                 std::to_string(ordinal) + ": cuda:" + std::to_string(ordinals[0]) +
                                 " is " + first->name + " with " + size_text(first->memory_bytes) +
                                 ", cuda:" + std::to_string(ordinal) + " is " + d->name + " with " +
                                 size_text(d->memory_bytes) +
                                 "; ranks of one model run on equal GPUs");
  }
}

}  // namespace

void launch_slot_pairs(const SlotArgs& slots, const SlotPairs& pairs, cudaStream_t stream) {
  const int n_places = slots.max_slots * slots.slot_rows;
  launch(pairs_of_slots, dim3(static_cast<unsigned>((n_places + kThreads - 1) / kThreads)),
         dim3(kThreads), 0, stream, slots, pairs);
}

void launch_pack(Rows<const float> rows, int slice, int rank, float* packed, cudaStream_t stream) {
  const ColumnRange own = part_of_columns(rows.n_cols, slice, rank);
  if (own.n == 0) return;
  launch(pack_columns, grid_of(own.n, rows.n_rows), dim3(kThreads), 0, stream, rows, own.first,
         own.n, slice, packed);
}

void launch_unpack(const float* packed, int slice, int rank, Rows<float> rows,
                   cudaStream_t stream) {
  launch(unpack_columns, grid_of(rows.n_cols, rows.n_rows), dim3(kThreads), 0, stream, packed,
         slice, rank, rows);
}

std::unique_ptr<Exchange> copied_exchange(RankMeeting& meeting, int rank, CudaOps& ops) {
  return std::make_unique<ThreadExchange>(meeting, rank, std::make_unique<CudaMemory>(ops));
}

}  // namespace cuda

void open_cuda_ranks(const std::vector<int>& ordinals, bool graphs, RankSetup& setup) {
  cuda::check_alike(ordinals);
  // What is shared is the first one's: no other GPU gets a context for it.
  cuda::check(cudaSetDevice(ordinals[0]), "choosing the device");
  const bool one_each = std::set<int>(ordinals.begin(), ordinals.end()).size() == ordinals.size();
  std::shared_ptr<cuda::NcclGroup> nccl;
  if (one_each) nccl = cuda::open_nccl(ordinals);
  const bool peers = one_each && cuda::are_peers(ordinals);
  // NCCL's kernels are captured with calls, but are not for graphs that kernels launch, as whole
  // rounds are; what the host orders cannot be captured.
  const cuda::CudaGraphs captured{graphs && (peers || nccl != nullptr), graphs && peers};
  setup.open = [ordinals, captured](const RankGraph& part, int rank) {
    return cuda::open_part(part.graph, part.pieces, ordinals[static_cast<std::size_t>(rank)],
                           captured);
  };
  const auto stop = std::make_shared<cuda::PeerStop>();
  setup.exchange = [=](RankMeeting& meeting, int rank, Ops& ops) -> std::unique_ptr<Exchange> {
    auto& device = static_cast<cuda::CudaOps&>(ops);
    std::unique_ptr<Exchange> exchange;
    if (nccl) exchange = cuda::nccl_exchange(nccl, meeting, rank, device);
    if (peers) {
      return cuda::peer_exchange(std::move(exchange), stop, meeting, rank, ordinals, device);
    }
    return exchange ? std::move(exchange) : cuda::copied_exchange(meeting, rank, device);
  };
}

}  // namespace bolt
