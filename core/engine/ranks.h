// The ranks of one model in one process: a thread each, with the rank's part of the weights, its
// ops and its end of the exchange; and what becomes of the others when one of them fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/backend.h"
#include "core/engine/rank_ops.h"
#include "core/ops/exchange.h"
#include "core/pack/rank_graph.h"

namespace bolt {

// How ranks are made. The functions run on the ranks' threads, at the same time.
struct RankSetup {
  int n_ranks = 2;
  bool on_device = false;
  bool spins = false;  // ranks that wait have a core each
  int deadline_ms = kExchangeDeadlineMs;
  std::uint64_t expert_bytes = std::uint64_t{32} << 20;  // as RankOps'
  // The rank's ops, and its part with the weights where those read them.
  std::function<Backend(const RankGraph& part, int rank)> open;
  std::function<std::unique_ptr<Exchange>(RankMeeting& meeting, int rank, Ops& ops)> exchange;
};

class Ranks {
 public:
  // whole must outlive it. Throws what the first rank that failed threw.
  Ranks(const Graph& whole, const RankSetup& setup);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int n_ranks() const;
  RankOps& ops(int rank) const;
  const Graph& part(int rank) const;  // the rank's own shapes: what it takes in memory
  const Backend& backend(int rank) const;
  const char* exchange_name() const;

  // Runs f(rank) on every rank's thread. If all fail at the same place, as ranks do that are asked
  // something impossible, throws what rank 0 threw. If some do, the others are out of step: throws
  // what the first of them threw, and again whenever it is asked for more. Ends the process with 6
  // where a rank does not come back within the deadline after another failed.
  void each(const std::function<void(int rank)>& f) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bolt
