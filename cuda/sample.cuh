// Choosing tokens on the device (arithmetic.md §9): arguments, scratch and launcher.
#pragma once

#include <cuda_runtime.h>

#include "core/ops/ops.h"

namespace bolt::cuda {

// Rows of at most kSmallColumns columns take one launch. For longer ones top-k and top-p first
// count and weigh the ids in kSampleBins steps below the best, so that only the steps that a cut
// falls in are looked at id by id.
constexpr int kSmallColumns = 4096;
constexpr int kSampleBins = 1024;
constexpr int kTermsStep = 2048;  // the terms of a lane sum are padded with zeros to its multiple

// Whether ids are cut by rank or weight.
constexpr bool has_cut(const SampleSpec& spec) { return spec.top_k > 0 || spec.top_p < 1.0f; }

// An id with its place in an order: larger keys come first (sample.cu, order_key).
struct Ranked {
  std::uint64_t key = 0;  // 0: none
  int column = 0;
};

struct SampleRowState {
  Ranked winner;     // of a row without filters
  bool active;       // later launches have work
  bool greedy;       // also by overflow of the best quotient
  bool filtered;     // not greedy, and a filter is on
  float divisor;     // 1 if greedy: x / 1 is x
  float top, least;  // of l; ids below `least` cannot matter
  // Ids in bins below first_bin are kept, those above last_bin are not, the others are listed.
  int first_bin, last_bin;
  std::uint64_t n_before, weight_before;  // ids in bins below first_bin, their weight
  std::uint64_t weight_all;               // of what top-k keeps; 0: not known yet
  int n_listed;
};

// What one block found; of the best logits and of the largest noisy ones.
struct SamplePartial {
  Ranked best, noisy;
  int bad;
};

struct SampleScratch {
  SampleRowState* states = nullptr;   // [n_rows]
  SamplePartial* partials = nullptr;  // [n_rows][n_blocks]
  unsigned* arrived = nullptr;        // [n_rows][3], blocks that are done; 0 between launches
  unsigned* bin_count = nullptr;      // [n_rows][kSampleBins]; null: no row of this call has bins
  unsigned long long* bin_weight = nullptr;
  int* listed = nullptr;   // [n_rows][n_cols], columns; null with bin_count
  float* terms = nullptr;  // [n_rows][terms_stride]; null: no probability is wanted
  int terms_stride = 0;
};

struct SampleArgs {
  const float* logits = nullptr;
  std::int64_t stride = 0;
  int n_rows = 0, n_cols = 0;
  const SampleSpec* specs = nullptr;     // [n_rows], device
  const std::uint8_t* marked = nullptr;  // [n_rows], device
  const int* ids_of = nullptr;           // device; null: columns are ids
  Sampled* out = nullptr;                // [n_rows], host memory that the device can write
  // The call's marks, copied out with the choices.
  const std::uint8_t* marks = nullptr;
  std::uint8_t* marks_out = nullptr;
  int n_marks = 0;
  int block_columns = 0, n_blocks = 0;  // of a row
  bool choose_later = false;            // some row needs more than one look
  SampleScratch scratch;
};

// What the rows of a call need beyond one look.
struct SampleNeeds {
  bool bins = false;   // top-k or top-p over a long row
  bool terms = false;  // a probability
  bool later = false;  // either, or min-p
  SampleNeeds& operator|=(const SampleNeeds& o) {
    bins |= o.bins, terms |= o.terms, later |= o.later;
    return *this;
  }
  std::uint64_t bits() const { return (bins ? 1u : 0u) | (terms ? 2u : 0u) | (later ? 4u : 0u); }
};

// Refuses what no row may ask for. A greedy row is left without seed, position and filters, so that
// its spec stays the same from call to call and need not go up again.
SampleSpec reduced(const SampleSpec& spec);
// Of a reduced spec.
SampleNeeds needs_of(const SampleSpec& spec, int n_cols);

// Lays the scratch of calls of up to n_rows rows out from `base` on (null: nowhere); returns its
// bytes. What comes first, `arrived`, is to be zero before the first launch; as it is laid out for
// n_held >= n_rows rows, calls of fewer find it in place.
std::size_t lay_out_sampling(std::byte* base, int n_held, int n_rows, int n_cols,
                             const SampleNeeds& needs, SampleScratch& scratch);
// Blocks of a row.
int sample_blocks(int n_rows, int n_cols);

// Columns a block looks at: more for many rows. A multiple of kTermsStep / 2.
int sample_block_columns(int n_rows, int n_cols);

void launch_sample(const SampleArgs& args, cudaStream_t stream);

}  // namespace bolt::cuda
