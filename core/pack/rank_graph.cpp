// Rows of a rank as tiles: whole tiles stay where they are mapped, rows that begin inside of one
// are moved into tiles of the rank's own.
#include "core/pack/rank_graph.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <span>

#include "core/base/error.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

constexpr std::size_t kAlignment = 4096;  // of weights, as in the files

struct RowRange {
  int first = 0, n = 0;
};

std::string list_of(const std::vector<int>& counts) {
  std::string text;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == counts.size() ? " or " : ", ") + std::to_string(counts[i]);
  }
  return text;
}

// What of a mixer n ranks do not divide; empty if they do.
std::string undivided(const Mixer& mixer, int n) {
  if (const auto* m = std::get_if<Mamba2>(&mixer)) {
    if (m->n_heads % n != 0) return std::to_string(m->n_heads) + " Mamba heads";
    if (m->n_ssm_groups % n != 0 && n % m->n_ssm_groups != 0) {
      return std::to_string(m->n_ssm_groups) + " Mamba groups";
    }
  } else if (const auto* a = std::get_if<Attention>(&mixer)) {
    if (a->n_heads % n != 0) return std::to_string(a->n_heads) + " attention heads";
    if (a->n_kv_heads % n != 0 && n % a->n_kv_heads != 0) {
      return std::to_string(a->n_kv_heads) + " key-value heads";
    }
  }
  return {};
}

// The first layer that n ranks do not divide, and why; empty if there is none.
std::string first_undivided(const Graph& graph, int n) {
  const auto look = [&](const std::vector<Layer>& layers, const std::string& prefix) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const std::string why = undivided(layers[i].mixer, n);
      if (!why.empty()) return fmt::format("{}{} has {}", prefix, i, why);
    }
    return std::string();
  };
  std::string why = look(graph.layers, "layers.");
  if (!why.empty() || !graph.draft) return why;
  return look(graph.draft->layers, "draft.layers.");
}

// Takes rows of weights and keeps the memory of those that had to be moved.
class Taker {
 public:
  Taker(RankGraph& out, bool for_device) : out_(out), for_device_(for_device) {}

  // The rows of a matrix of floats that lies plainly, row-major.
  void plain(Weight& w, std::initializer_list<RowRange> ranges) {
    const std::uint64_t row_bytes = w.bytes / static_cast<std::uint64_t>(w.n_rows);
    w.n_rows = 0;
    for (const RowRange& r : ranges) {
      add(w.data + static_cast<std::uint64_t>(r.first) * row_bytes,
          static_cast<std::uint64_t>(r.n) * row_bytes);
      w.n_rows += r.n;
    }
    join(w);
  }
  // Elements of a vector, which is one row.
  void elements(Weight& w, std::initializer_list<RowRange> ranges) {
    const int n_cols = w.n_cols;
    w.n_rows = n_cols, w.n_cols = 1;
    plain(w, ranges);
    w.n_cols = w.n_rows, w.n_rows = 1;
  }

  // Rows of every matrix of a weight in tiles.
  void tiles(Weight& w, std::initializer_list<RowRange> ranges) {
    require(w.layout == Layout::tiles, "ranks share weights in tiles");
    std::vector<int> rows;
    for (const RowRange& r : ranges) {
      for (int i = 0; i < r.n; ++i) rows.push_back(r.first + i);
    }
    const int n_rows = static_cast<int>(rows.size());
    if (n_rows == 0 || n_rows == w.n_rows) {
      w.n_rows = n_rows;
      return;
    }
    const std::uint64_t step = w.matrix_bytes();
    const bool one_run = ranges.size() == 1 && rows[0] % kTileRows == 0;
    if (one_run && (!for_device_ || w.n_matrices == 1)) {
      // As they lie: the next matrix's part is a whole matrix further on.
      w.data += static_cast<std::uint64_t>(rows[0] / kTileRows) * tile_bytes(w.format, w.n_cols);
      w.n_rows = n_rows;
      w.bytes = w.n_matrices > 1 ? step * static_cast<std::uint64_t>(w.n_matrices)
                                 : packed_matrix_bytes(w.format, n_rows, w.n_cols);
      return;
    }
    for (int m = 0; m < w.n_matrices; ++m) {
      for (int first = 0; first < n_rows; first += kTileRows) {
        add_tile(w, w.matrix(m), std::span(rows).subspan(static_cast<std::size_t>(first)));
      }
    }
    w.n_rows = n_rows;
    join(w);
  }

