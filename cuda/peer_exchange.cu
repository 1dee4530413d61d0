// The exchange between GPUs that reach each other's memory: one kernel pushes a rank's columns into
// the others' mailboxes, says so, and takes what they have pushed into its own. Plain kernels, so
// that they are captured with the rest, and graphs that the device launches may hold them.
#include <algorithm>
#include <chrono>
#include <thread>
#include <type_traits>

#include "core/base/error.h"
#include "core/engine/ranks.h"
#include "core/pack/rank_graph.h"
#include "cuda/check.h"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/peer_exchange.cuh"
#include "cuda/ranks.h"

namespace bolt::cuda {
namespace {

constexpr int kThreads = 512;
constexpr std::int64_t kCapacity = std::int64_t{2} << 20;  // floats: 8 MiB a rank and parity

BOLT_DEV void set_flag(unsigned* flag, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
BOLT_DEV unsigned read_flag(const unsigned* flag) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// Says to every other rank that the block has sent its `epoch`-th, and waits for theirs. What the
// block's threads have written before is there when the others see it.
BOLT_DEV void meet(const PeerGroup& g, int block, unsigned epoch) {
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < g.n_ranks && peer != g.rank) {
    __threadfence_system();
    set_flag(g.memory[peer].flags + g.rank * (kPeerBlocks + 1) + block, epoch);
    const unsigned* const theirs = g.memory[g.rank].flags + peer * (kPeerBlocks + 1) + block;
    for (unsigned n = 1; static_cast<int>(read_flag(theirs) - epoch) < 0; ++n) {
      if (n % 4096 == 0 && *g.stop != 0) break;
    }
  }
  __syncthreads();
}

// Where a rank's floats of one parity lie in somebody's mailbox.
BOLT_DEV float* mail_of(const PeerGroup& g, int owner, int sender, unsigned epoch) {
  return g.memory[owner].rows + ((epoch & 1) * g.n_ranks + sender) * g.capacity;
}

// f(place in the mail, place in the rows) of the block's share of a sender's columns, V floats at
// once. Sender and receiver cut them alike.
template <int V, class F>
BOLT_DEV void each_of(const PeerParts& parts, int sender, const F& f) {
  std::int64_t at = 0;
  for (int p = 0; p < parts.n; ++p) {
    const Rows<float>& rows = parts.part[p].rows;
    const int slice = parts.part[p].slice, first = min(slice * sender, rows.n_cols);
    const int n = min(slice, rows.n_cols - first) / V;
    const std::int64_t total = static_cast<std::int64_t>(rows.n_rows) * n;
    for (std::int64_t i = blockIdx.x * kThreads + threadIdx.x; i < total;
         i += kPeerBlocks * kThreads) {
      const std::int64_t row = i / n, column = i % n * V;
      f(at + row * slice + column, rows.data + row * rows.stride + first + column);
    }
    at += static_cast<std::int64_t>(rows.n_rows) * slice;
  }
}

// Grid kPeerBlocks. A mailbox's parity is written again two exchanges on: whoever writes has met
// the owner in the one between, which the owner began after it had emptied this one.
template <int V>
__global__ void __launch_bounds__(kThreads) exchange_rows(PeerGroup g, PeerParts parts) {
  using Vector = std::conditional_t<V == 4, float4, float>;
  wait_for_earlier_kernels();
  const int block = blockIdx.x;
  unsigned* const count = g.memory[g.rank].count + block;
  const unsigned epoch = *count + 1;
  each_of<V>(parts, g.rank, [&](std::int64_t place, const float* from) {
    const Vector value = *reinterpret_cast<const Vector*>(from);
    for (int i = 1; i < g.n_ranks; ++i) {
      const int peer = (g.rank + i) % g.n_ranks;
      *reinterpret_cast<Vector*>(mail_of(g, peer, g.rank, epoch) + place) = value;
    }
  });
  meet(g, block, epoch);
  for (int i = 1; i < g.n_ranks; ++i) {
    const int peer = (g.rank + i) % g.n_ranks;
    const float* const mail = mail_of(g, g.rank, peer, epoch);
    each_of<V>(parts, peer, [&](std::int64_t place, float* to) {
      *reinterpret_cast<Vector*>(to) = __ldcg(reinterpret_cast<const Vector*>(mail + place));
    });
  }
  if (threadIdx.x == 0) *count = epoch;
}

// One block, with a count and a flag of its own.
__global__ void __launch_bounds__(kThreads)
    exchange_marks(PeerGroup g, std::uint8_t* marks, int n) {
  wait_for_earlier_kernels();
  unsigned* const count = g.memory[g.rank].count + kPeerBlocks;
  const unsigned epoch = *count + 1;
  const auto mail = [&](int owner, int sender) {
    return g.memory[owner].marks + ((epoch & 1) * g.n_ranks + sender) * kPeerMarksMax;
  };
  for (int i = threadIdx.x; i < n; i += kThreads) {
    for (int peer = 0; peer < g.n_ranks; ++peer) {
      if (peer != g.rank) mail(peer, g.rank)[i] = marks[i];
    }
  }
  meet(g, kPeerBlocks, epoch);
  for (int i = threadIdx.x; i < n; i += kThreads) {
    std::uint8_t mark = marks[i];
    for (int peer = 0; peer < g.n_ranks; ++peer) {
      if (peer != g.rank) mark |= __ldcg(mail(g.rank, peer) + i);
    }
    marks[i] = mark;
  }
  if (threadIdx.x == 0) *count = epoch;
}

bool is_even(const PeerParts& parts) {
  for (int p = 0; p < parts.n; ++p) {
    const PeerRows& part = parts.part[p];
    if (part.rows.stride % 4 != 0 || part.rows.n_cols % 4 != 0 || part.slice % 4 != 0 ||
        reinterpret_cast<std::uintptr_t>(part.rows.data) % 16 != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

void launch_exchange_rows(const PeerGroup& group, const PeerParts& parts, cudaStream_t stream) {
  const auto kernel = is_even(parts) ? exchange_rows<4> : exchange_rows<1>;
  launch(kernel, dim3(kPeerBlocks), dim3(kThreads), 0, stream, group, parts);
}

void launch_exchange_marks(const PeerGroup& group, std::uint8_t* marks, int n,
                           cudaStream_t stream) {
  require(n <= kPeerMarksMax, "a call's marks fit the mailbox");
  launch(exchange_marks, dim3(1), dim3(kThreads), 0, stream, group, marks, n);
}

PeerMailbox::PeerMailbox(int n_ranks, std::int64_t capacity) {
  const auto n = static_cast<std::size_t>(n_ranks);
  rows_ = device_alloc<float>(2 * n * static_cast<std::size_t>(capacity), "an exchange's mailbox");
  marks_ = device_alloc<std::uint8_t>(2 * n * kPeerMarksMax, "an exchange's mailbox");
  counters_ = device_alloc<unsigned>((n + 1) * (kPeerBlocks + 1), "an exchange's flags");
  check(cudaMemset(counters_.get(), 0, (n + 1) * (kPeerBlocks + 1) * sizeof(unsigned)),
        "clearing an exchange's flags");
  check(cudaDeviceSynchronize(), "clearing an exchange's flags");
  // A kernel is loaded when it is first asked for, and loading may wait for all that runs: not for
  // one that waits for another rank.
  const auto load = [](auto* kernel) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel), "loading an exchange's kernels");
  };
  load(exchange_rows<4>), load(exchange_rows<1>), load(exchange_marks);
  memory = {rows_.get(), marks_.get(), counters_.get(), counters_.get() + n * (kPeerBlocks + 1)};
}

bool are_peers(const std::vector<int>& ordinals) {
  if (ordinals.size() > kPeersMax) return false;
  for (const int a : ordinals) {
    for (const int b : ordinals) {
      int can = 0;
      if (a != b && (cudaDeviceCanAccessPeer(&can, a, b) != cudaSuccess || can == 0)) return false;
    }
  }
  return true;
}

namespace {

class PeerExchange final : public ThreadExchange {
 public:
  // others: what many rows go by; null: by the mailboxes, in several turns.
  PeerExchange(std::unique_ptr<Exchange> others, std::shared_ptr<PeerStop> stop,
               RankMeeting& meeting, int rank, const std::vector<int>& ordinals, CudaOps& ops)
      : ThreadExchange(meeting, rank, std::make_unique<HostMemory>()),
        others_(std::move(others)),
        stop_(std::move(stop)),
        ops_(ops),
        mailbox_(static_cast<int>(ordinals.size()), kCapacity) {
    for (const int other : ordinals) {
      if (other == ordinals[static_cast<std::size_t>(rank)]) continue;
      const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
      if (status == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
      } else {
        check(status, "reaching another GPU's memory");
      }
    }
    group_.rank = rank;
    group_.n_ranks = static_cast<int>(ordinals.size());
    group_.capacity = kCapacity;
    group_.stop = stop_->flag();
    meeting.post(rank) = &mailbox_.memory;
    meeting.wait();
    for (int r = 0; r < group_.n_ranks; ++r) {
      group_.memory[r] = *static_cast<const PeerMemory*>(meeting.post(r));
    }
    meeting.wait();
    try_out();
  }

