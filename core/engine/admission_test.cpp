// Memory is counted before a sequence begins: what was set aside is never lacking, and is free
// again when the sequence goes.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "core/engine/drafter.h"
#include "core/engine/generate.h"
#include "core/engine/ops_model.h"
#include "core/engine/testing/sample.h"
#include "core/ops/host.h"

namespace bolt {
namespace {

TEST_CASE("admission: pages are set aside for a slot, and given up with it") {
  Slots slots(3, 12, /*n_extra=*/2);
  const int a = slots.open(), b = slots.open(), c = slots.open();
  CHECK(slots.reserve(a, 4));
  CHECK(slots.reserve(b, 6));
  CHECK_FALSE(slots.has_room(1));  // two of the twelve are kept prefixes'
  CHECK_FALSE(slots.reserve(c, 1));
  CHECK(slots.reserve(b, 3));  // less than before
  CHECK(slots.reserve(c, 3));
  slots.reset(a);
  CHECK(slots.has_room(4));
  CHECK_FALSE(slots.has_room(5));
  slots.close(b);
  CHECK(slots.has_room(7));
}

TEST_CASE("admission: a sequence runs to the end of what was set aside beside full neighbours") {
  const Package& package = testing::sample_package();
  HostOps ops(1, resolve_isa(Isa::automatic));
  ModelSizes sizes;
  sizes.n_slots = 3;
  sizes.context = 1000;
  sizes.n_vocab = package.config().n_tokens;
  sizes.n_pages = pages_of_sequence(1000) + pages_of_sequence(200);
  OpsModel model(ops, package.graph(), sizes);
  const int one = model.open_slot(), two = model.open_slot(), three = model.open_slot();
  CHECK(model.reserve(one, 1000));
  CHECK(model.has_room(200));
  CHECK_FALSE(model.has_room(500));
  CHECK(model.reserve(two, 200));
  CHECK_FALSE(model.reserve(three, 1));
  // Both to their last position; a window of 32 rows reaches past it.
  const std::vector<int> text = testing::text_ids(package, 900);
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Stream*> all;
  for (const auto& [slot, n_prompt, context] : {std::tuple(one, 900, 1000), {two, 150, 200}}) {
    Request request;
    request.prompt_ids.assign(text.begin(), text.begin() + n_prompt);
    request.draft = {DraftOptions::Source::mtp, 31};
    streams.push_back(std::make_unique<Stream>(
        model, slot, request, nullptr, make_drafter(request, model, {}), context, 31, nullptr));
    all.push_back(streams.back().get());
  }
  Rounds rounds(model);
  while (!all[0]->is_finished() || !all[1]->is_finished()) rounds.run(all);
  CHECK(all[0]->reply().finish == Finish::context);
  CHECK(all[1]->reply().finish == Finish::context);
  model.close_slot(one);
  CHECK(model.reserve(three, 1000));
}

TEST_CASE("admission: sequences that share a round take 64 rows at most, and say the same") {
  const Package& package = testing::sample_package();
  EngineOptions options;
  options.device = testing::test_device();
  options.context = 512;
  const auto alone = Engine::open(package, options);
  options.n_slots = 12;
  const auto shared = Engine::open(package, options);
  const std::vector<int> text = testing::text_ids(package, 60);
  // Seven drafts each would be 96 rows; a drafted round of all must hold fewer.
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<std::unique_ptr<Generation>> generations;
  std::vector<Generation*> all;
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    Request request;
    request.prompt_ids.assign(text.begin() + i, text.begin() + 30 + 2 * i);
    request.max_new = 20;
    request.draft = {DraftOptions::Source::mtp, 7};
    requests.push_back(request);
    sequences.push_back(shared->new_sequence());
    generations.push_back(shared->start(*sequences.back(), request, nullptr));
    all.push_back(generations.back().get());
  }
  std::int64_t drafted_before = 0, most = 0;
  while (std::any_of(all.begin(), all.end(), [](Generation* g) { return !g->is_finished(); })) {
    shared->round(all);
    std::int64_t drafted = 0;
    for (const Generation* g : all) drafted += g->reply().counters.drafted;
    most = std::max(most, drafted - drafted_before);
    drafted_before = drafted;
  }
  CHECK(most > 30);
  CHECK(most <= kRoundRowsMax - 12 + 11);  // fewer rows are asked for as replies end
  for (int i = 0; i < 12; ++i) {
    const auto sequence = alone->new_sequence();
    Request request = requests[static_cast<std::size_t>(i)];
    request.draft = {DraftOptions::Source::off, -1};
    CHECK(alone->generate(*sequence, request, nullptr).ids ==
          all[static_cast<std::size_t>(i)]->reply().ids);
  }
}

}  // namespace
}  // namespace bolt
