// Keys and values on the host: where each code of a page lies, and writing one key. Reading them is
// attention.cpp.
//
// A page holds 128 absolute positions; inside it each kv head has its own part. The i16 kind keeps
// the whole code i = 256 h + l (h and l are the contract's int8 planes) in pairs, so that one
// multiply-add of int16 pairs serves dims of a key and keys of a dim:
//   K       [8 blocks of 16 keys][dims / 2][16 keys][2 dims]   i16, an odd head_dim padded with 0
//   V       [blocks of 16 dims][64 key pairs][16 dims][2 keys]  i16, dims padded to 16
//   scales  [3][128 keys]                    f32: 2^ek, ev, 2^-ev
// The f32 kind keeps K [head_dim][128 keys] and V [128 keys][head_dim].
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/bits.h"
#include "core/ops/ops.h"

namespace bolt {

// Sums of §7 stay inside int32: |h| <= 127 and |l| <= 128 because codes are clamped to +-32639, so
// |D| <= head_dim * (127 * 32639 + 128 * 127) = head_dim * 4161409 < 2^31 up to 516 dims, and
// |o| <= 128 keys * 128 * (32639 + 127) < 2^30.
inline constexpr int kHeadDimMax = 512;
inline constexpr int kCodeMax = 32639;  // 127 * 256 + 127

// 2^e for -126 <= e <= 127.
inline float power_of_two(int e) { return bits_float(static_cast<std::uint32_t>(e + 127) << 23); }

// A row as codes: x ~ codes * 2^exponent. False if x is not finite: then codes 0, least exponent.
bool quantize_codes(const float* x, int n, std::int16_t* codes, int* exponent);

struct KvLayout {
  KvKind kind = KvKind::i16;
  int n_kv_heads = 0, head_dim = 0;

  int dim_pairs() const { return (head_dim + 1) / 2; }
  int v_dims() const { return (head_dim + 15) / 16 * 16; }
  std::int64_t k_bytes() const {
    return kind == KvKind::i16 ? std::int64_t{dim_pairs()} * kPageKeys * 4
                               : std::int64_t{head_dim} * kPageKeys * 4;
  }
  std::int64_t v_bytes() const {
    return kind == KvKind::i16 ? std::int64_t{v_dims()} * kPageKeys * 2
                               : std::int64_t{head_dim} * kPageKeys * 4;
  }
  std::int64_t head_bytes() const {
    return k_bytes() + v_bytes() + (kind == KvKind::i16 ? 3 * kPageKeys * 4 : 0);
  }
  std::int64_t page_bytes() const { return head_bytes() * n_kv_heads; }

  // Places in one (page, head): codes in i16, scales and f32 values in floats from the part's
  // start.
  int k_code(int key, int dim) const {
    return ((key / 16 * dim_pairs() + dim / 2) * 16 + key % 16) * 2 + dim % 2;
  }
  int v_code(int key, int dim) const {
    return ((dim / 16 * (kPageKeys / 2) + key / 2) * 16 + dim % 16) * 2 + key % 2;
  }
  int k_value(int key, int dim) const { return dim * kPageKeys + key; }
  int v_value(int key, int dim) const { return key * head_dim + dim; }
};

class HostKvCache : public KvCache {
 public:
  HostKvCache(const Attention& node, KvKind kind, int n_pages);
  void read(int page, int n_keys, std::vector<std::byte>& bytes) const override;
  std::uint64_t page_bytes() const override {
    return static_cast<std::uint64_t>(layout_.page_bytes());
  }
  bool copy(int from_page, int to_page) override;

  const KvLayout& layout() const { return layout_; }
  int n_pages() const { return n_pages_; }
  const std::byte* head(int page, int kv_head) const {
    return data_ + page * layout_.page_bytes() + kv_head * layout_.head_bytes();
  }
  std::byte* head(int page, int kv_head) {
    return data_ + page * layout_.page_bytes() + kv_head * layout_.head_bytes();
  }
  // Writes one key of a page. False if k or v is not finite; what is then written is finite.
  bool put(int page, int kv_head, int key, const float* k, const float* v);

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept;
  };
  KvLayout layout_;
  int n_pages_;
  std::unique_ptr<std::byte, Free> memory_;
  std::byte* data_;  // aligned to 64 bytes
};

}  // namespace bolt
