// A fixed set of worker threads for short parallel loops. The work of an index never depends on
// which thread runs it, so results do not depend on the number of threads.
#pragma once

#include <functional>
#include <memory>

namespace bolt {

class ThreadPool {
 public:
  explicit ThreadPool(int n_threads);  // n_threads >= 1, the caller included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const;

  // Calls body(begin, end, thread) over a partition of [0, n) in runs of at least `grain`; returns
  // when all are done. The first exception thrown is thrown again here. Not reentrant.
  void parallel_for(int n, int grain,
                    const std::function<void(int begin, int end, int thread)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bolt
