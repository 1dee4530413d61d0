// Made-up weights in the packed layout, and the value of each element, read back one by one.
#include "core/ops/synthetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/pack/block_values.h"
#include "core/pack/tile_codec.h"

namespace bolt {

namespace {

constexpr double kE2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

struct Place {  // of one element
  std::size_t block = 0;
  int output = 0, column = 0, half = 0;

  Place(const Weight& w, int m, int row, int col)
      : output(row % kTileRows), column(col % kGroupCols), half(column / 16) {
    const auto groups = static_cast<std::size_t>(n_groups(w.n_cols));
    const auto tile = static_cast<std::size_t>(m * n_tiles(w.n_rows) + row / kTileRows);
    block = (tile * groups + static_cast<std::size_t>(col / kGroupCols)) *
            static_cast<std::size_t>(block_bytes(w.format));
  }
  std::size_t word() const {
    return static_cast<std::size_t>(word_index(column_lane(column), output));
  }
  std::size_t slot() const { return static_cast<std::size_t>(column_slot(column)); }
  std::size_t q8_code() const { return block + (slot() / 4) * 512 + word() * 4 + slot() % 4; }
  std::size_t q8_scale() const { return block + 1024 + static_cast<std::size_t>(2 * output); }
  std::size_t nvfp4_byte() const { return block + word() * 4 + slot() / 2; }
  std::size_t nvfp4_scale() const {
    return block + 512 + static_cast<std::size_t>((output / 4) * 8 + half * 4 + output % 4);
  }
  std::size_t element(std::size_t bytes) const {  // of a float format
    const auto pair =
        static_cast<std::size_t>((column / 8) * 128 + word_index((column % 8) / 2, output));
    return block + (2 * pair + static_cast<std::size_t>(column % 2)) * bytes;
  }
};

template <class T>
T read_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// One element's code; scales are written by the first element that has them.
void put(SyntheticWeight& made, std::byte* data, int m, int row, int col, std::uint64_t bits,
         float value, float scale) {
  const Weight& w = made.weight;
  const Place place(w, m, row, col);
  const auto put16 = [&](std::size_t at, std::uint16_t half) { std::memcpy(data + at, &half, 2); };
  switch (w.format) {
    case Format::f32:
      std::memcpy(data + place.element(4), &value, 4);
      break;
    case Format::bf16:
      put16(place.element(2), static_cast<std::uint16_t>(float_bits(value) >> 16));
      break;
    case Format::f16:
      put16(place.element(2), float_to_f16(value));
      break;
    case Format::q8:
      data[place.q8_code()] = static_cast<std::byte>(bits & 255);
      if (col % kGroupCols == 0) {
        const auto spread = static_cast<float>(1 + ((bits >> 8) & 1023)) * 0x1p-10f;
        put16(place.q8_scale(), float_to_f16(spread * scale * 0x1p-7f));
      }
      break;
    case Format::nvfp4: {
      std::uint64_t nibble = bits & 15;
      if (nibble == 8) nibble = 0;  // no minus zero
      std::byte& byte = data[place.nvfp4_byte()];
      byte |= static_cast<std::byte>(nibble << (4 * (place.slot() % 2)));
      if (col % 16 == 0) {
        data[place.nvfp4_scale()] = static_cast<std::byte>((bits >> 8) % 127);  // no NaN
      }
      break;
    }
    default:
      require(false, "a format that put() fills");
  }
}

// fp8 and GGUF's blocks: random raw codes and scales in rows, packed as convert packs them.
void put_blocks(Weight& w, std::byte* data, std::uint64_t seed, float scale) {
  const BlockForm form = block_form(w.format);
  const std::uint64_t mixed = mix64(~seed);
  std::uint64_t i = 0;
  for (int m = 0; m < w.n_matrices; ++m) {
    RowCodes rows;
    rows.resize(w.format, w.n_rows, w.n_cols);
    for (std::byte& code : rows.codes) {
      const std::uint64_t bits = mix64(mixed + i++);
      code = static_cast<std::byte>(bits & 255);
      if (w.format == Format::fp8 && (bits & 127) == 127) code = std::byte{1};  // no NaN
      if (w.format == Format::iq2_xxs && (bits & 3) == 3) code ^= std::byte{1};
    }
    const auto record = static_cast<std::size_t>(form.scale_bytes());
    for (std::size_t at = 0; record > 0 && at < rows.scales.size(); at += record) {
      for (int h = 0; h < form.n_halves; ++h) {
        // Both signs, and now and then a subnormal or nothing.
        const std::uint64_t bits = mix64(mixed + i++);
        float d = (static_cast<float>(bits & 2047) - 700.0f) * 0x1p-18f * scale;
        if (bits % 23 == 0) d *= 0x1p-12f;
        const std::uint16_t half = float_to_f16(d);
        std::memcpy(&rows.scales[at + static_cast<std::size_t>(2 * h)], &half, 2);
      }
      for (int k = 0; k < form.n_small; ++k) {
        std::uint64_t bits = mix64(mixed + i++) & 255;
        if (w.format == Format::mxfp4) bits = bits % 16 == 0 ? bits / 16 % 2 : 110 + bits % 16;
        rows.scales[at + static_cast<std::size_t>(2 * form.n_halves + k)] =
            static_cast<std::byte>(bits);
      }
    }
    for (int tile = 0; tile < n_tiles(w.n_rows); ++tile) {
      pack_tile(rows, tile * kTileRows,
                data + static_cast<std::uint64_t>(m) * w.matrix_bytes() +
                    static_cast<std::uint64_t>(tile) * tile_bytes(w.format, w.n_cols));
    }
  }
}

}  // namespace

std::uint64_t mix64(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

float even_float(std::uint64_t seed, std::uint64_t i) {
  const auto top = static_cast<std::int32_t>(mix64(mix64(seed) + i) >> 40);  // 24 bits
  return static_cast<float>(top - (1 << 23)) * 0x1p-23f;
}

std::vector<float> even_floats(std::uint64_t seed, int n, float scale) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) {
    values[static_cast<std::size_t>(i)] = even_float(seed, static_cast<std::uint64_t>(i)) * scale;
  }
  return values;
}

