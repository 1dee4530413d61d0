// What the engine captures: equal keys mean equal ops on equal buffers, whoever drafts, whichever
// sequences share a round. A device that replays a captured call finds the right rows by it.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>

#include "core/engine/drafter.h"
#include "core/engine/generate.h"
#include "core/engine/ops_model.h"
#include "core/engine/testing/replay_checked_ops.h"
#include "core/engine/testing/sample.h"

namespace bolt {
namespace {

using Source = DraftOptions::Source;

// Replies of all sources and depths, sharing rounds, then each alone on the slots in turn.
void run_all(Ops& ops) {
  constexpr int kSlots = 7, kContext = 512;
  const Package& package = testing::drafted_package();
  ModelSizes sizes;
  sizes.context = kContext;
  sizes.n_slots = kSlots;
  sizes.n_vocab = package.config().n_tokens;
  sizes.chunk_rows = 64;
  OpsModel model(ops, package.graph(), sizes);
  const std::vector<int> text = testing::text_ids(package, 200);
  std::vector<int> slots;
  for (int i = 0; i < kSlots; ++i) slots.push_back(model.open_slot());
  const DraftOptions drafts[] = {{Source::mtp, 7},    {Source::dspark, 7}, {Source::dflash, 7},
                                 {Source::dflash, 6}, {Source::dspark, 6}, {Source::automatic, 3},
                                 {Source::off, -1}};
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<Stream*> all;
    for (int i = 0; i < kSlots; ++i) {
      Request request;
      request.prompt_ids.assign(text.begin() + i, text.begin() + 40 + 9 * i);
      request.max_new = 20;
      request.draft = drafts[(i + 2 * turn) % kSlots];
      model.reset_slot(slots[static_cast<std::size_t>(i)]);
      streams.push_back(std::make_unique<Stream>(model, slots[static_cast<std::size_t>(i)], request,
                                                 nullptr, make_drafter(request, model, {}),
                                                 kContext, 31, nullptr));
      all.push_back(streams.back().get());
    }
    const auto finish = [&](std::span<Stream* const> some) {
      while (std::any_of(some.begin(), some.end(), [](Stream* s) { return !s->is_finished(); })) {
        Rounds(model).run(some);
      }
    };
    if (turn == 0) {
      finish(all);
    } else {
      for (Stream* const& one : all) finish({&one, 1});
    }
  }
}

}  // namespace

TEST_CASE("replay: equal keys mean equal ops on equal buffers") {
  HostOps host(1, resolve_isa(Isa::automatic));
  testing::ReplayCheckedOps ops(host);
  run_all(ops);
  CHECK(ops.n_replays() > 100);
  CHECK(ops.n_others() == 0);
  // Control: keys of which only six bits are left.
  testing::ReplayCheckedOps short_keys(host, 63);
  run_all(short_keys);
  CHECK(short_keys.n_others() > 0);
}

}  // namespace bolt