  const char* name() const override {
    return others_ ? "GPUs' own stores, and NCCL for many rows" : "GPUs' own stores";
  }

  void all_gather(std::span<const SharedRows> shared) override {
    if (stop_->is_set()) throw Abandoned{};
    if (others_ && floats_of(shared) > kCapacity && !is_captured()) {
      return others_->all_gather(shared);
    }
    PeerParts parts;
    std::int64_t n_floats = 0;
    const auto send = [&] {
      if (parts.n > 0) launch_exchange_rows(group_, parts, ops_.stream());
      parts.n = 0, n_floats = 0;
    };
    for (const SharedRows& s : shared) {
      // Rows that do not fit the mailbox take turns.
      const auto at_once = static_cast<int>(kCapacity / s.slice_cols);
      require(at_once > 0, "a row's columns fit the mailbox");
      for (int first = 0; first < s.rows.n_rows; first += at_once) {
        const int n = std::min(at_once, s.rows.n_rows - first);
        const std::int64_t needed = std::int64_t{n} * s.slice_cols;
        if (parts.n == kPeerPartsMax || n_floats + needed > kCapacity) send();
        parts.part[parts.n++] = {s.rows.rows(first, n), s.slice_cols};
        n_floats += needed;
      }
    }
    send();
  }

  void merge_marks(std::uint8_t* marks, int n) override {
    if (stop_->is_set()) throw Abandoned{};
    launch_exchange_marks(group_, marks, n, ops_.stream());
  }