std::vector<float> planted_floats(std::uint64_t seed, int n) {
  std::vector<float> x = even_floats(seed, n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint64_t h = mix64(mix64(seed * 77) + i);
    const int exponent = static_cast<int>((h >> 8) & 0xffff);
    if (h % 29 == 0) x[i] = std::ldexp(x[i], exponent % 40);
    if (h % 31 == 0) x[i] = std::ldexp(x[i], -(exponent % 140));
    if (h % 37 == 0) x[i] = exponent & 1 ? 0.0f : -0.0f;
    if ((i / 32) % 41 == 5) x[i] = std::ldexp(x[i], -130);
  }
  return x;
}

SyntheticWeight synthetic_weight(Format format, int n_matrices, int n_rows, int n_cols,
                                 std::uint64_t seed, float scale) {
  SyntheticWeight made;
  Weight& w = made.weight;
  w.format = format;
  w.layout = Layout::tiles;
  w.n_matrices = n_matrices;
  w.n_rows = n_rows;
  w.n_cols = n_cols;
  w.bytes = packed_matrix_bytes(format, n_rows, n_cols) * static_cast<std::uint64_t>(n_matrices);
  made.storage.resize(w.bytes + 64);
  const auto skip = (64 - reinterpret_cast<std::uintptr_t>(made.storage.data()) % 64) % 64;
  std::byte* data = made.storage.data() + skip;
  w.data = data;
  if (is_block(format)) put_blocks(w, data, seed, scale);
  std::uint64_t i = 0;
  for (int m = 0; m < n_matrices && block_form(format).n_cols == 0; ++m) {
    for (int row = 0; row < n_rows; ++row) {
      for (int col = 0; col < n_cols; ++col, ++i) {
        put(made, data, m, row, col, mix64(mix64(~seed) + i), even_float(seed, i) * scale, scale);
      }
    }
  }
  if (has_gain(format)) {
    const float one = format == Format::nvfp4 ? 0x1p-4f : 0x1p-14f;
    for (int m = 0; m < n_matrices; ++m) {
      made.gains.push_back((1.0f + 0.125f * static_cast<float>(m % 5)) * scale * one);
    }
    w.gains = made.gains.data();
  }
  return made;
}

SyntheticWeight plain_weight(std::vector<float> values, int n_rows, int n_cols) {
  SyntheticWeight made;
  require(values.size() == static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(n_cols),
          "a plain weight's values fill its shape");
  made.storage.resize(values.size() * 4);
  std::memcpy(made.storage.data(), values.data(), made.storage.size());
  made.weight.n_rows = n_rows;
  made.weight.n_cols = n_cols;
  made.weight.bytes = made.storage.size();
  made.weight.data = made.storage.data();
  return made;
}

double weight_value(const Weight& w, int m, int row, int column) {
  if (is_block(w.format)) {
    std::vector<float> values(static_cast<std::size_t>(w.n_cols));
    packed_row(w.format, w.matrix(m), w.n_cols, w.gains != nullptr ? w.gains[m] : 1.0f, row,
               values.data());
    return static_cast<double>(values[static_cast<std::size_t>(column)]);
  }
  const Place place(w, m, row, column);
  const double gain = w.gains != nullptr ? static_cast<double>(w.gains[m]) : 1.0;
  switch (w.format) {
    case Format::f32:
      return static_cast<double>(read_as<float>(w.data + place.element(4)));
    case Format::bf16:
      return static_cast<double>(bf16_to_float(read_as<std::uint16_t>(w.data + place.element(2))));
    case Format::f16:
      return static_cast<double>(f16_to_float(read_as<std::uint16_t>(w.data + place.element(2))));
    case Format::q8:
      return static_cast<double>(read_as<std::int8_t>(w.data + place.q8_code())) *
             static_cast<double>(f16_to_float(read_as<std::uint16_t>(w.data + place.q8_scale())));
    case Format::nvfp4: {
      const auto byte = static_cast<unsigned>(w.data[place.nvfp4_byte()]);
      const unsigned nibble = (byte >> (4 * (place.slot() % 2))) & 15u;
      const double code = 2.0 * kE2m1[nibble & 7u] * (nibble & 8u ? -1.0 : 1.0);
      const auto scale = static_cast<std::uint8_t>(w.data[place.nvfp4_scale()]);
      return code * static_cast<double>(e4m3_to_float(scale)) * 0x1p-8 * gain;
    }
    default:
      return 0.0;
  }
}

}  // namespace bolt
