// Threads of ranks, and their failures.
#include "core/engine/ranks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "core/base/cpu.h"
#include "core/base/error.h"
#include "core/base/spin.h"

namespace bolt {
namespace {

constexpr std::chrono::milliseconds kNap{100};

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an unknown failure";
  }
}

}  // namespace

struct Ranks::State {
  struct Rank {
    RankGraph part;
    Backend backend;
    std::unique_ptr<Exchange> exchange;
    std::unique_ptr<RankOps> ops;
    std::exception_ptr failure;  // of its own, in the last call
  };

  explicit State(const RankSetup& setup)
      : meeting(setup.n_ranks, setup.spins, setup.deadline_ms),
        deadline(setup.deadline_ms),
        watches(setup.on_device),
        spin_time(setup.spins ? kSpin : std::chrono::microseconds{0}),
        ranks(static_cast<std::size_t>(setup.n_ranks)) {}

  ~State() {
    {
      const std::lock_guard<std::mutex> hold(lock);
      stop = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  Rank& at(int r) { return ranks[static_cast<std::size_t>(r)]; }

  void serve(int r) {
    std::uint64_t done = 0;
    for (;;) {
      const std::function<void(int)>* work = nullptr;
      // Calls of a round follow each other soon.
      (void)spin(spin_time, [&] { return n_asked.load() != done; });
      {
        std::unique_lock<std::mutex> hold(lock);
        changed.wait(hold, [&] { return stop || n_asked != done; });
        if (stop) return;
        done = n_asked.load();
        work = task;
      }
      std::exception_ptr failure;
      bool left_behind = false;
      try {
        (*work)(r);
      } catch (const Abandoned&) {
        left_behind = true;
      } catch (...) {
        failure = std::current_exception();
        meeting.abandon();
        if (at(r).exchange) at(r).exchange->abandon();
      }
      const std::lock_guard<std::mutex> hold(lock);
      at(r).failure = failure;
      some_failed = some_failed || failure || left_behind;
      --n_busy;
      if (n_busy == 0 || some_failed) finished.notify_all();
    }
  }

  // Weights first: that takes as long as it takes. Then they meet.
  void open(const Graph& whole, const RankSetup& setup) {
    const int n_ranks = static_cast<int>(ranks.size());
    try {
      for (int r = 0; r < n_ranks; ++r) {
        threads.emplace_back([this, r, n_ranks, keep = !setup.on_device] {
          if (keep) keep_to_node_share(r, n_ranks);
          serve(r);
        });
      }
    } catch (const std::exception& e) {
      throw Error(Exit::fault, "starting " + std::to_string(n_ranks) + " ranks: " + e.what() +
                                   "; ask for fewer with --device");
    }
    const auto load = [&](int r) {
      Rank& rank = at(r);
      rank.part = rank_graph(whole, {r, n_ranks}, setup.on_device);
      rank.backend = setup.open(rank.part, r);
    };
    run(load, false);
    // No op runs yet, so that nobody waits for another.
    const auto meet = [&](int r) {
      Rank& rank = at(r);
      rank.exchange = setup.exchange(meeting, r, *rank.backend.ops);
      rank.ops = std::make_unique<RankOps>(*rank.backend.ops, *rank.exchange, whole,
                                           rank.backend.graph, setup.expert_bytes);
    };
    run(meet, false);
  }

  // is_urgent: once one has failed, the others do not need long.
  void run(const std::function<void(int)>& f, bool is_urgent) {
    std::unique_lock<std::mutex> hold(lock);
    if (lost) throw Error(Exit::fault, *lost);
    for (Rank& rank : ranks) rank.failure = nullptr;
    task = &f;
    some_failed = false;
    n_busy = static_cast<int>(ranks.size());
    ++n_asked;
    changed.notify_all();
    const auto is_over = [&] { return n_busy == 0 || some_failed; };
    if (is_urgent) {
      watch(hold, is_over);
    } else {
      finished.wait(hold, is_over);
    }
    if (!some_failed) return;
    const auto all_back = [&] { return n_busy == 0; };
    if (!is_urgent) {
      finished.wait(hold, all_back);
    } else if (!finished.wait_for(hold, deadline, all_back)) {
      end_process();
    }
    settle();
  }

  // Waits as long as any rank gets on. Time in which the whole process stood still does not count.
  template <class Done>
  void watch(std::unique_lock<std::mutex>& hold, const Done& is_over) {
    std::uint64_t seen = 0;
    std::chrono::nanoseconds waited{0};
    while (!is_over()) {
      const auto start = std::chrono::steady_clock::now();
      finished.wait_for(hold, std::min(kNap, deadline));
      waited +=
          std::min<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start, 2 * kNap);
      std::uint64_t n_steps = 0;
      for (const Rank& rank : ranks) n_steps += rank.ops ? rank.ops->n_steps() : 0;
      if (n_steps != seen) waited = {};
      seen = n_steps;
      if (watches && !is_over() && waited >= deadline) end_process();
    }
  }

  // After a call in which some rank failed.
  void settle() {
    std::exception_ptr first;
    bool all = true;
    for (const Rank& rank : ranks) {
      if (!first) first = rank.failure;
      all = all && rank.failure;
    }
    require(first != nullptr, "a rank that waits in vain waits for one that failed");
    if (all) {
      meeting.resume();
    } else {
      lost = "a rank failed and the others are out of step: " + message_of(first) +
             "; nothing more can be asked of this model";
    }
    std::rethrow_exception(first);
  }

  [[noreturn]] void end_process() const {
    std::string why;
    for (const Rank& rank : ranks) {
      if (rank.failure && why.empty()) why = message_of(rank.failure);
    }
    if (why.empty()) why = "no rank gets on any more; the exchange between their devices hangs";
    std::fprintf(stderr, "bolt: a rank does not come back: %s; nothing of this run is sealed\n",
                 why.c_str());
    std::_Exit(static_cast<int>(Exit::fault));
  }

  RankMeeting meeting;
  const std::chrono::milliseconds deadline;
  const bool watches;  // what hangs in a device does not meet, and misses no deadline there
  const std::chrono::microseconds spin_time;
  std::vector<Rank> ranks;
  std::optional<std::string> lost;

  std::mutex lock;
  std::condition_variable changed, finished;
  const std::function<void(int)>* task = nullptr;
  std::atomic<std::uint64_t> n_asked{0};
  int n_busy = 0;
  bool some_failed = false, stop = false;
  std::vector<std::thread> threads;  // last: they use what is above
};

Ranks::Ranks(const Graph& whole, const RankSetup& setup) : state_(std::make_unique<State>(setup)) {
  state_->open(whole, setup);
}
Ranks::~Ranks() = default;

int Ranks::n_ranks() const { return static_cast<int>(state_->ranks.size()); }
RankOps& Ranks::ops(int rank) const { return *state_->at(rank).ops; }
const Graph& Ranks::part(int rank) const { return state_->at(rank).backend.graph; }
const Backend& Ranks::backend(int rank) const { return state_->at(rank).backend; }
const char* Ranks::exchange_name() const { return state_->at(0).exchange->name(); }

void Ranks::each(const std::function<void(int rank)>& f) const { state_->run(f, true); }

}  // namespace bolt
