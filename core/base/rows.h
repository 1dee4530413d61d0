// A view of row-major rows; owns nothing. Memory may be the host's or a device's, as its Ops says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace bolt {

template <class T>
struct Rows {
  T* data = nullptr;
  int n_rows = 0;
  int n_cols = 0;
  std::int64_t stride = 0;  // elements from one row to the next

  Rows() = default;
  Rows(T* d, int rows, int cols) : data(d), n_rows(rows), n_cols(cols), stride(cols) {}
  Rows(T* d, int rows, int cols, std::int64_t step)
      : data(d), n_rows(rows), n_cols(cols), stride(step) {}
  // Rows<float> reads as Rows<const float>.
  template <class U>
  requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>) Rows(const Rows<U>& other)
      : data(other.data), n_rows(other.n_rows), n_cols(other.n_cols), stride(other.stride) {}

  T* row(int r) const { return data + static_cast<std::int64_t>(r) * stride; }
  // Columns [first, first + count) of every row.
  Rows columns(int first, int count) const { return {data + first, n_rows, count, stride}; }
  Rows rows(int first, int count) const { return {row(first), count, n_cols, stride}; }
};

}  // namespace bolt
