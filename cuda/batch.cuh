// A call's rows as kernels see them: fixed device addresses, so that a captured graph can be
// replayed with other contents (ops.cu copies them in begin()).
#pragma once

#include <cstdint>

namespace bolt::cuda {

struct SegmentView {
  int first_row, n_rows, first_position, n_live, n_sure, n_lag, slot;
  int first_page;  // of this segment in BatchView::pages
  int first_key;
};

struct BatchView {
  const int* ids = nullptr;          // [max_rows]
  const int* row_segment = nullptr;  // [max_rows]
  const SegmentView* segments = nullptr;
  const int* pages = nullptr;
  std::uint8_t* marked = nullptr;  // [max_rows]
};

#ifdef __CUDACC__
struct RowPlace {
  const SegmentView* segment;
  int position;
  bool live;
};
__device__ __forceinline__ RowPlace place_of(const BatchView& batch, int row) {
  const SegmentView* segment = batch.segments + batch.row_segment[row];
  const int i = row - segment->first_row;
  return {segment, segment->first_position + i, i < segment->n_live};
}
#endif

}  // namespace bolt::cuda
