// Kept prefixes: what is reused is what a fresh run computes, wherever the prefix ends; and what is
// kept stays within its budget. Rows of public fault reports are named as "case N".
#include <doctest/doctest.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/engine/generate.h"
#include "core/engine/ops_model.h"
#include "core/engine/testing/sample.h"
#include "core/engine/testing/wrong_ops.h"

namespace bolt {
namespace {

using testing::Answer;
using testing::Mistake;
using testing::sample_package;
using Source = DraftOptions::Source;

std::unique_ptr<Engine> open_engine(std::int64_t prefix_bytes) {
  EngineOptions options;
  options.device = testing::test_device();
  options.context = 2048;
  options.chunk_rows = 512;  // the same on every device: prefixes are kept where chunks end
  options.n_slots = 2;
  options.prefix_bytes = prefix_bytes;
  return Engine::open(sample_package(), options);
}

struct Turn {
  Answer answer;
  std::string state;
  std::vector<int> ids;  // the whole sequence
  std::int64_t n_reused = 0;
};

// A reply on a sequence of its own, which is closed after it.
Turn say(Engine& engine, const std::vector<int>& prompt, DraftOptions draft) {
  const auto sequence = engine.new_sequence();
  Request request;
  request.prompt_ids = prompt;
  request.max_new = 9;
  request.draft = draft;
  Reply reply;
  Turn turn{testing::answer(engine, *sequence, request, &reply), sequence->state_digest(), prompt,
            reply.n_reused};
  turn.ids.insert(turn.ids.end(), turn.answer.ids.begin(), turn.answer.ids.end());
  return turn;
}

std::vector<int> joined(std::vector<int> a, const std::vector<int>& b, std::size_t from,
                        std::size_t n) {
  a.insert(a.end(), b.begin() + static_cast<std::ptrdiff_t>(from),
           b.begin() + static_cast<std::ptrdiff_t>(from + n));
  return a;
}

}  // namespace

TEST_CASE("prefixes: turns of a chat equal fresh runs, wherever the turns before ended") {
  const std::vector<int> text = testing::text_ids(sample_package(), 400);
  const auto fresh = open_engine(0), keeping = open_engine(-1);
  int n_resumed = 0;
  for (const std::size_t n : {3, 120, 127, 128, 129, 250}) {
    for (const DraftOptions draft : {DraftOptions{Source::off, -1}, DraftOptions{Source::mtp, 3},
                                     DraftOptions{Source::automatic, 7}}) {
      // A question, a second one after the reply, and another way on from the middle of the reply.
      const std::vector<int> first(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n));
      const Turn one = say(*keeping, first, draft);
      const std::vector<int> second = joined(one.ids, text, 7, 12);
      const Turn two = say(*keeping, second, draft);
      std::vector<int> branch(one.ids.begin(), one.ids.end() - 4);
      branch = joined(branch, text, 30, 5);
      const Turn three = say(*keeping, branch, draft), again = say(*keeping, second, draft);
      for (const auto& [turn, prompt] : {std::pair(one, first), std::pair(two, second),
                                         std::pair(three, branch), std::pair(again, second)}) {
        const Turn plain = say(*fresh, prompt, {Source::off, -1});
        CHECK(turn.answer == plain.answer);
        CHECK(turn.state == plain.state);
        CHECK(plain.n_reused == 0);
      }
      // The reply's last id was never run; the branch goes on from the prompt's end, or from where
      // another prompt ended later.
      CHECK(two.n_reused == static_cast<std::int64_t>(one.ids.size()) - 1);
      CHECK(three.n_reused >= static_cast<std::int64_t>(n));
      n_resumed += one.n_reused > 0;
    }
  }
  CHECK(n_resumed > 5);  // shorter turns, and other ways of drafting, left theirs
}

TEST_CASE("prefixes: the same long prompt twice, and two that share no kept end (cases 21, 22)") {
  const std::vector<int> text = testing::text_ids(sample_package(), 700);
  const auto fresh = open_engine(0), keeping = open_engine(-1);
  const std::vector<int> prompt(text.begin(), text.begin() + 600);
  const DraftOptions draft{Source::mtp, 4};
  const Turn plain = say(*fresh, prompt, draft), first = say(*keeping, prompt, draft),
             second = say(*keeping, prompt, draft);
  CHECK(first.answer == plain.answer);
  CHECK(second.answer == plain.answer);
  CHECK(first.n_reused == 0);
  CHECK(second.n_reused == 512);
  const auto other = open_engine(-1);
  const std::vector<int> a(text.begin(), text.begin() + 120);
  const std::vector<int> b =
      joined(std::vector<int>(text.begin(), text.begin() + 100), text, 300, 20);
  (void)say(*other, a, draft);
  const Turn shares = say(*other, b, draft);
  CHECK(shares.n_reused == 0);
  CHECK(shares.answer == say(*fresh, b, draft).answer);
}

