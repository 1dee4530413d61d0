// The host's KV pages: quantising and placing one key, and the canonical bytes of a page.
#include "core/ops/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/base/error.h"
#include "core/ops/host.h"

namespace bolt {
namespace {

constexpr int kExponentMin = -114;  // of an all-zero row

template <class T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* p = reinterpret_cast<const std::byte*>(&value);  // hosts are little-endian
  bytes.insert(bytes.end(), p, p + sizeof value);
}

}  // namespace

bool quantize_codes(const float* x, int n, std::int16_t* codes, int* exponent) {
  std::uint32_t amax = 0;  // magnitudes compare as their bits do
  for (int i = 0; i < n; ++i) amax = std::max(amax, float_bits(x[i]) & 0x7fffffffu);
  if (amax >= 0x7f800000u) {
    std::fill(codes, codes + n, std::int16_t{0});
    *exponent = kExponentMin;
    return false;
  }
  *exponent = std::max(static_cast<int>(amax >> 23) - 127, -100) - 14;
  const float scale = power_of_two(-*exponent);
  for (int i = 0; i < n; ++i) {
    const long code = std::lrintf(x[i] * scale);
    codes[i] = static_cast<std::int16_t>(std::clamp<long>(code, -kCodeMax, kCodeMax));
  }
  return true;
}

void HostKvCache::Free::operator()(std::byte* p) const noexcept { std::free(p); }

HostKvCache::HostKvCache(const Attention& node, KvKind kind, int n_pages)
    : layout_{kind, node.n_kv_heads, node.head_dim}, n_pages_(n_pages) {
  if (node.head_dim < 1 || node.head_dim > kHeadDimMax) {
    throw Error(Exit::input, "attention: head_dim is " + std::to_string(node.head_dim) +
                                 ", expected 1 to " + std::to_string(kHeadDimMax) +
                                 " (integer sums must fit 32 bits)");
  }
  require(n_pages > 0 && node.n_kv_heads > 0 && node.n_heads % node.n_kv_heads == 0,
          "query heads fill the kv heads");
  // calloc's zero pages cost nothing until a key is written.
  const std::size_t bytes = static_cast<std::size_t>(layout_.page_bytes()) * n_pages + 64;
  memory_.reset(static_cast<std::byte*>(std::calloc(bytes, 1)));
  if (memory_ == nullptr) {
    throw Error(Exit::fault,
                "out of memory: " + std::to_string(bytes) + " bytes for keys and values");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
  data_ = memory_.get() + ((address + 63) / 64 * 64 - address);
}

bool HostKvCache::put(int page, int kv_head, int key, const float* k, const float* v) {
  std::byte* base = head(page, kv_head);
  const int n = layout_.head_dim;
  if (layout_.kind == KvKind::f32) {
    auto* keys = reinterpret_cast<float*>(base);
    auto* values = reinterpret_cast<float*>(base + layout_.k_bytes());
    bool finite = true;
    for (int d = 0; d < n; ++d) finite = finite && is_finite(k[d]) && is_finite(v[d]);
    for (int d = 0; d < n; ++d) {
      keys[layout_.k_value(key, d)] = finite ? k[d] : 0.0f;
      values[layout_.v_value(key, d)] = finite ? v[d] : 0.0f;
    }
    return finite;
  }
  auto* k_codes = reinterpret_cast<std::int16_t*>(base);
  auto* v_codes = reinterpret_cast<std::int16_t*>(base + layout_.k_bytes());
  auto* scales = reinterpret_cast<float*>(base + layout_.k_bytes() + layout_.v_bytes());
  std::int16_t codes[kHeadDimMax];
  int exponent;
  bool finite = quantize_codes(k, n, codes, &exponent);
  for (int d = 0; d < n; ++d) k_codes[layout_.k_code(key, d)] = codes[d];
  scales[key] = power_of_two(exponent);
  finite = quantize_codes(v, n, codes, &exponent) && finite;
  for (int d = 0; d < n; ++d) v_codes[layout_.v_code(key, d)] = codes[d];
  scales[kPageKeys + key] = static_cast<float>(exponent);
  scales[2 * kPageKeys + key] = power_of_two(-exponent);
  return finite;
}

void HostKvCache::read(int page, int n_keys, std::vector<std::byte>& bytes) const {
  require(page >= 0 && page < n_pages_ && n_keys >= 0 && n_keys <= kPageKeys,
          "a page's keys exist");
  bytes.clear();
  for (const bool is_key : {true, false}) {
    for (int h = 0; h < layout_.n_kv_heads; ++h) {
      const std::byte* base = head(page, h);
      const std::byte* part = is_key ? base : base + layout_.k_bytes();
      const auto* scales =
          reinterpret_cast<const float*>(base + layout_.k_bytes() + layout_.v_bytes());
      for (int key = 0; key < n_keys; ++key) {
        for (int d = 0; d < layout_.head_dim; ++d) {
          if (layout_.kind == KvKind::f32) {
            const auto* values = reinterpret_cast<const float*>(part);
            append(bytes, values[is_key ? layout_.k_value(key, d) : layout_.v_value(key, d)]);
          } else {
            const auto* codes = reinterpret_cast<const std::int16_t*>(part);
            append(bytes, codes[is_key ? layout_.k_code(key, d) : layout_.v_code(key, d)]);
          }
        }
        if (layout_.kind == KvKind::f32) continue;
        append(bytes, is_key ? static_cast<std::int32_t>(float_bits(scales[key]) >> 23) - 127
                             : static_cast<std::int32_t>(scales[kPageKeys + key]));
      }
    }
  }
}

bool HostKvCache::copy(int from_page, int to_page) {
  std::memmove(head(to_page, 0), head(from_page, 0),
               static_cast<std::size_t>(layout_.page_bytes()));
  return true;
}

std::unique_ptr<KvCache> HostOps::kv_cache(const Attention& node, KvKind kind, int n_pages) {
  return std::make_unique<HostKvCache>(node, kind, n_pages);
}

}  // namespace bolt
