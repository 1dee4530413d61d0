// A rank's part of a graph: its rows are the whole's rows, wherever they begin inside of tiles, in
// every format; and what is refused.
#include "core/pack/rank_graph.h"

#include <doctest/doctest.h>

#include <cstring>

#include "core/base/error.h"
#include "core/base/testing/caught.h"
#include "core/pack/generated.h"
#include "core/pack/graph_walk.h"
#include "core/pack/package.h"
#include "core/pack/testing/tiny_checkpoint.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

std::vector<float> row_of(const Weight& w, int matrix, int row) {
  std::vector<float> values(static_cast<std::size_t>(w.n_cols));
  packed_row(w.format, w.matrix(matrix), w.n_cols, w.gains != nullptr ? w.gains[matrix] : 1.0f, row,
             values.data());
  return values;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Bytes of a weight as a device would hold them: its pieces joined.
Weight joined(const RankGraph& part, Weight w, std::vector<std::byte>& memory) {
  const auto found = part.pieces.find(w.data);
  if (found == part.pieces.end()) return w;
  for (const Piece& p : found->second) memory.insert(memory.end(), p.from, p.from + p.bytes);
  CHECK(memory.size() == w.bytes);
  w.data = memory.data();
  return w;
}

}  // namespace

TEST_CASE("rank graph: a tile's row moved to another place is the same row, in every format") {
  constexpr int kCols = 512;
  for (const Format format : kAllFormats) {
    std::vector<std::byte> from(tile_bytes(format, kCols)), to(from.size(), std::byte{0});
    for (std::size_t i = 0; i < from.size(); ++i) {
      from[i] = static_cast<std::byte>(random_bits(7, i));
    }
    for (int row = 0; row < kTileRows; ++row) {
      copy_tile_row(format, kCols, from.data(), row, to.data(), (row * 5 + 3) % kTileRows);
    }
    std::vector<float> a(kCols), b(kCols);
    bool all_same = true, neighbour_differs = true;
    for (int row = 0; row < kTileRows; ++row) {
      packed_row(format, from.data(), kCols, 1.0f, row, a.data());
      packed_row(format, to.data(), kCols, 1.0f, (row * 5 + 3) % kTileRows, b.data());
      all_same = all_same && same(a, b);
      // Control: the row beside it is told apart.
      packed_row(format, to.data(), kCols, 1.0f, (row * 5 + 4) % kTileRows, b.data());
      neighbour_differs = neighbour_differs && !same(a, b);
    }
    CHECK_MESSAGE(all_same, format_name(format));
    CHECK_MESSAGE(neighbour_differs, format_name(format));
    // Every byte is some row's: moved to and fro, the tile is as it was.
    std::vector<std::byte> back(from.size(), std::byte{0});
    for (int row = 0; row < kTileRows; ++row) {
      copy_tile_row(format, kCols, to.data(), (row * 5 + 3) % kTileRows, back.data(), row);
    }
    CHECK_MESSAGE(back == from, format_name(format));
  }
}

