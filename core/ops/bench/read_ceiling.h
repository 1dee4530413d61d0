// The most that some threads read of memory in a second, for figures beside it. One way of reading
// is no ceiling: hardware prefetchers differ, so several are tried and the best is taken.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "core/base/thread_pool.h"

namespace bolt {

// A run of at most this many bytes is one thread's piece of work.
inline constexpr std::uint64_t kReadPiece = 1 << 20;

// Sums [data, data + bytes) over n_streams places at once, prefetching `ahead` bytes before use.
template <int kStreams>
inline std::uint64_t read_piece(const std::byte* data, std::uint64_t bytes, std::uint64_t ahead) {
  const std::uint64_t each = bytes / kStreams / 64 * 64;
  std::uint64_t sum[8] = {};
  for (std::uint64_t i = 0; i < each; i += 64) {
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* line = data + static_cast<std::uint64_t>(s) * each + i;
      if (ahead > 0) __builtin_prefetch(line + ahead);
      std::uint64_t words[8];
      std::memcpy(words, line, 64);
      for (int k = 0; k < 8; ++k) sum[k] ^= words[k];
    }
  }
  std::uint64_t all = 0;
  for (const std::uint64_t one : sum) all ^= one;
  return all;
}

// Bytes a second: the best median of `repeats` passes over all parts, of six ways to read them.
inline double read_ceiling(ThreadPool& pool, std::span<const std::span<const std::byte>> parts,
                           int repeats = 5) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::span<const std::byte>> pieces;
  std::uint64_t total = 0;
  for (const auto& part : parts) {
    for (std::uint64_t at = 0; at < part.size(); at += kReadPiece) {
      pieces.push_back(part.subspan(at, std::min<std::uint64_t>(kReadPiece, part.size() - at)));
    }
    total += part.size();
  }
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(pool.n_threads()) * 8);
  double best = 0;
  for (const bool four_streams : {false, true}) {
    for (const std::uint64_t ahead : {0, 1024, 4096}) {
      const auto work = [&](int begin, int end, int thread) {
        for (int i = begin; i < end; ++i) {
          const auto& piece = pieces[static_cast<std::size_t>(i)];
          sums[static_cast<std::size_t>(thread) * 8] ^=
              four_streams ? read_piece<4>(piece.data(), piece.size(), ahead)
                           : read_piece<1>(piece.data(), piece.size(), ahead);
        }
      };
      std::vector<double> seconds;
      for (int pass = 0; pass < repeats; ++pass) {
        const auto start = Clock::now();
        pool.parallel_for(static_cast<int>(pieces.size()), 1, std::ref(work));
        seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      }
      std::sort(seconds.begin(), seconds.end());
      best = std::max(best, static_cast<double>(total) / seconds[seconds.size() / 2]);
    }
  }
  volatile std::uint64_t used = 0;  // so that the reads are not left out
  for (const std::uint64_t sum : sums) used = used ^ sum;
  return best;
}

}  // namespace bolt
