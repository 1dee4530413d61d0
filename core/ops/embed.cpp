// Embedding rows in float32: exact for the float formats, and what their codes mean for the rest.
#include <cstring>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/ops/host.h"
#include "core/pack/tile_codec.h"

namespace bolt {

void HostOps::embed(const Weight& table, std::span<const int> ids, Rows<float> x) {
  require(table.n_cols <= x.n_cols && static_cast<int>(ids.size()) == x.n_rows,
          "an embedding's shapes agree");
  for (int row = 0; row < x.n_rows; ++row) {
    const int id = ids[static_cast<std::size_t>(row)];
    require(id >= 0 && id < table.n_rows, "an id is inside the embedding");
    const std::size_t first = static_cast<std::size_t>(id) * static_cast<std::size_t>(table.n_cols);
    float* out = x.row(row);
    if (table.layout == Layout::tiles) {
      const float gain = table.gains != nullptr ? *table.gains : 1.0f;
      packed_row(table.format, table.data, table.n_cols, gain, id, out);
      continue;
    }
    if (table.format == Format::f32) {
      std::memcpy(out, table.as_f32() + first, static_cast<std::size_t>(table.n_cols) * 4);
      continue;
    }
    require(table.format == Format::bf16 || table.format == Format::f16,
            "an embedding is f32, bf16 or f16");
    const auto* halves = reinterpret_cast<const std::uint16_t*>(table.data) + first;
    const bool bf16 = table.format == Format::bf16;
    for (int i = 0; i < table.n_cols; ++i) {
      out[i] = bf16 ? bf16_to_float(halves[i]) : f16_to_float(halves[i]);
    }
  }
}

}  // namespace bolt
