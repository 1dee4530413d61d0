// One rank's part of a graph: which rows of which weight it holds, and where their tiles lie in the
// mapped files. Every output of a linear is summed by one rank alone, over all of K, so that no
// bit depends on how many ranks there are. What ranks compute and exchange is
// core/engine/rank_ops.h.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/pack/graph.h"
#include "core/pack/tiles.h"

namespace bolt {

inline constexpr int kRanksMax = 64;

struct RankOf {
  int rank = 0, n_ranks = 1;
};

// How ranks share a weight's rows (the others are held whole by everyone).
//   heads    those of the rank's attention heads, or Mamba heads and groups
//   columns  whole tiles, so many for each rank, the last ones fewer or none: the outputs are
//            columns that all ranks then exchange
//   logits   as columns, of a head
enum class Share { heads, columns, logits };

// visit(weight, share) for every weight that ranks share, present or not, always in one order.
template <class G, class Visit>
void each_share(G& graph, Visit&& visit) {
  const auto layers = [&](auto& list) {
    for (auto& layer : list) {
      if (auto* mamba = std::get_if<Mamba2>(&layer.mixer)) {
        visit(mamba->in_proj, Share::heads);
        visit(mamba->out_proj, Share::columns);
      } else if (auto* attention = std::get_if<Attention>(&layer.mixer)) {
        visit(attention->q_proj, Share::heads);
        visit(attention->k_proj, Share::heads);
        visit(attention->v_proj, Share::heads);
        visit(attention->o_proj, Share::columns);
      } else if (auto* mlp = std::get_if<Mlp>(&layer.mixer)) {
        visit(mlp->up_proj, Share::columns);
        visit(mlp->down_proj, Share::columns);
      } else if (auto* moe = std::get_if<Moe>(&layer.mixer)) {
        visit(moe->experts_up, Share::columns);
        visit(moe->experts_down, Share::columns);
        visit(moe->shared_up, Share::columns);
        visit(moe->shared_down, Share::columns);
        visit(moe->latent_down, Share::columns);
        visit(moe->latent_up, Share::columns);
      }
    }
  };
  layers(graph.layers);
  visit(graph.lm_head, Share::logits);
  if (!graph.draft) return;
  visit(graph.draft->eh_proj, Share::columns);
  layers(graph.draft->layers);
  visit(graph.draft->vocab_head, Share::logits);
}

// Columns of a rank's part of n_cols outputs that are shared by tiles; rank r has those from
// r * slice_cols on, as far as there are any.
constexpr int slice_cols(int n_cols, int n_ranks) {
  return (n_tiles(n_cols) + n_ranks - 1) / n_ranks * kTileRows;
}
struct ColumnRange {
  int first = 0, n = 0;
};
constexpr ColumnRange part_of_columns(int n_cols, int slice, int rank) {
  const int first = std::min(slice * rank, n_cols);
  return {first, std::min(slice, n_cols - first)};
}
// The kv heads of a rank: where there are fewer than ranks, several ranks keep the same one.
constexpr ColumnRange kv_heads_of(const Attention& node, RankOf of) {
  if (of.n_ranks > node.n_kv_heads) return {of.rank * node.n_kv_heads / of.n_ranks, 1};
  const int n = node.n_kv_heads / of.n_ranks;
  return {of.rank * n, n};
}

// The Mamba groups of a rank, alike; a shared one's B and C are every sharer's.
constexpr ColumnRange groups_of(const Mamba2& node, RankOf of) {
  if (of.n_ranks > node.n_ssm_groups) return {of.rank * node.n_ssm_groups / of.n_ranks, 1};
  const int n = node.n_ssm_groups / of.n_ranks;
  return {of.rank * n, n};
}

// Throws Error(usage) naming the first layer whose heads or groups n_ranks do not divide, and the
// numbers of ranks that the graph runs on. device: as it was asked for.
void check_ranks(const Graph& graph, int n_ranks, const std::string& device);
std::vector<int> possible_ranks(const Graph& graph);

struct Piece {
  const std::byte* from = nullptr;
  std::uint64_t bytes = 0;
};

using Pieces = std::map<const std::byte*, std::vector<Piece>>;

struct RankGraph {
  // Weights and nodes as large as the rank has them (MLPs and experts keep their whole width, a
  // Mamba layer its whole gate_norm where ranks share a group). Of a shared weight without a row
  // here, n_rows is 0 and data an address that no other weight has.
  Graph graph;
  // For a device: weights that lie in pieces, one after the other, by their `data`, which is then
  // no more than a name. For the host there are none: what does not lie as its kernels read it was
  // copied to `memory`.
  Pieces pieces;
  struct Free {
    void operator()(std::byte* p) const noexcept;
  };
  std::vector<std::unique_ptr<std::byte, Free>> memory;
};

// whole: with its weights mapped, which must outlive the part.
RankGraph rank_graph(const Graph& whole, RankOf of, bool for_device);

// Copies row `from_row` of one tile to row `to_row` of another, both of the format and n_cols
// columns; the other rows stay.
void copy_tile_row(Format format, int n_cols, const std::byte* from, int from_row, std::byte* to,
                   int to_row);

}  // namespace bolt
