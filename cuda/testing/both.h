// One op, run by the host's twin and by the device's on the same numbers, and compared bit for bit.
#pragma once

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "core/ops/host.h"
#include "core/ops/synthetic.h"
#include "cuda/ops.h"

namespace bolt::cuda {

// How much of the suite a process runs: all of it; with BOLT_TEST_BRIEF=1 what reaches every
// kernel, for tools that slow it down a hundredfold; with BOLT_TEST_SHARD=K/N every N-th part of
// that, so that N processes share it.
inline bool is_brief() {
  static const bool brief = std::getenv("BOLT_TEST_BRIEF") != nullptr;
  return brief;
}
// Whether the next part is this process's.
inline bool is_mine() {
  static const std::pair<int, int> shard = [] {
    std::pair<int, int> s{0, 1};
    const char* text = std::getenv("BOLT_TEST_SHARD");
    if (text != nullptr) REQUIRE(std::sscanf(text, "%d/%d", &s.first, &s.second) == 2);
    return s;
  }();
  static int part = 0;
  return part++ % shard.second == shard.first;
}

// A copy that is there when this returns: cudaMemcpy alone may return while a small one from
// pageable memory is still on its way, and the ops' stream does not wait for it.
inline void copy_to_device(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copying");
  check(cudaStreamSynchronize(nullptr), "copying");
}

// Copies that live as long as the test.
class DeviceCopies {
 public:
  template <class T>
  T* put(const T* from, std::size_t n) {
    memory_.push_back(device_alloc<std::byte>(n * sizeof(T) + 16, "a test's copy"));
    copy_to_device(memory_.back().get(), from, n * sizeof(T));
    return reinterpret_cast<T*>(memory_.back().get());
  }
  Weight put(const Weight& host) {
    Weight w = host;
    if (!w.present()) return w;
    w.data = put(host.data, host.bytes);
    if (host.gains != nullptr) w.gains = put(host.gains, static_cast<std::size_t>(host.n_matrices));
    return w;
  }

 private:
  std::deque<DevicePtr<std::byte>> memory_;
};

// Rows on both sides. The device's are poisoned before each run, so that an unwritten one shows.
struct BothRows {
  std::vector<float> host;
  Rows<float> on_host, on_device;

  BothRows(DeviceCopies& copies, std::vector<float> values, int n_rows, int n_cols)
      : host(std::move(values)) {
    on_host = {host.data(), n_rows, n_cols};
    on_device = {copies.put(host.data(), host.size()), n_rows, n_cols};
  }
  static BothRows poisoned(DeviceCopies& copies, int n_rows, int n_cols) {
    return {copies,
            std::vector<float>(static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(n_cols),
                               -7.0f),
            n_rows, n_cols};
  }
  std::vector<float> read_device(CudaOps& ops) const {
    std::vector<float> values(host.size());
    ops.read(on_device.data, values);
    return values;
  }
};

// How many unmarked rows differ; marks must be equal.
inline int rows_that_differ(const BothRows& rows, const std::vector<float>& device,
                            const std::vector<std::uint8_t>& marked) {
  int n = 0;
  const auto cols = static_cast<std::size_t>(rows.on_host.n_cols);
  for (int r = 0; r < rows.on_host.n_rows; ++r) {
    if (marked[static_cast<std::size_t>(r)]) continue;
    const std::size_t first = static_cast<std::size_t>(r) * cols;
    n += std::memcmp(&rows.host[first], &device[first], cols * sizeof(float)) != 0;
  }
  return n;
}

// The same segments announced to both sides.
struct BothBatch {
  std::vector<Segment> segments;
  std::vector<std::vector<int>> pages;
  std::vector<std::uint8_t> host_marks, device_marks;
  std::vector<int> ids;
  Batch on_host, on_device;

  explicit BothBatch(int n_rows) : BothBatch(std::vector<Segment>{whole(n_rows)}, {{0}}) {}
  BothBatch(std::vector<Segment> parts, std::vector<std::vector<int>> tables)
      : segments(std::move(parts)), pages(std::move(tables)) {
    int n_rows = 0;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      segments[i].pages = pages[i];
      n_rows += segments[i].n_rows;
    }
    host_marks.assign(static_cast<std::size_t>(n_rows), 0);
    device_marks = host_marks;
    ids.assign(static_cast<std::size_t>(n_rows), 0);
    on_host = {n_rows, segments, host_marks};
    on_device = {n_rows, segments, device_marks};
  }
  BothBatch(const BothBatch&) = delete;
  BothBatch& operator=(const BothBatch&) = delete;

  static Segment whole(int n_rows) {
    Segment s;
    s.n_rows = s.n_live = s.n_sure = n_rows;
    return s;
  }
  void begin(Ops& host, Ops& device) {
    host.begin(on_host, ids);
    device.begin(on_device, ids);
  }
};

}  // namespace bolt::cuda