  void abandon() override {
    stop_->set();
    ThreadExchange::abandon();
    if (others_) others_->abandon();
  }

 private:
  // Machines are known whose GPUs claim to reach each other, and whose stores are lost on the way.
  void try_out() {
    const int n_cols = kTileRows * group_.n_ranks;
    const auto first = static_cast<std::ptrdiff_t>(kTileRows * group_.rank);
    std::vector<float> own(static_cast<std::size_t>(n_cols)), got(own.size()), all(own.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(i + 1);
    std::copy_n(all.begin() + first, kTileRows, own.begin() + first);
    const std::uint64_t bytes = own.size() * sizeof(float);
    auto* const row = static_cast<float*>(ops_.allocate(bytes, "a trial of the exchange"));
    ops_.write(own.data(), bytes, row);
    const SharedRows shared{{row, 1, n_cols}, kTileRows};
    all_gather({&shared, 1});
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(kExchangeDeadlineMs);
    while (cudaStreamQuery(ops_.stream()) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > end) stop_->set();  // the kernel ends by that
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ops_.read(row, got);
    if (got == all) return;
    stop_->set();
    throw Error(Exit::fault,
                "the GPUs claim to reach each other's memory, but what one stores does not arrive "
                "at the other: see `nvidia-smi topo -p2p w`, and whether an IOMMU is in the way");
  }

  static std::int64_t floats_of(std::span<const SharedRows> shared) {
    std::int64_t n = 0;
    for (const SharedRows& s : shared) n += std::int64_t{s.rows.n_rows} * s.slice_cols;
    return n;
  }
  // Graphs that the device launches hold plain kernels alone.
  bool is_captured() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(ops_.stream(), &status), "asking for a capture");
    return status != cudaStreamCaptureStatusNone;
  }

  const std::unique_ptr<Exchange> others_;
  const std::shared_ptr<PeerStop> stop_;
  CudaOps& ops_;
  PeerMailbox mailbox_;
  PeerGroup group_;
};

}  // namespace

std::unique_ptr<Exchange> peer_exchange(std::unique_ptr<Exchange> others,
                                        std::shared_ptr<PeerStop> stop, RankMeeting& meeting,
                                        int rank, const std::vector<int>& ordinals, CudaOps& ops) {
  return std::make_unique<PeerExchange>(std::move(others), std::move(stop), meeting, rank, ordinals,
                                        ops);
}

}  // namespace bolt::cuda
