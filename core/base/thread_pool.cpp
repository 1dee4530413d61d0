// The thread pool: one word says what is left to claim, so that a region costs microseconds and a
// late worker delays nobody. What the work is belongs to the callers.
#include "core/base/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/cpu.h"
#include "core/base/error.h"
#include "core/base/spin.h"

namespace bolt {

namespace {

constexpr int kRunsPerThread = 6;  // so that a slow core leaves its share to the others

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}
void futex_wake(std::atomic<std::uint32_t>& word, int n_threads) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, n_threads, nullptr, nullptr, 0);
}

}  // namespace

// A region is published by storing its number of runs into `open`; a thread claims a run by raising
// the low half of that word. A claim succeeds only while the region has runs left, and a region
// ends only when all its runs are done, so whoever holds a claim may read the region's plain
// fields, and a worker that wakes late finds nothing to claim and touches nothing.
struct ThreadPool::State {
  int n_threads = 1;
  std::chrono::microseconds spin_time = kSpin;
  std::vector<std::thread> workers;

  alignas(64) std::atomic<std::uint64_t> open{0};       // runs of the region << 32 | runs claimed
  alignas(64) std::atomic<std::uint32_t> n_pending{0};  // runs not yet done
  alignas(64) std::atomic<std::uint32_t> bell{0};       // workers sleep on it
  std::atomic<int> n_asleep{0};
  std::atomic<bool> caller_waits{false};
  std::atomic<bool> stop{false};

  int n = 0, n_runs = 0;
  const std::function<void(int, int, int)>* body = nullptr;
  std::mutex failure_lock;
  std::exception_ptr failure;

  ~State() {
    stop.store(true);
    bell.fetch_add(1);
    futex_wake(bell, INT_MAX);
    for (std::thread& worker : workers) worker.join();
  }

  bool has_work() const {
    const std::uint64_t word = open.load();
    return static_cast<std::uint32_t>(word) < static_cast<std::uint32_t>(word >> 32);
  }

  // Claims and runs what is left of the region.
  void work(int thread) {
    std::uint64_t word = open.load(std::memory_order_acquire);
    while (static_cast<std::uint32_t>(word) < static_cast<std::uint32_t>(word >> 32)) {
      if (!open.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
        continue;
      }
      run(static_cast<int>(static_cast<std::uint32_t>(word)), thread);
      word = open.load(std::memory_order_acquire);
    }
  }

  void run(int index, int thread) {
    const auto edge = [this](int i) {
      return static_cast<int>(static_cast<std::int64_t>(n) * i / n_runs);
    };
    try {
      (*body)(edge(index), edge(index + 1), thread);
    } catch (...) {
      const std::lock_guard<std::mutex> hold(failure_lock);
      if (!failure) failure = std::current_exception();
    }
    if (n_pending.fetch_sub(1) == 1 && caller_waits.load()) futex_wake(n_pending, 1);
  }

  void serve(int thread) {
    while (!stop.load(std::memory_order_relaxed)) {
      work(thread);
      if (spin(spin_time, [this] { return has_work() || stop.load(std::memory_order_relaxed); })) {
        continue;
      }
      const std::uint32_t seen = bell.load();
      n_asleep.fetch_add(1);
      if (!has_work() && !stop.load()) futex_wait(bell, seen);
      n_asleep.fetch_sub(1);
    }
  }
};

ThreadPool::ThreadPool(int n_threads) : state_(std::make_unique<State>()) {
  require(n_threads >= 1, "a pool has at least one thread");
  state_->n_threads = n_threads;
  // More threads than cores: a spinning worker would hold the core that the work needs.
  if (n_threads > usable_cores()) state_->spin_time = {};
  try {
    for (int thread = 1; thread < n_threads; ++thread) {
      state_->workers.emplace_back([state = state_.get(), thread] { state->serve(thread); });
    }
  } catch (const std::exception& e) {
    throw Error(Exit::fault, "starting " + std::to_string(n_threads) + " threads: " + e.what() +
                                 "; ask for fewer with --threads");
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::n_threads() const { return state_->n_threads; }

void ThreadPool::parallel_for(int n, int grain,
                              const std::function<void(int begin, int end, int thread)>& body) {
  if (n <= 0) return;
  State& pool = *state_;
  const int n_runs = std::min(std::max(1, n / std::max(grain, 1)), pool.n_threads * kRunsPerThread);
  if (pool.n_threads == 1 || n_runs == 1) {
    body(0, n, 0);
    return;
  }
  pool.n = n;
  pool.n_runs = n_runs;
  pool.body = &body;
  pool.failure = nullptr;
  pool.n_pending.store(static_cast<std::uint32_t>(n_runs));
  pool.open.store(static_cast<std::uint64_t>(n_runs) << 32);
  if (const int asleep = pool.n_asleep.load(); asleep > 0) {
    pool.bell.fetch_add(1);
    futex_wake(pool.bell, std::min(asleep, n_runs - 1));
  }
  pool.work(0);
  const auto done = [&pool] { return pool.n_pending.load(std::memory_order_acquire) == 0; };
  while (!spin(pool.spin_time, done)) {
    pool.caller_waits.store(true);
    const std::uint32_t left = pool.n_pending.load();
    if (left != 0) futex_wait(pool.n_pending, left);
    pool.caller_waits.store(false);
  }
  if (pool.failure) std::rethrow_exception(std::exchange(pool.failure, nullptr));
}

}  // namespace bolt