TEST_CASE("prefixes: a budget that holds none is refused, a small one keeps the latest") {
  CHECK_THROWS_AS((void)open_engine(1000), Error);
  const auto small = open_engine(3 << 20);  // a prefix or two
  const auto fresh = open_engine(0);
  const std::vector<int> text = testing::text_ids(sample_package(), 200);
  for (int round = 0; round < 3; ++round) {
    for (const std::size_t n : {20, 90, 150}) {
      const std::vector<int> prompt(text.begin() + round, text.begin() + static_cast<int>(n));
      const Turn turn = say(*small, prompt, {Source::off, -1});
      CHECK(turn.answer == say(*fresh, prompt, {Source::off, -1}).answer);
      const std::vector<int> more = joined(turn.ids, text, 0, 3);
      CHECK(say(*small, more, {Source::off, -1}).n_reused > 0);
    }
  }
}

TEST_CASE("prefixes: planted mistakes are caught: a state one token old, a page not copied") {
  const Package& package = sample_package();
  const std::vector<int> text = testing::text_ids(package, 100);
  // The state after a reply and a second turn, the second turn on another slot.
  const auto second_turn = [&](Mistake mistake, int n_prefixes) {
    HostOps host(1, resolve_isa(Isa::automatic));
    testing::WrongOps ops(host, mistake);
    ModelSizes sizes;
    sizes.n_slots = 2;
    sizes.context = 512;
    sizes.n_vocab = package.config().n_tokens;
    sizes.n_prefixes = n_prefixes;
    sizes.n_prefix_pages = 4 * n_prefixes;
    OpsModel model(ops, package.graph(), sizes);
    const auto turn = [&](const std::vector<int>& prompt) {
      Request request;
      request.prompt_ids = prompt;
      request.max_new = 6;
      const int slot = model.open_slot();
      model.resume_prefix(slot, prompt, false, {});
      Stream stream(model, slot, request, nullptr, nullptr, 512, 0, nullptr);
      Stream* const only = &stream;
      while (!stream.is_finished()) Rounds(model).run({&only, 1});
      std::vector<int> ids = prompt;
      ids.insert(ids.end(), stream.reply().ids.begin(), stream.reply().ids.end());
      return std::tuple(ids, model.state_digest(slot), stream.reply().n_reused);
    };
    const std::vector<int> first = std::get<0>(turn({text.begin(), text.begin() + 50}));
    return turn(joined(first, text, 60, 8));
  };
  const auto plain = second_turn(Mistake::none, 0);
  const auto kept = second_turn(Mistake::none, 8);
  CHECK(std::get<2>(plain) == 0);
  CHECK(std::get<2>(kept) == 55);
  CHECK(std::get<0>(kept) == std::get<0>(plain));
  CHECK(std::get<1>(kept) == std::get<1>(plain));
  for (const Mistake mistake : {Mistake::keeps_old_state, Mistake::leaves_last_page}) {
    const auto wrong = second_turn(mistake, 8);
    CHECK(std::get<2>(wrong) == 55);
    CHECK(std::get<1>(wrong) != std::get<1>(plain));
  }
}

TEST_CASE("prefix cache: the longest that fits is found, the least recently used goes first") {
  PagePool pool(10);
  PrefixCache cache(pool, 3, 4);
  const auto keep = [&](std::vector<int> ids, std::vector<int> pages) {
    KeptPrefix prefix;
    prefix.ids = std::move(ids);
    prefix.pages = std::move(pages);
    return cache.keep(std::move(prefix));
  };
  const auto any = [](const KeptPrefix&) { return true; };
  const int a = pool.take(), b = pool.take(), c = pool.take();
  const int one = keep({1, 2}, {a}), two = keep({1, 2, 3}, {a, b}), three = keep({9}, {c});
  for (const int page : {a, b, c}) pool.give(page);
  CHECK(pool.n_free() == 7);  // the cache holds all three
  CHECK(cache.find(std::vector<int>{1, 2, 3, 4}, any) == two);
  CHECK(cache.find(std::vector<int>{1, 2, 3}, any) == one);  // shorter than the prompt
  CHECK(cache.find(std::vector<int>{1, 2}, any) == -1);
  CHECK(cache.find(std::vector<int>{2, 2, 3, 4}, any) == -1);
  CHECK(cache.find(std::vector<int>{1, 2, 3, 4},
                   [](const KeptPrefix& p) { return p.ids.size() < 3; }) == one);
  CHECK(cache.find_same(std::vector<int>{9}) == three);
  // The place of {1, 2, 3} is the one used longest ago: its own page is free again, the shared is
  // not.
  const int d = pool.take();
  CHECK(keep({5, 5}, {d}) == two);
  pool.give(d);
  CHECK(pool.n_free() == 7);
  CHECK(cache.find(std::vector<int>{1, 2, 3, 4}, any) == one);
  // Four pages at most: two must go for one that holds three.
  std::vector<int> pages = {pool.take(), pool.take(), pool.take()};
  CHECK(keep({7, 7, 7}, pages) >= 0);
  CHECK(cache.n_kept() == 2);
  for (const int page : pages) pool.give(page);
  CHECK(pool.n_free() == 6);
  CHECK(keep({8}, {0, 1, 2, 3, 4}) == -1);
}

}  // namespace bolt
