// The draft vocabulary and the row geometries change what is run, never what is said.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/base/sha256.h"
#include "core/engine/drafter.h"
#include "core/engine/generate.h"
#include "core/engine/ops_model.h"
#include "core/engine/testing/sample.h"
#include "core/ops/host.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

struct Outcome {
  std::vector<int> ids;
  std::string logits, state;
  Counters counters;
  bool same_reply(const Outcome& o) const {
    return ids == o.ids && logits == o.logits && state == o.state;
  }
};

Outcome run(const Graph& graph, const std::vector<int>& prompt, DraftOptions draft,
            int max_new = 40) {
  const Package& package = testing::sample_package();
  HostOps ops(1, resolve_isa(Isa::automatic));
  ModelSizes sizes;
  sizes.context = 1024;
  sizes.n_vocab = package.config().n_tokens;
  OpsModel model(ops, graph, sizes);
  Request request;
  request.prompt_ids = prompt;
  request.max_new = max_new;
  request.draft = draft;
  request.want_logits = true;
  Sha256 hash;
  const auto sink = [&](int, std::span<const float> logits) {
    hash.update(logits.data(), logits.size_bytes());
    return true;
  };
  const int slot = model.open_slot();
  Stream stream(model, slot, request, sink, make_drafter(request, model, {}), 1024,
                model.max_window_rows() - 1, nullptr);
  Stream* const only = &stream;
  while (!stream.is_finished()) Rounds(model).run({&only, 1});
  return {stream.reply().ids, hash.hex(), model.state_digest(slot), stream.reply().counters};
}

// The sample's graph with a draft vocabulary of the given ids: their rows of the head, repacked.
struct VocabGraph {
  std::vector<std::byte> storage;
  Graph graph;
};
VocabGraph with_draft_vocab(const Graph& graph, const std::vector<int>& ids) {
  const Weight& head = graph.lm_head;
  REQUIRE(head.format == Format::bf16);
  RowCodes rows;
  rows.resize(head.format, static_cast<int>(ids.size()), head.n_cols);
  for (int r = 0; r < rows.n_rows; ++r) {
    const int id = ids[static_cast<std::size_t>(r)];
    for (int c = 0; c < head.n_cols; ++c) {
      const std::byte* block =
          head.data +
          (static_cast<std::ptrdiff_t>(id / kTileRows) * n_groups(head.n_cols) + c / kGroupCols) *
              block_bytes(head.format);
      rows.code_row<std::uint16_t>(r)[c] = static_cast<std::uint16_t>(
          packed_code(head.format, block, id % kTileRows, c % kGroupCols));
    }
  }
  VocabGraph out{{}, graph};
  const std::uint64_t tile_bytes = packed_matrix_bytes(head.format, kTileRows, head.n_cols);
  out.storage.resize(packed_matrix_bytes(head.format, rows.n_rows, head.n_cols));
  for (int tile = 0; tile < n_tiles(rows.n_rows); ++tile) {
    pack_tile(rows, tile * kTileRows, out.storage.data() + tile * tile_bytes);
  }
  Weight weight = head;
  weight.n_rows = rows.n_rows;
  weight.bytes = out.storage.size();
  weight.data = out.storage.data();
  out.graph.draft->vocab_ids = ids;
  out.graph.draft->vocab_head = weight;
  return out;
}

TEST_CASE("draft vocabulary: read while the last 16 ids are in it, the whole head otherwise") {
  const Package& package = testing::sample_package();
  const std::vector<int> prompt = testing::text_ids(package, 100);
  const DraftOptions k7{DraftOptions::Source::mtp, 7};
  const Outcome plain = run(package.graph(), prompt, {DraftOptions::Source::off, -1});
  const Outcome whole = run(package.graph(), prompt, k7);
  CHECK(whole.same_reply(plain));

  // All ids: the same drafts, over another matrix.
  std::vector<int> ids(static_cast<std::size_t>(package.config().vocab_size));
  std::iota(ids.begin(), ids.end(), 0);
  const VocabGraph all = with_draft_vocab(package.graph(), ids);
  const Outcome over_all = run(all.graph, prompt, k7);
  CHECK(over_all.same_reply(plain));
  CHECK(over_all.counters.accepted_at == whole.counters.accepted_at);

  // What the reply and the prompt's end need, and nothing else: still the same drafts.
  std::vector<int> few = plain.ids;
  few.insert(few.end(), prompt.end() - 16, prompt.end());
  std::sort(few.begin(), few.end());
  few.erase(std::unique(few.begin(), few.end()), few.end());
  const VocabGraph small = with_draft_vocab(package.graph(), few);
  const Outcome over_few = run(small.graph, prompt, k7);
  CHECK(over_few.same_reply(plain));
  CHECK(over_few.counters.target <= whole.counters.target);

  // Not covered: the last 16 ids are never all in it, so the whole head drafts.
  const VocabGraph other = with_draft_vocab(package.graph(), {3, 5, 8});
  const Outcome uncovered = run(other.graph, prompt, k7);
  CHECK(uncovered.same_reply(plain));
  CHECK(uncovered.counters.accepted_at == whole.counters.accepted_at);
}

TEST_CASE("geometry: fixed and hybrid rows say what dynamic ones do") {
  const Package& package = testing::drafted_package();
  const std::vector<int> text = testing::text_ids(package, 300);
  for (const int n_prompt : {1, 7, 8, 9, 125, 130}) {
    const std::vector<int> prompt(text.begin(), text.begin() + n_prompt);
    const Outcome plain = run(package.graph(), prompt, {DraftOptions::Source::off, -1}, 20);
    for (const auto kind : {Geometry::Kind::fixed, Geometry::Kind::hybrid}) {
      for (const int rows : {2, 8}) {
        Graph graph = package.graph();
        graph.geometry = {kind, rows};
        for (const DraftOptions draft : {DraftOptions{DraftOptions::Source::off, -1},
                                         DraftOptions{DraftOptions::Source::mtp, rows - 1},
                                         DraftOptions{DraftOptions::Source::dspark, rows - 1},
                                         DraftOptions{DraftOptions::Source::dflash, rows - 1}}) {
          const Outcome padded = run(graph, prompt, draft, 20);
          CHECK_MESSAGE(padded.same_reply(plain), "prompt ", n_prompt, ", rows ", rows);
          CHECK(padded.counters.prompt_passes == (n_prompt + rows - 1) / rows);
          const bool is_block = draft.source == DraftOptions::Source::dspark ||
                                draft.source == DraftOptions::Source::dflash;
          CHECK((padded.counters.block_passes > 0) == is_block);
        }
      }
    }
  }
}

}  // namespace
}  // namespace bolt
