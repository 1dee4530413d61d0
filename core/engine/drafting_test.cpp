// The parts of drafting alone: copies, the depth rule, the cost table, slots and pages.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "core/base/error.h"
#include "core/engine/copy_source.h"
#include "core/engine/depth_rule.h"
#include "core/engine/slots.h"
#include "core/engine/testing/fake_model.h"

namespace bolt {
namespace {

std::vector<int> counting(int first, int n) {
  std::vector<int> ids;
  for (int i = 0; i < n; ++i) ids.push_back(first + i);
  return ids;
}
std::vector<int> join(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_CASE("copies: eight ids or more must match, and what followed is proposed") {
  const std::vector<int> past = counting(100, 40);
  for (int n_match = 1; n_match <= 20; ++n_match) {
    CopySource copies;
    const auto known = join(join(past, {1, 2, 3}), counting(105, n_match));
    const std::vector<int> drafts = copies.propose(known, 31);
    if (n_match < 8) {
      CHECK(drafts.empty());
    } else {
      REQUIRE(drafts.size() == 15);
      CHECK(drafts[0] == 105 + n_match);
    }
  }
}

TEST_CASE("copies: the longest match wins, the latest of equals") {
  const std::vector<int> phrase = counting(10, 8);
  // 5 + phrase -> 50; phrase -> 60 (later); then the end: 5 + phrase.
  auto known = join(join(join({5}, phrase), {50, 51}), join(join({6}, phrase), {60, 61}));
  CopySource longest, latest;
  CHECK(longest.propose(join(join(known, {5}), phrase), 4)[0] == 50);
  CHECK(latest.propose(join(join(known, {4}), phrase), 4)[0] == 60);
}

TEST_CASE("copies: a period repeats, and lengths follow what was kept") {
  std::vector<int> known;
  for (int i = 0; i < 30; ++i) known.push_back(i % 3);
  CopySource copies;
  const std::vector<int> drafts = copies.propose(known, 31);
  REQUIRE(drafts.size() == 15);
  for (int i = 0; i < 15; ++i) CHECK(drafts[static_cast<std::size_t>(i)] == i % 3);
  copies.learn(10);
  CHECK(copies.propose(known, 31).size() == 20);
  copies.learn(31);
  CHECK(copies.propose(known, 31).size() == 31);
  CHECK(copies.propose(known, 5).size() == 5);
  copies.learn(0);
  CHECK(copies.propose(known, 31).size() == 15);
}

CostTable flat_costs(std::int64_t one, std::int64_t each, std::int64_t level) {
  CostTable table;
  for (int r = 1; r <= kCostRowsMax; ++r) {
    table.window_ns[static_cast<std::size_t>(r)] = one + each * (r - 1);
  }
  table.level_ns = level;
  return table;
}

std::vector<Draft> chain(std::initializer_list<float> probabilities) {
  std::vector<Draft> drafts;
  for (const float p : probabilities) drafts.push_back({1, p});
  return drafts;
}

// P_k^2 of drafts that cannot be wrong.
std::vector<float> sure(int n) { return std::vector<float>(static_cast<std::size_t>(n), 1.0f); }

TEST_CASE("depth rule: drafts are made and verified while they are worth their price") {
  // V = 1000 + 100 (r - 1), L = 50: the start rate is 2 / 1150.
  DepthRule rule(flat_costs(1000, 100, 50));
  std::array<float, 31> prices{};
  rule.price_drafts(false, prices);
  CHECK(prices[0] == 0.0f);  // who is asked makes one
  // 85 of 100 next drafts are right, until chains say otherwise.
  CHECK(prices[1] == doctest::Approx(2.0 / 1150 * 150 / 0.85));
  CHECK(prices[30] == doctest::Approx(2.0 / 1150 * 150 / 0.85));
  for (int i = 0; i < 400; ++i) rule.note({}, chain({0.5f, 0.5f}));
  rule.price_drafts(false, prices);
  // 16 drafts before the first, 64 rounds that count: of 16 + 64 * 1.25 drafts whose predecessors
  // were right, 13.6 + 64 * (0.25 + 0.0625) were.
  const double step = (13.6 + 64 * 0.3125) / (16 + 64 * 1.25);
  CHECK(prices[1] == doctest::Approx(2.0 / 1150 * 150 / step).epsilon(0.01));
  CHECK(rule.asks_head(false));
  // Verified while P^2 >= 0.1739: P >= 0.417.
  CHECK(rule.n_verified({}, chain({0.42f})) == 1);
  CHECK(rule.n_verified({}, chain({0.41f})) == 0);
  CHECK(rule.n_verified({}, chain({0.9f, 0.9f, 0.9f, 0.5f, 1.0f})) ==
        3);  // .9^3 = .729, x .5 = .36
  CHECK(rule.n_verified({}, {}) == 0);
  // Rows for nothing: every draft is verified. Rows as dear as passes: none is asked for.
  CHECK(DepthRule(flat_costs(1000, 0, 0)).n_verified({}, chain({0.01f, 0.01f})) == 2);
  CHECK_FALSE(DepthRule(flat_costs(1000, 1000, 1000)).asks_head(false));
}

TEST_CASE("depth rule: a step of the costs does not hide the cheap rows behind it") {
  // Rows by blocks of four: 1000, 1300, 1600, ...
  CostTable steps;
  for (int r = 1; r <= kCostRowsMax; ++r) {
    steps.window_ns[static_cast<std::size_t>(r)] = 1000 + 300 * ((r - 1) / 4);
  }
  DepthRule rule(steps);
  std::array<float, 31> prices{};
  rule.price_drafts(false, prices);
  // The start rate is 2/1000. Draft 4 is the first of a block; the block's four share its price as
  // far as they are likely; the last two of them cost nothing more.
  CHECK(prices[3] == doctest::Approx(0.002 * 300 / (0.85 + 0.7225 + 0.614125 + 0.52200625)));
  CHECK(prices[5] == 0.0f);
  CHECK(prices[6] == 0.0f);
  const std::vector<Draft> likely(7, Draft{1, 0.95f});
  CHECK(rule.n_verified({}, likely) == 7);
  CHECK(rule.n_verified({}, std::span(likely).first(4)) == 4);
  const std::vector<Draft> unsure(7, Draft{1, 0.7f});  // 0.7^8 + ... buys no second block
  CHECK(rule.n_verified({}, unsure) == 3);
}

TEST_CASE("depth rule: a head that does not pay sits out 16, 32, ... 256 rounds and comes back") {
  DepthRule rule(flat_costs(1000, 10, 100));
  const auto drafted_round = [&](int n_kept) { rule.learn_head(false, 3, sure(n_kept), n_kept); };
  CHECK(rule.asks_head(false));
  drafted_round(0);
  for (const int wait : {16, 32, 64, 128, 256, 256}) {
    int waited = 0;
    while (!rule.asks_head(false)) {
      rule.learn(false, 0, 0);
      REQUIRE(++waited <= 256);
    }
    CHECK(waited == wait);
    drafted_round(0);
  }
  for (int i = 0; i < 256; ++i) rule.learn(false, 0, 0);
  CHECK(rule.asks_head(false));
  for (int i = 0; i < 4; ++i) {
    drafted_round(3);
    CHECK(rule.asks_head(false));
  }
}

TEST_CASE("depth rule: bad luck is no reason to sit out, drafts that are never right are") {
  // Three drafts that are right in three cases of four each: 1.7 are kept, for 1.33 passes.
  const std::vector<float> likely = {0.75f, 0.5625f, 0.421875f};
  const auto rounds_until_out = [&](int n_kept) {
    DepthRule rule(flat_costs(1000, 10, 100));
    int n = 0;
    while (rule.asks_head(false) && n < 1000) {
      rule.learn_head(false, 3, likely, n_kept);
      ++n;
    }
    return n;
  };
  CHECK(rounds_until_out(0) > 8);
  CHECK(rounds_until_out(0) < 100);
  CHECK(rounds_until_out(1) == 1000);  // worth it, though it keeps less than it says
}

TEST_CASE("depth rule: drafts that are kept less often than they say are believed less") {
  DepthRule rule(flat_costs(1000, 100, 50)), lucky(flat_costs(1000, 100, 50));
  std::array<double, kWindowRowsMax> honest{}, doubted{};
  rule.price_rows({}, honest);
  CHECK(rule.gain({}, 1, 0.5f) == 0.5f);
  for (int i = 0; i < 400; ++i) {
    // The first two of four are reached, one is right. One long chain that breaks counts no more.
    rule.learn_head(false, 4, std::vector<float>{1.0f, 0.8f, 0.8f, 0.8f}, 1);
    lucky.learn_head(false, 4, std::vector<float>{0.5f, 0.25f}, 2);
  }
  rule.price_rows({}, doubted);
  const double trust = (16 + 64 * 1.0) / (16 + 64 * 1.8);
  CHECK(rule.gain({}, 1, 0.5f) == doctest::Approx(0.5 * trust).epsilon(0.01));
  CHECK(rule.gain({}, 3, 0.5f) == doctest::Approx(0.5 * trust * trust * trust).epsilon(0.02));
  CHECK(doubted[1] / honest[1] ==
        doctest::Approx(rule.rate() / (2.0 / 1150) / trust).epsilon(0.01));
  CHECK(doubted[2] / honest[2] ==
        doctest::Approx(rule.rate() / (2.0 / 1150) * 2 / (trust + trust * trust)).epsilon(0.01));
  CHECK(lucky.gain({}, 1, 0.5f) > 0.5f);
  CHECK(lucky.gain({}, 1, 0.9f) == 1.0f);  // above 1 a draft would count as not to be weighed
}

struct Sources {
  bool head = true;
  BlockSet blocks;
  int fixed = -1;  // drafts of the head a round; else as many as the rule decides
};

// Tokens for a pass's cost of replies of `reply` tokens whose drafts are right at `rate`, and say
// so, whoever makes them.
double tokens_for_cost(const CostTable& costs, double rate, const Sources& sources, int reply) {
  std::uint64_t seed = 1;
  const auto is_right = [&] {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(seed >> 11) * 0x1p-53 < rate;
  };
  const auto probability = static_cast<float>(std::sqrt(rate));
  double all_tokens = 0.0, all_cost = 0.0;
  while (all_tokens < 20000) {
    DepthRule rule(costs);
    for (int tokens = 0; tokens < reply;) {
      BlockSet blocks;
      for (const BlockKind kind : kBlockKinds) {
        blocks[kind] = sources.blocks[kind] && rule.asks(kind);
      }
      const bool head = sources.head && rule.asks_head(false);
      const auto block = rule.best(head, blocks);
      std::size_t n_made = 0;
      if (sources.fixed >= 0) {
        n_made = static_cast<std::size_t>(sources.fixed);
      } else if (block) {
        n_made = static_cast<std::size_t>(rule.n_made(*block, kDraftsMax));
      } else if (head) {
        std::array<float, kWindowRowsMax> prices{};
        rule.price_drafts(false, prices);
        for (float product = 1.0f; n_made < kDraftsMax && product * product >= prices[n_made];
             product *= probability) {
          ++n_made;
        }
      }
      const std::vector<Draft> drafts(n_made, Draft{1, probability});
      rule.note(block, drafts);
      const int n = sources.fixed >= 0 ? sources.fixed : rule.n_verified(block, drafts);
      std::vector<float> likely;
      for (double p = rate; static_cast<int>(likely.size()) < n; p *= rate) {
        likely.push_back(static_cast<float>(p));
      }
      int n_kept = 0;
      while (n_kept < n && is_right()) ++n_kept;
      const int made = static_cast<int>(n_made);
      if (block) {
        rule.learn_block(*block, made, likely, n_kept);
      } else if (made > 0) {
        rule.learn_head(false, made, likely, n_kept);
      } else {
        rule.learn(false, 0, 0);
      }
      tokens += n_kept + 1;
      all_tokens += n_kept + 1;
      all_cost +=
          costs.window(n + 1) + (block ? costs.block(*block, made) : made * costs.level(false));
    }
  }
  return all_tokens / all_cost * costs.window(1);
}

// A model of experts on a GPU: the first rows cost most, each its own experts.
CostTable expert_costs() {
  CostTable costs = flat_costs(2040, 110, 128);
  const int first[] = {1000, 1240, 1420, 1580, 1710, 1830, 1940, 2040};
  for (int r = 1; r <= kCostRowsMax; ++r) {
    costs.window_ns[static_cast<std::size_t>(r)] = r <= 8 ? first[r - 1] : 2040 + 110 * (r - 8);
  }
  for (int k = 1; k <= 7; ++k) {
    costs.block_ns[0].push_back(340 + 46 * k);
    costs.block_ns[1].push_back(500 + 13 * k);
  }
  return costs;
}

TEST_CASE("depth rule: whatever the rate, nearly as good as the best number of drafts") {
  const CostTable costs = expert_costs();
  for (const double rate : {0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97}) {
    double best = 0.0, worst = 10.0;
    for (int k = 0; k <= 12; ++k) {
      Sources sources;
      sources.fixed = k;
      const double gain = tokens_for_cost(costs, rate, sources, 20000);
      best = std::max(best, gain);
      worst = std::min(worst, gain);
    }
    const double gain = tokens_for_cost(costs, rate, {}, 20000);
    INFO("rate ", rate, ", rule ", gain, ", fixed numbers ", worst, " to ", best);
    CHECK(gain > 0.96 * best);
    CHECK(worst < 0.9 * best);  // it matters
  }
}

TEST_CASE("depth rule: all sources together are nearly as good as the best of them") {
  const CostTable costs = expert_costs();
  for (const double rate : {0.2, 0.5, 0.7, 0.8, 0.9}) {
    Sources all, dspark, dflash;
    dspark.head = dflash.head = false;
    for (const BlockKind kind : kBlockKinds) all.blocks[kind] = true;
    dspark.blocks[BlockKind::dspark] = dflash.blocks[BlockKind::dflash] = true;
    double best = 0.0, worst = 10.0;
    for (const Sources& one : {Sources{}, dspark, dflash}) {
      const double gain = tokens_for_cost(costs, rate, one, 512);
      best = std::max(best, gain);
      worst = std::min(worst, gain);
    }
    const double gain = tokens_for_cost(costs, rate, all, 512);
    INFO("rate ", rate, ", all ", gain, ", alone ", worst, " to ", best);
    CHECK(gain > 0.96 * best);
  }
}

CostTable with_drafters(CostTable table, std::int64_t dspark, std::int64_t dflash) {
  table.block_ns[0].assign(7, dspark);
  table.block_ns[1].assign(7, dflash);
  return table;
}

TEST_CASE("depth rule: of several sources the one with the most tokens for its cost is asked") {
  DepthRule rule(with_drafters(flat_costs(1000, 10, 300), 100, 150));
  BlockSet both;
  both[BlockKind::dspark] = both[BlockKind::dflash] = true;
  CHECK(rule.best(true, {}) == std::nullopt);  // the head
  // One round as the rule wants it; drafts say what is kept of them.
  const auto round = [&](int kept_by_dspark, int kept_by_dflash, int kept_by_head) {
    BlockSet asked;
    for (const BlockKind kind : kBlockKinds) asked[kind] = rule.asks(kind);
    const bool head = rule.asks_head(false);
    if (!head && !asked[BlockKind::dspark] && !asked[BlockKind::dflash]) {
      rule.learn(false, 0, 0);
      return -1;
    }
    const auto best = rule.best(head, asked);
    if (!best) {
      rule.learn_head(false, 3, sure(kept_by_head), kept_by_head);
      return 2;
    }
    const int kept = *best == BlockKind::dflash ? kept_by_dflash : kept_by_dspark;
    rule.learn_block(*best, 7, sure(kept), kept);
    return static_cast<int>(*best);
  };
  // Who would do best with likely drafts is tried first, the next one where it would do better with
  // such as those were; the head would not.
  CHECK(round(3, 1, 3) == static_cast<int>(BlockKind::dspark));
  CHECK(round(3, 1, 3) == static_cast<int>(BlockKind::dflash));
  int n_dspark = 0;
  for (int i = 0; i < 100; ++i) {
    const int source = round(3, 1, 3);
    CHECK(source != 2);
    n_dspark += source == static_cast<int>(BlockKind::dspark);
  }
  CHECK(n_dspark > 95);  // DFlash is tried now and then
  // It keeps nothing any more: the others come in, and DFlash, which keeps most, stays.
  int n_dflash = 0, n_head = 0;
  for (int i = 0; i < 300; ++i) {
    const int source = round(0, 5, 1);
    if (i < 100) continue;
    n_dflash += source == static_cast<int>(BlockKind::dflash);
    n_head += source == 2;
  }
  CHECK(n_dflash > 180);
  CHECK(n_head < 10);
}

TEST_CASE("depth rule: a drafter makes as many drafts as its own probabilities are worth") {
  CostTable costs = flat_costs(1000, 50, 0);
  for (int k = 0; k < 7; ++k) costs.block_ns[0].push_back(200 + 20 * k);
  DepthRule rule(costs);
  CHECK(rule.asks(BlockKind::dspark));
  CHECK_FALSE(rule.asks(BlockKind::dflash));  // no cost: there is none
  const auto after = [&](float probability) {
    const std::vector<Draft> chain(7, Draft{1, probability});
    for (int i = 0; i < 40; ++i) rule.note(BlockKind::dspark, chain);
    return rule.n_made(BlockKind::dspark, 7);
  };
  CHECK(after(0.99f) == 7);
  const int some = after(0.7f);
  CHECK(some > 1);
  CHECK(some < 7);
  CHECK(after(0.2f) == 1);
  CHECK(rule.n_made(BlockKind::dspark, 1) == 1);
  CHECK(after(1.0f) == 7);  // and comes back
  // Dearer than what right drafts would bring.
  CHECK_FALSE(DepthRule(with_drafters(flat_costs(1000, 1000, 0), 3000, 1)).asks(BlockKind::dspark));
}

TEST_CASE("cost table: prices of separate drafters are kept, and asked for where they lack") {
  const CostTable table = with_drafters(flat_costs(1000, 10, 300), 100, 150);
  CHECK(CostTable::parse("t", table.json()).json() == table.json());
  CHECK(table.json().find("\"dspark_ns\":[100,100") != std::string::npos);
  CHECK(flat_costs(1000, 10, 300).json().find("dspark") == std::string::npos);
  std::string falling = table.json();
  falling.replace(falling.find("[100,100"), 8, "[100,90");
  CHECK_THROWS_AS(CostTable::parse("t", falling), Error);
}

TEST_CASE("depth rule: copies that fail sit out, too, without touching the head") {
  DepthRule rule(flat_costs(1000, 100, 50));
  int n = 0;
  while (rule.copies()) {
    rule.learn(true, 15, 0);
    REQUIRE(++n < 100);
  }
  CHECK(n > 1);
  CHECK(rule.asks_head(false));
}

TEST_CASE("cost table: measured, never falling, read back equal, refused when it is not one") {
  testing::FakeModel model;
  const CostTable table = measure_costs(model);
  CHECK(table.window_ns[1] == 1020);
  CHECK(table.window_ns[5] == 1100);
  CHECK(table.window_ns[64] == 1000 + 20 * 64);
  CHECK(table.level_ns == 100);
  for (int r = 2; r <= kCostRowsMax; ++r) {
    CHECK(table.window_ns[static_cast<std::size_t>(r)] >=
          table.window_ns[static_cast<std::size_t>(r - 1)]);
  }
  CHECK(CostTable::parse("t", table.json()).json() == table.json());
  CHECK(table.digest().size() == 64);
  CHECK_THROWS_AS(CostTable::parse("t", "{}"), Error);
  std::string falling = table.json();
  falling.replace(falling.find("1040"), 4, "1000");
  CHECK_THROWS_AS(CostTable::parse("t", falling), Error);
}

TEST_CASE("cost table: a file is made once, then read") {
  const std::string path = std::filesystem::temp_directory_path() / "bolt-costs-test.json";
  std::filesystem::remove(path);
  testing::FakeModel model;
  const CostTable made = load_costs(model, path, "");
  CHECK(std::filesystem::exists(path));
  CHECK(load_costs(model, path, "").digest() == made.digest());
  std::filesystem::remove(path);
}

TEST_CASE("slots: pages come as positions do and go back when the sequence ends") {
  Slots slots(2, 8);
  const int a = slots.open(), b = slots.open();
  CHECK_THROWS_AS(slots.open(), Error);
  const std::vector<int> ids = counting(0, 128);
  Segment s = slots.begin(a, ids, true, 0, 128);
  CHECK(s.n_sure == 128);
  CHECK(s.pages.size() == 1);
  CHECK_THROWS_AS(slots.begin(a, ids, true, 0, 128), Error);  // not committed yet
  CHECK_THROWS_AS(slots.commit(a, 127), Error);               // sure rows are all kept
  slots.commit(a, 128);
  s = slots.begin(a, std::span(ids).first(8), false, 5, 8);
  CHECK(s.first_row == 5);
  CHECK(s.first_position == 128);
  CHECK(s.n_sure == 1);
  CHECK(s.n_lag == 0);
  CHECK(s.pages.size() == 2);
  slots.commit(a, 6);
  CHECK(slots.n_lag(a) == 5);
  CHECK(slots.n_committed(a) == 134);
  s = slots.begin(a, std::span(ids).first(1), false, 0, 1);
  CHECK(s.n_lag == 5);
  slots.commit(a, 1);
  CHECK(slots.n_lag(a) == 0);
  slots.grow(b, 6 * 128);
  CHECK_THROWS_AS(slots.grow(b, 7 * 128), Error);  // the pool is empty
  slots.close(a);
  CHECK(slots.pool().n_free() == 2);
}

}  // namespace
}  // namespace bolt