 private:
  std::byte* allocate(std::uint64_t bytes) {
    const std::size_t n = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    out_.memory.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kAlignment, n)));
    if (out_.memory.back() == nullptr) {
      throw Error(Exit::fault, "out of memory: " + std::to_string(bytes) +
                                   " bytes for a rank's part of the weights");
    }
    return out_.memory.back().get();
  }

  // The next tile of a part, of the first 32 of these rows of a matrix.
  void add_tile(const Weight& w, const std::byte* matrix, std::span<const int> rows) {
    const std::uint64_t bytes = tile_bytes(w.format, w.n_cols);
    rows = rows.first(std::min<std::size_t>(rows.size(), kTileRows));
    const auto tile_of = [&](int row) {
      return matrix + static_cast<std::uint64_t>(row / kTileRows) * bytes;
    };
    bool is_tile = rows[0] % kTileRows == 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      is_tile = is_tile && rows[i] == rows[0] + static_cast<int>(i);
    }
    if (is_tile) return add(tile_of(rows[0]), bytes);
    std::byte* moved = allocate(bytes);
    std::memset(moved, 0, bytes);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      copy_tile_row(w.format, w.n_cols, tile_of(rows[i]), rows[i] % kTileRows, moved,
                    static_cast<int>(i));
    }
    add(moved, bytes);
  }

  void add(const std::byte* from, std::uint64_t bytes) {
    if (bytes == 0) return;
    if (!pieces_.empty() && pieces_.back().from + pieces_.back().bytes == from) {
      pieces_.back().bytes += bytes;
    } else {
      pieces_.push_back({from, bytes});
    }
  }

  // Makes the weight what its pieces are.
  void join(Weight& w) {
    w.bytes = 0;
    for (const Piece& p : pieces_) w.bytes += p.bytes;
    if (for_device_) {
      w.data = pieces_[0].from;
      if (pieces_.size() > 1) out_.pieces[w.data] = pieces_;
    } else {
      std::byte* to = allocate(w.bytes);
      w.data = to;
      for (const Piece& p : pieces_) {
        std::memcpy(to, p.from, p.bytes);
        to += p.bytes;
      }
    }
    pieces_.clear();
  }

  RankGraph& out_;
  const bool for_device_;
  std::vector<Piece> pieces_;  // of the weight at hand
};

void take(Taker& taker, Mamba2& m, RankOf of) {
  const int n_heads = m.n_heads / of.n_ranks;
  const ColumnRange groups = groups_of(m, of);
  const int d_inner = m.d_inner(), d_bc = m.n_ssm_groups * m.d_state;
  const RowRange x{of.rank * n_heads * m.head_dim, n_heads * m.head_dim};
  const RowRange b{d_inner + groups.first * m.d_state, groups.n * m.d_state};
  const RowRange c{b.first + d_bc, b.n}, heads{of.rank * n_heads, n_heads};
  const auto behind = [](int first, RowRange r) { return RowRange{first + r.first, r.n}; };
  taker.tiles(m.in_proj, {x, behind(d_inner, x), behind(d_inner, b), behind(d_inner, c),
                          behind(d_inner + m.d_conv(), heads)});
  taker.plain(m.conv_w, {x, b, c});
  taker.elements(m.conv_b, {x, b, c});
  for (Weight* w : {&m.A, &m.D, &m.dt_bias}) taker.elements(*w, {heads});
  if (of.n_ranks <= m.n_ssm_groups) taker.elements(m.gate_norm, {x});
  m.n_heads = n_heads, m.n_ssm_groups = groups.n;
}

void take(Taker& taker, Attention& a, RankOf of) {
  const int n_heads = a.n_heads / of.n_ranks;
  const ColumnRange kv = kv_heads_of(a, of);
  taker.tiles(a.q_proj, {{of.rank * n_heads * a.head_dim, n_heads * a.head_dim}});
  for (Weight* w : {&a.k_proj, &a.v_proj}) {
    taker.tiles(*w, {{kv.first * a.head_dim, kv.n * a.head_dim}});
  }
  a.n_heads = n_heads, a.n_kv_heads = kv.n;
}

