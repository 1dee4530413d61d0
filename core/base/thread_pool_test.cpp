// The pool: every index once, exceptions, regions back to back, more threads than cores, and its
// cost.
#include "core/base/thread_pool.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace bolt;

TEST_CASE("thread_pool: every index is done exactly once, in runs of at least the grain") {
  for (int n_threads : {1, 2, 3, 8}) {
    ThreadPool pool(n_threads);
    CHECK(pool.n_threads() == n_threads);
    for (int n : {0, 1, 2, 7, 100, 1013}) {
      for (int grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> done(static_cast<std::size_t>(n));
        std::atomic<int> shortest{n}, bad_threads{0};
        pool.parallel_for(n, grain, [&](int begin, int end, int thread) {
          if (thread < 0 || thread >= n_threads) ++bad_threads;
          for (int i = begin; i < end; ++i) ++done[static_cast<std::size_t>(i)];
          for (int seen = shortest;
               end - begin < seen && !shortest.compare_exchange_weak(seen, end - begin);) {
          }
        });
        for (const auto& count : done) REQUIRE(count == 1);
        CHECK(bad_threads == 0);
        CHECK(shortest >= std::min(n, grain));
      }
    }
  }
}

TEST_CASE("thread_pool: no two runs share a thread's number at a time") {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> clashes{0};
  for (int round = 0; round < 200; ++round) {
    pool.parallel_for(64, 1, [&](int, int, int thread) {
      if (++inside[static_cast<std::size_t>(thread)] != 1) ++clashes;
      --inside[static_cast<std::size_t>(thread)];
    });
  }
  CHECK(clashes == 0);
}

TEST_CASE("thread_pool: an exception comes out once and the pool goes on") {
  for (int n_threads : {1, 3}) {
    ThreadPool pool(n_threads);
    const auto fails = [&] {
      pool.parallel_for(100, 1, [](int begin, int end, int) {
        if (begin <= 50 && 50 < end) throw std::runtime_error("fifty");
      });
    };
    CHECK_THROWS_WITH_AS(fails(), "fifty", std::runtime_error);
    std::atomic<int> count{0};
    pool.parallel_for(100, 1, [&](int begin, int end, int) { count += end - begin; });
    CHECK(count == 100);
  }
}

TEST_CASE("thread_pool: regions after a pause, when the workers sleep, still run") {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> count{0};
    pool.parallel_for(30, 1, [&](int begin, int end, int) { count += end - begin; });
    REQUIRE(count == 30);
  }
}

TEST_CASE("thread_pool: a region does not wait for the workers to be scheduled") {
  // Sixteen threads on any machine: the caller alone can finish a region, so that a thousand of
  // them take far less than a thousand time slices.
  ThreadPool pool(16);
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> count{0};
  for (int round = 0; round < 1000; ++round) {
    pool.parallel_for(32, 1, [&](int begin, int end, int) { count += end - begin; });
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(count == 32000);
  CHECK_MESSAGE(took.count() < 5.0, took.count(), " s");
}
