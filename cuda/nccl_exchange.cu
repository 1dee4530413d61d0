// The exchange by NCCL, which is opened when two GPUs first share a model: a machine without it
// runs all the same. Declarations as in NCCL's documentation (2.18 and later); NVLink multicast is
// left off, as it is of no use to gathers and not to be had everywhere.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

#include "core/base/error.h"
#include "cuda/check.h"
#include "cuda/ranks.cuh"
#include "cuda/ranks.h"

namespace bolt::cuda {
namespace {

using Comm = struct ncclComm*;
constexpr int kOk = 0, kUint8 = 1, kFloat32 = 7, kMax = 2;

struct Nccl {
  int (*init_all)(Comm*, int, const int*) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int, Comm, cudaStream_t) = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, Comm, cudaStream_t) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*destroy)(Comm) = nullptr;
  int (*abort)(Comm) = nullptr;
  const char* (*error_text)(int) = nullptr;

  // Stays open as long as the process runs. False where it is not installed or lacks something.
  bool open() {
    (void)::setenv("NCCL_NVLS_ENABLE", "0", 1);
    void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    bool found = true;
    const auto find = [&](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      found = found && function != nullptr;
    };
    find("ncclCommInitAll", init_all);
    find("ncclAllGather", all_gather);
    find("ncclAllReduce", all_reduce);
    find("ncclGroupStart", group_start);
    find("ncclGroupEnd", group_end);
    find("ncclCommDestroy", destroy);
    find("ncclCommAbort", abort);
    find("ncclGetErrorString", error_text);
    return found;
  }

  void check(int status, const char* doing) const {
    if (status == kOk) return;
    throw Error(Exit::fault, std::string("nccl: ") + doing + ": " + error_text(status) +
                                 "; NCCL_DEBUG=WARN says more");
  }
};

}  // namespace

class NcclGroup {
 public:
  NcclGroup(const Nccl& nccl, const std::vector<int>& ordinals)
      : nccl(nccl), comms(ordinals.size()) {
    nccl.check(nccl.init_all(comms.data(), static_cast<int>(ordinals.size()), ordinals.data()),
               "opening the GPUs' communicators");
  }
  ~NcclGroup() {
    for (const Comm comm : comms) {
      if (!abandoned) (void)nccl.destroy(comm);
    }
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Kernels that wait for a rank which has failed end; what they leave is of no use.
  void abandon() {
    const std::lock_guard<std::mutex> hold(lock);
    if (abandoned) return;
    abandoned = true;
    for (const Comm comm : comms) (void)nccl.abort(comm);
  }

  const Nccl nccl;
  std::vector<Comm> comms;
  std::mutex lock;
  std::atomic<bool> abandoned{false};
};

namespace {

class NcclExchange final : public ThreadExchange {
 public:
  NcclExchange(std::shared_ptr<NcclGroup> group, RankMeeting& meeting, int rank, CudaOps& ops)
      : ThreadExchange(meeting, rank, std::make_unique<HostMemory>()),
        group_(std::move(group)),
        ops_(ops) {}
  const char* name() const override { return "NCCL"; }

  void all_gather(std::span<const SharedRows> shared) override {
    if (group_->abandoned) throw Abandoned{};
    const Nccl& nccl = group_->nccl;
    const cudaStream_t stream = ops_.stream();
    std::size_t n_floats = 0;
    for (const SharedRows& s : shared) n_floats += is_in_place(s) ? 0 : packed_floats(s);
    float* const packed = n_floats > 0 ? ops_.exchange_memory(n_floats) : nullptr;

    float* next = packed;
    for (const SharedRows& s : shared) {
      if (is_in_place(s)) continue;
      launch_pack(s.rows, s.slice_cols, rank(), next + own_offset(s), stream);
      next += packed_floats(s);
    }
    nccl.check(nccl.group_start(), "exchanging rows");
    next = packed;
    for (const SharedRows& s : shared) {
      float* const all = is_in_place(s) ? s.rows.data : next;
      nccl.check(
          nccl.all_gather(all + own_offset(s), all, slice_floats(s), kFloat32, comm(), stream),
          "exchanging rows");
      if (!is_in_place(s)) next += packed_floats(s);
    }
    nccl.check(nccl.group_end(), "exchanging rows");
    next = packed;
    for (const SharedRows& s : shared) {
      if (is_in_place(s)) continue;
      launch_unpack(next, s.slice_cols, rank(), s.rows, stream);
      next += packed_floats(s);
    }
  }

  void merge_marks(std::uint8_t* marks, int n) override {
    if (group_->abandoned) throw Abandoned{};
    group_->nccl.check(group_->nccl.all_reduce(marks, marks, static_cast<std::size_t>(n), kUint8,
                                               kMax, comm(), ops_.stream()),
                       "merging marks");
  }

  void abandon() override {
    ThreadExchange::abandon();
    group_->abandon();
  }

 private:
  Comm comm() const { return group_->comms[static_cast<std::size_t>(rank())]; }
  // One row that the ranks share evenly lies as NCCL leaves it.
  bool is_in_place(const SharedRows& s) const {
    return s.rows.n_rows == 1 && s.rows.n_cols == s.slice_cols * n_ranks();
  }
  std::size_t slice_floats(const SharedRows& s) const {
    return static_cast<std::size_t>(s.rows.n_rows) * static_cast<std::size_t>(s.slice_cols);
  }
  std::size_t own_offset(const SharedRows& s) const {
    return slice_floats(s) * static_cast<std::size_t>(rank());
  }
  std::size_t packed_floats(const SharedRows& s) const {
    return slice_floats(s) * static_cast<std::size_t>(n_ranks());
  }

  const std::shared_ptr<NcclGroup> group_;
  CudaOps& ops_;
};

}  // namespace

std::shared_ptr<NcclGroup> open_nccl(const std::vector<int>& ordinals) {
  Nccl nccl;
  if (!nccl.open()) return nullptr;
  return std::make_shared<NcclGroup>(nccl, ordinals);
}

std::unique_ptr<Exchange> nccl_exchange(std::shared_ptr<NcclGroup> group, RankMeeting& meeting,
                                        int rank, CudaOps& ops) {
  return std::make_unique<NcclExchange>(std::move(group), meeting, rank, ops);
}

}  // namespace bolt::cuda