// Row-blocks inside a block of one format, each `bytes` long: where row r's lie.
template <class Visit>
void each_row_part(Format format, const Visit& visit) {
  const auto words = [&](int at, int n_bytes) {  // a plane of 4 lanes' words
    for (int t = 0; t < 4; ++t) {
      visit([=](int row) { return at + word_index(t, row) * n_bytes; }, n_bytes);
    }
  };
  const auto column = [&](int at, int n_bytes) {  // one number a row
    visit([=](int row) { return at + row * n_bytes; }, n_bytes);
  };
  switch (format) {
    case Format::f32:
      for (int i = 0; i < 4; ++i) words(i * 1024, 8);
      return;
    case Format::bf16:
    case Format::f16:
      for (int i = 0; i < 4; ++i) words(i * 512, 4);
      return;
    case Format::q8:
      for (int half = 0; half < 2; ++half) words(half * 512, 4);
      column(1024, 2);
      return;
    case Format::nvfp4:
      words(0, 4);
      for (int half = 0; half < 2; ++half) {
        visit([=](int row) { return 512 + row / 4 * 8 + half * 4 + row % 4; }, 1);
      }
      return;
    default:
      break;
  }
  const BlockForm form = block_form(format);
  for (int group = 0; group < form.n_cols / kGroupCols; ++group) {
    const int at = group * form.group_bytes();
    if (form.bytes) words(at, 4), words(at + 512, 4);
    if (form.nibbles) words(at, 4);
    for (int half = 0; form.pairs && half < 2; ++half) column(at + form.pairs_at() + half * 128, 4);
    if (form.bits) column(at + form.bits_at(), 4);
  }
  const int scales = form.codes_bytes();
  for (int i = 0; i < form.n_halves; ++i) column(scales + i * kTileRows * 2, 2);
  for (int i = 0; i < form.n_small; ++i) {
    column(scales + (form.n_halves * 2 + i) * kTileRows, 1);
  }
}

}  // namespace

void RankGraph::Free::operator()(std::byte* p) const noexcept { std::free(p); }

std::vector<int> possible_ranks(const Graph& graph) {
  std::vector<int> counts;
  for (int n = 1; n <= kRanksMax; ++n) {
    if (first_undivided(graph, n).empty()) counts.push_back(n);
  }
  return counts;
}

void check_ranks(const Graph& graph, int n_ranks, const std::string& device) {
  const std::string why = first_undivided(graph, n_ranks);
  if (n_ranks <= kRanksMax && why.empty()) return;
  const std::string ranks = std::to_string(n_ranks) + " ranks";
  throw Error(Exit::usage,
              "--device " + device + ": " +
                  (why.empty() ? "at most " + std::to_string(kRanksMax) + " ranks share a model"
                               : why + ", which " + ranks + " do not divide") +
                  "; this package runs on " + list_of(possible_ranks(graph)));
}

void copy_tile_row(Format format, int n_cols, const std::byte* from, int from_row, std::byte* to,
                   int to_row) {
  const int n = n_blocks(format, n_cols), bytes = block_bytes(format);
  each_row_part(format, [&](const auto& place, int n_bytes) {
    for (std::int64_t b = 0; b < n; ++b) {
      std::memcpy(to + b * bytes + place(to_row), from + b * bytes + place(from_row),
                  static_cast<std::size_t>(n_bytes));
    }
  });
}

RankGraph rank_graph(const Graph& whole, RankOf of, bool for_device) {
  RankGraph part;
  part.graph = whole;
  Taker taker(part, for_device);
  const auto layers = [&](std::vector<Layer>& list) {
    for (Layer& layer : list) {
      if (auto* mamba = std::get_if<Mamba2>(&layer.mixer)) take(taker, *mamba, of);
      if (auto* attention = std::get_if<Attention>(&layer.mixer)) take(taker, *attention, of);
    }
  };
  layers(part.graph.layers);
  if (part.graph.draft) layers(part.graph.draft->layers);
  each_share(part.graph, [&](Weight& w, Share share) {
    if (!w.present() || share == Share::heads) return;
    const ColumnRange rows = part_of_columns(w.n_rows, slice_cols(w.n_rows, of.n_ranks), of.rank);
    taker.tiles(w, {{rows.first, rows.n}});
  });
  return part;
}

}  // namespace bolt