TEST_CASE("rank graph: parts hold the rows of the rank's heads, and tiles of all others once") {
  const testing::TemporaryFolder folder;
  testing::TinySpec spec;
  spec.draft_pattern = "*E";
  spec.mamba_heads = 8, spec.mamba_head_dim = 20;  // heads that begin inside of tiles
  spec.n_heads = 8, spec.n_kv_heads = 2, spec.head_dim = 24;
  spec.d_expert = 72, spec.d_model = 200;
  for (const bool q8 : {false, true}) {
    const std::string path = folder / (q8 ? "q8.bolt" : "bf16.bolt");
    testing::make_tiny_package(path, spec, q8);
    const auto package = Package::open(path, {.n_threads = 1, .use_hash_cache = false});
    const Graph& whole = package->graph();
    for (const int n_ranks : {2, 4, 8}) {
      std::vector<int> n_rows(1000, 0);  // of shared columns, by weight: all ranks together
      for (int r = 0; r < n_ranks; ++r) {
        for (const bool for_device : {false, true}) {
          const RankGraph part = rank_graph(whole, {r, n_ranks}, for_device);
          CHECK((for_device || part.pieces.empty()));
          std::vector<const Weight*> all;
          each_share(whole, [&](const Weight& w, Share) { all.push_back(&w); });
          std::size_t i = 0;
          each_share(part.graph, [&](const Weight& own, Share share) {
            const Weight& w = *all[i++];
            if (share == Share::heads || !w.present()) return;
            std::vector<std::byte> memory;
            const Weight held = joined(part, own, memory);
            const int first = r * slice_cols(w.n_rows, n_ranks);
            if (!for_device) n_rows[i] += own.n_rows;
            bool equal = true;
            for (int m = 0; m < w.n_matrices; ++m) {
              for (int row = 0; row < own.n_rows; ++row) {
                equal = equal && same(row_of(held, m, row), row_of(w, m, first + row));
              }
            }
            CHECK(equal);
          });
          i = 0;
          if (!for_device && r == n_ranks - 1) {
            each_share(whole, [&](const Weight& w, Share share) {
              ++i;
              if (share != Share::heads) CHECK(n_rows[i] == w.n_rows);
            });
          }
          // in_proj: z, x, B, C and dt of the rank's heads and groups, one after the other.
          const auto& mamba = std::get<Mamba2>(whole.layers[0].mixer);
          const auto& own = std::get<Mamba2>(part.graph.layers[0].mixer);
          std::vector<std::byte> memory;
          const Weight held = joined(part, own.in_proj, memory);
          CHECK(held.n_rows == own.d_in_proj());
          const ColumnRange groups = groups_of(mamba, {r, n_ranks});
          const int d_inner = mamba.d_inner(), d_bc = mamba.n_ssm_groups * mamba.d_state;
          const int x = r * own.d_inner(), b = groups.first * mamba.d_state;
          std::vector<int> rows;
          const auto take = [&](int first, int n) {
            for (int k = 0; k < n; ++k) rows.push_back(first + k);
          };
          take(x, own.d_inner());
          take(d_inner + x, own.d_inner());
          take(2 * d_inner + b, groups.n * mamba.d_state);
          take(2 * d_inner + d_bc + b, groups.n * mamba.d_state);
          take(2 * d_inner + 2 * d_bc + r * own.n_heads, own.n_heads);
          REQUIRE(static_cast<int>(rows.size()) == held.n_rows);
          bool equal = true;
          for (int k = 0; k < held.n_rows; ++k) {
            equal = equal && same(row_of(held, 0, k),
                                  row_of(mamba.in_proj, 0, rows[static_cast<std::size_t>(k)]));
          }
          CHECK(equal);
        }
      }
    }
  }
}

TEST_CASE("rank graph: numbers of ranks that do not divide are refused, naming those that do") {
  const testing::TemporaryFolder folder;
  testing::TinySpec spec;
  spec.pattern = "-M*E";
  spec.mamba_heads = 8, spec.n_ssm_groups = 2, spec.n_heads = 4, spec.n_kv_heads = 1;
  testing::make_tiny_package(folder / "tiny.bolt", spec);
  const auto package = Package::open(folder / "tiny.bolt", {.n_threads = 1});
  const Graph& graph = package->graph();
  CHECK(possible_ranks(graph) == std::vector<int>{1, 2, 4});
  CHECK_NOTHROW(check_ranks(graph, 4, "cpu:4"));
  const auto line = [&](int n) {
    return testing::error_of([&] { check_ranks(graph, n, "cpu:" + std::to_string(n)); });
  };
  CHECK(line(3) ==
        "2 --device cpu:3: layers.1 has 8 Mamba heads, which 3 ranks do not divide; this package "
        "runs on 1, 2 or 4");
  CHECK(
      line(8) ==
      "2 --device cpu:8: layers.2 has 4 attention heads, which 8 ranks do not divide; this package "
      "runs on 1, 2 or 4");
}

}  // namespace bolt
