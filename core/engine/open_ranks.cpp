// How many threads a rank has, which GPU, and what its exchange is.
#include "core/engine/open_ranks.h"

#include <algorithm>
#include <fstream>

#include "core/base/error.h"
#include "core/ops/host.h"

namespace bolt {
namespace {

constexpr std::uint64_t kHostExpertBytes = std::uint64_t{32} << 20;
constexpr std::uint64_t kDeviceExpertBytes = std::uint64_t{512} << 20;

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "cpu";
}

}  // namespace

Backend open_host(const Graph& graph, int n_threads, Isa isa) {
  const Isa resolved = resolve_isa(isa);
  return {std::make_unique<HostOps>(n_threads, resolved), graph, processor_name(),
          isa_name(resolved), 0};
}

std::string rank_names(const EngineOptions& options) {
  if (options.rank_devices.empty()) return "cpu:" + std::to_string(options.n_ranks);
  std::string names = "cuda:";
  for (const int ordinal : options.rank_devices) {
    names += (names.back() == ':' ? "" : ",") + std::to_string(ordinal);
  }
  return names;
}

std::unique_ptr<Ranks> open_ranks(const Graph& graph, const EngineOptions& options, int n_threads) {
  check_ranks(graph, options.n_ranks, rank_names(options));
  RankSetup setup;
  setup.n_ranks = options.n_ranks;
  setup.on_device = !options.rank_devices.empty();
  if (setup.on_device) {
    require(static_cast<int>(options.rank_devices.size()) == options.n_ranks, "a GPU a rank");
    setup.spins = options.n_ranks <= usable_cores();
    setup.expert_bytes = kDeviceExpertBytes;
    open_cuda_ranks(options.rank_devices, options.graphs, setup);
    return std::make_unique<Ranks>(graph, setup);
  }
  setup.spins = std::max(n_threads, options.n_ranks) <= usable_cores();
  setup.expert_bytes = kHostExpertBytes;
  setup.open = [&](const RankGraph& part, int rank) {
    // The first ranks take what does not divide.
    const int n = (n_threads + options.n_ranks - 1 - rank) / options.n_ranks;
    return open_host(part.graph, std::max(1, n), options.isa);
  };
  setup.exchange = [](RankMeeting& meeting, int rank, Ops&) {
    return std::make_unique<ThreadExchange>(meeting, rank, std::make_unique<HostMemory>());
  };
  return std::make_unique<Ranks>(graph, setup);
}

std::uint64_t free_bytes_of(const Ranks& ranks, const EngineOptions& options) {
  if (options.rank_devices.empty()) {
    return ranks.backend(0).ops->free_bytes() / static_cast<std::uint64_t>(ranks.n_ranks());
  }
  std::uint64_t least = 0;
  for (int r = 0; r < ranks.n_ranks(); ++r) {
    const int ordinal = options.rank_devices[static_cast<std::size_t>(r)];
    const auto sharers =
        std::count(options.rank_devices.begin(), options.rank_devices.end(), ordinal);
    std::uint64_t bytes = 0;
    ranks.each([&](int rank) {
      if (rank == r) bytes = ranks.backend(r).ops->free_bytes();
    });
    bytes /= static_cast<std::uint64_t>(sharers);
    if (r == 0 || bytes < least) least = bytes;
  }
  return least;
}

}  // namespace bolt
