// The engine on the sample model: the goldens of a float64 reference, the head's chain, and what no
// choice of processor, thread count, chunk or window may change. Rows of public fault reports are
// named as "case N".
#include "core/engine/testing/sample.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>

#include "core/base/error.h"
#include "core/engine/cost_table.h"
#include "core/engine/ops_model.h"
#include "core/ops/host.h"

namespace bolt {
namespace {

using testing::Answer;
using testing::answer;
using testing::Golden;
using testing::sample_package;

const bool kFull = std::getenv("BOLT_FULL_TESTS") != nullptr;

EngineOptions options_of(KvKind kv = KvKind::i16, int n_threads = 1, Isa isa = Isa::automatic) {
  EngineOptions options;
  options.n_threads = n_threads;
  options.isa = isa;
  options.kv = kv;
  options.context = 2048;
  if (kv == KvKind::i16 && isa == Isa::automatic) options.device = testing::test_device();
  return options;
}

Request request_of(const std::vector<int>& prompt, std::int64_t max_new,
                   DraftOptions draft = {DraftOptions::Source::off, -1}) {
  Request request;
  request.prompt_ids = prompt;
  request.max_new = max_new;
  request.draft = draft;
  return request;
}

float largest_difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  float worst = 0.0f;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]));
  return worst;
}

TEST_CASE("sample: logits and greedy replies are the reference's") {
  const std::vector<Golden> goldens = testing::read_goldens();
  REQUIRE(goldens.size() == 24);
  for (const KvKind kv : {KvKind::f32, KvKind::i16}) {
    const auto engine = Engine::open(sample_package(), options_of(kv, 2));
    const auto sequence = engine->new_sequence();
    float worst = 0.0f;
    for (const Golden& golden : goldens) {
      std::vector<std::vector<float>> logits;
      const auto sink = [&](int, std::span<const float> row) {
        logits.emplace_back(row.begin(), row.end());
        return true;
      };
      // The prompt less its last id first: the second request goes on from its state.
      Request request = request_of(golden.prompt, 1);
      request.want_logits = true;
      request.prompt_ids.pop_back();
      engine->generate(*sequence, request, sink);
      request.prompt_ids = golden.prompt;
      request.max_new = static_cast<std::int64_t>(golden.greedy.size());
      request.stop_ids = sample_package().config().stop_ids;
      const Reply reply = engine->generate(*sequence, request, sink);
      CHECK(reply.n_reused == static_cast<std::int64_t>(golden.prompt.size()) - 1);
      CHECK(reply.ids == golden.greedy);
      worst = std::max({worst, largest_difference(logits[0], golden.before_last),
                        largest_difference(logits[1], golden.last)});
      sequence->reset();
    }
    MESSAGE("largest logit difference, kv " << (kv == KvKind::f32 ? "f32: " : "i16: ") << worst);
    CHECK(worst < (kv == KvKind::f32 ? 1e-3f : 2e-2f));
  }
}

TEST_CASE("sample: the head's chain is the reference's, in order") {
  const Package& package = sample_package();
  for (const KvKind kv : {KvKind::f32, KvKind::i16}) {
    HostOps ops(1, resolve_isa(Isa::automatic));
    ModelSizes sizes;
    sizes.kv = kv;
    sizes.context = 1024;
    sizes.n_vocab = package.config().n_tokens;
    OpsModel model(ops, package.graph(), sizes);
    const int slot = model.open_slot();
    int n_same = 0;
    for (const Golden& golden : testing::read_goldens()) {
      Window window;
      window.slot = slot;
      window.ids = golden.prompt;
      window.sure = true;
      window.n_sampled = 1;
      window.feed_head = true;
      std::vector<WindowResult> results;
      model.run({&window, 1}, results);
      model.commit(slot, static_cast<int>(golden.prompt.size()));
      DraftAsk ask;
      ask.slot = slot;
      ask.next_id = results[0].sampled[0].id;
      ask.max_levels = 7;
      std::vector<std::vector<Draft>> chains;
      model.draft({&ask, 1}, chains);
      std::vector<int> drafts = {ask.next_id};
      for (const Draft& draft : chains[0]) drafts.push_back(draft.id);
      CHECK(drafts == golden.drafts);
      n_same += drafts == golden.drafts;
      model.reset_slot(slot);
    }
    CHECK(n_same == 24);
  }
}

// Lengths around the tiles of 128 keys (case 1).
std::vector<std::vector<int>> tile_prompts() {
  std::vector<std::vector<int>> prompts;
  const std::vector<int> text = testing::text_ids(sample_package(), 2000);
  for (const int first : {117, 245}) {
    for (int n = first; n < first + 14; ++n) {
      if (!kFull && n % 128 != 0 && n % 128 != 1 && n % 128 != 127 && n != first) continue;
      const auto start = text.begin() + n;  // each its own text
      prompts.emplace_back(start, start + n);
    }
  }
  return prompts;
}

TEST_CASE("sample: processor, threads, chunks and windows change no bit (cases 1, 20)") {
  const Package& package = sample_package();
  const std::vector<std::vector<int>> prompts = tile_prompts();
  constexpr int kNew = 16;
  std::vector<Answer> expected;
  {
    EngineOptions options = options_of(KvKind::i16, 1, Isa::scalar);
    const auto engine = Engine::open(package, options);
    const auto sequence = engine->new_sequence();
    for (const auto& prompt : prompts) {
      expected.push_back(answer(*engine, *sequence, request_of(prompt, kNew)));
    }
  }
  const auto check = [&](const EngineOptions& options, int n_drafts) {
    const auto engine = Engine::open(package, options);
    const auto sequence = engine->new_sequence();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      Request request = request_of(prompts[i], kNew);
      if (n_drafts > 0) {  // windows as wide as asked for, some drafts wrong
        request.draft = {DraftOptions::Source::automatic, n_drafts};
        request.script = std::make_shared<Script>(Script{expected[i].ids, 0.8, i});
      }
      CHECK_MESSAGE(answer(*engine, *sequence, request) == expected[i], "prompt of ",
                    prompts[i].size(), ", chunk ", options.chunk_rows, ", window ",
                    options.window_rows, ", threads ", options.n_threads, ", isa ",
                    engine->backend().arch);
    }
  };
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (cpu_has(isa)) check(options_of(KvKind::i16, 1, isa), 0);
  }
  for (const int n_threads : {2, 3}) check(options_of(KvKind::i16, n_threads), 0);
  for (const int chunk : {1, 5, 127, 128, 129, 512, 100000}) {
    EngineOptions options = options_of();
    options.chunk_rows = chunk;
    check(options, 0);
  }
  for (const int window : {1, 2, 3, 7, 8, 16, 31, 32}) {
    EngineOptions options = options_of(KvKind::i16, window % 3 + 1);
    options.window_rows = window;
    check(options, 31);
  }
}

TEST_CASE("sample: windows that straddle the tiles of 128, 256 and 512 keys, at every offset") {
  const Package& package = sample_package();
  const std::vector<int> text = testing::text_ids(package, 600);
  const auto engine = Engine::open(package, options_of());
  const auto sequence = engine->new_sequence();
  int n_equal = 0, n_all = 0;
  for (const int edge : {128, 256, 512}) {
    for (int before = 0; before < 32; before += kFull ? 1 : 31 / 3) {
      // The window's first row stands `before` positions before the edge.
      const std::vector<int> prompt(text.begin(), text.begin() + edge - before);
      Request request = request_of(prompt, 34);
      const Answer plain = answer(*engine, *sequence, request);
      const std::string state = sequence->state_digest();
      for (const double rate : {1.0, 0.9}) {
        request.draft = {DraftOptions::Source::automatic, 31};
        request.script = std::make_shared<Script>(Script{plain.ids, rate, 3});
        Reply reply;
        const Answer drafted = answer(*engine, *sequence, request, &reply);
        const bool same = drafted == plain && sequence->state_digest() == state;
        CHECK_MESSAGE(same, "edge ", edge, ", ", before, " before it, rate ", rate);
        if (rate == 1.0) CHECK(reply.counters.target == 2);  // 1 + 32 + 1 tokens
        n_equal += same;
        ++n_all;
      }
    }
  }
  CHECK(n_equal == n_all);
}

TEST_CASE("sample: committed state is equal after every round, drafted or not") {
  const Package& package = sample_package();
  const auto engine = Engine::open(package, options_of());
  const auto sequence = engine->new_sequence();
  const std::vector<std::vector<int>> prompts = testing::read_real30(package);
  int n_boundaries = 0;
  const auto digests_of = [&](const Request& request) {
    sequence->reset();
    std::map<std::size_t, std::string> digests;
    const auto generation = engine->start(*sequence, request, nullptr);
    Generation* const only = generation.get();
    while (!only->is_finished()) {
      engine->round({&only, 1});
      digests[sequence->ids().size()] = sequence->state_digest();
    }
    return digests;
  };
  for (const std::size_t i : {0, 3, 5, 8}) {  // short ones
    const auto plain = digests_of(request_of(prompts[i], 96));
    for (const DraftOptions draft :
         {DraftOptions{DraftOptions::Source::mtp, 1}, DraftOptions{DraftOptions::Source::mtp, 2},
          DraftOptions{DraftOptions::Source::mtp, 3},
          DraftOptions{DraftOptions::Source::automatic, 7},
          DraftOptions{DraftOptions::Source::mtp, 31}}) {
      for (const auto& [n, digest] : digests_of(request_of(prompts[i], 96, draft))) {
        REQUIRE(plain.count(n) == 1);
        CHECK(plain.at(n) == digest);
        ++n_boundaries;
      }
    }
  }
  MESSAGE(n_boundaries << " boundaries");
  CHECK(n_boundaries >= 388);
}

TEST_CASE("sample: a later turn equals a fresh run of the whole conversation (cases 21, 41)") {
  const Package& package = sample_package();
  const std::vector<int> text = testing::text_ids(package, 400);
  const auto engine = Engine::open(package, options_of());
  const auto chat = engine->new_sequence();
  for (const DraftOptions draft : {DraftOptions{DraftOptions::Source::off, -1},
                                   DraftOptions{DraftOptions::Source::automatic, 7}}) {
    chat->reset();
    std::vector<int> conversation(text.begin(), text.begin() + 90);
    for (int turn = 0; turn < 4; ++turn) {
      Request request = request_of(conversation, 25, draft);
      const std::size_t n_held = chat->ids().size();
      const Reply reply = engine->generate(*chat, request, nullptr);
      CHECK(reply.n_reused == static_cast<std::int64_t>(n_held));
      const std::string state = chat->state_digest();
      const std::vector<int> held = chat->ids();
      {
        EngineOptions options = options_of();
        const auto other = Engine::open(package, options);
        const auto fresh = other->new_sequence();
        request.draft.source = DraftOptions::Source::off;
        CHECK(answer(*other, *fresh, request).ids == reply.ids);
        CHECK(fresh->ids() == held);
        CHECK(fresh->state_digest() == state);
      }
      conversation.insert(conversation.end(), reply.ids.begin(), reply.ids.end());
      conversation.insert(conversation.end(), text.begin() + 90 + 50 * turn,
                          text.begin() + 140 + 50 * turn);
    }
    // A prompt that is not a continuation starts over.
    Request other = request_of({text.begin() + 5, text.begin() + 60}, 5, draft);
    CHECK(engine->generate(*chat, other, nullptr).n_reused == 0);
  }
}

TEST_CASE("sample: a reply among others is the reply alone (case 19)") {
  const Package& package = sample_package();
  const std::vector<int> text = testing::text_ids(package, 3000);
  const auto request = [&](int i) {
    const auto start = text.begin() + 100 * i;
    Request r = request_of({start, start + 40 + 31 * i}, 24);
    if (i % 2) r.draft = {DraftOptions::Source::automatic, i % 3 ? 5 : 3};
    return r;
  };
  std::vector<Answer> alone;
  {
    const auto engine = Engine::open(package, options_of());
    const auto sequence = engine->new_sequence();
    for (int i = 0; i < 16; ++i) {
      Request r = request(i);
      r.draft.source = DraftOptions::Source::off;
      alone.push_back(answer(*engine, *sequence, r));
    }
  }
  for (const int n_others : {1, 3, 7, 8, 15}) {
    EngineOptions options = options_of();
    options.n_slots = n_others + 1;
    options.chunk_rows = 100;
    const auto engine = Engine::open(package, options);
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<std::unique_ptr<Generation>> generations;
    std::vector<Generation*> all;
    const auto is_running = [](const Generation* g) { return !g->is_finished(); };
    for (int round = 0; all.size() <= static_cast<std::size_t>(n_others) ||
                        std::any_of(all.begin(), all.end(), is_running);
         ++round) {
      if (round % 2 == 0 && all.size() <= static_cast<std::size_t>(n_others)) {
        sequences.push_back(engine->new_sequence());
        generations.push_back(
            engine->start(*sequences.back(), request(static_cast<int>(all.size())), nullptr));
        all.push_back(generations.back().get());
      }
      engine->round(all);
    }
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i]->reply().ids == alone[i].ids);
  }
}

// Counted on a Zen 1 with AVX2.
const char* const kGivenCounters =
    "14 67 14 0 1 15 2 58 12 10 6 4 4 3 3 3 1 1 1 1 0 0 0 "
    "19 63 19 0 1 15 0 57 14 11 7 5 4 2 1 0 0 0 0 0 0 0 0 "
    "9 66 9 0 0 0 0 66 9 9 8 6 6 6 5 2 1 1 1 0 ";

TEST_CASE("sample: scripted drafts of a reply that a stop id ends change nothing") {
  const Package& package = sample_package();
  const auto engine = Engine::open(package, options_of());
  const auto sequence = engine->new_sequence();
  const auto prompts = testing::read_real30(package);
  for (const std::size_t i : {0, 1, 2, 3}) {  // the stop falls elsewhere in the last chain
    Request request = request_of(prompts[i], 400, {DraftOptions::Source::off, -1});
    request.stop_ids = package.config().stop_ids;
    const Answer plain = answer(*engine, *sequence, request);
    REQUIRE(plain.finish == Finish::eos);
    for (const double rate : {1.0, 0.6}) {
      request.script = std::make_shared<Script>(Script{plain.ids, rate, 5});
      for (const int drafts : {-1, 6, 7}) {
        request.draft = {DraftOptions::Source::automatic, drafts};
        CHECK(answer(*engine, *sequence, request) == plain);
      }
    }
  }
}

// A cost table in which each row after the first costs row_ns, the first a million.
std::string cost_file(const std::string& name, std::int64_t row_ns, std::int64_t level_ns) {
  CostTable table;
  for (int r = 1; r <= kCostRowsMax; ++r) {
    table.window_ns[static_cast<std::size_t>(r)] = 1'000'000 + row_ns * (r - 1);
  }
  table.level_ns = level_ns;
  const std::string path = testing::scratch_folder() + "/" + name;
  std::ofstream(path) << table.json() << '\n';
  return path;
}

TEST_CASE("sample: scripted drafts are made where their rate pays") {
  // A draft costs 0.45 of an ordinary round: 0.7 tokens for it are worth it, 0.3 are not.
  EngineOptions options = options_of();
  options.cost_table = cost_file("scripted-costs.json", 370'000, 80'000);
  const auto engine = Engine::open(sample_package(), options);
  const auto sequence = engine->new_sequence();
  const auto prompts = testing::read_real30(sample_package());
  const auto tokens_a_pass = [&](double rate) {
    Request request = request_of(prompts[0], 200, {DraftOptions::Source::off, -1});
    const Answer plain = answer(*engine, *sequence, request);
    request.script = std::make_shared<Script>(Script{plain.ids, rate, 5});
    request.draft = {DraftOptions::Source::mtp, -1};
    Reply reply;
    CHECK(answer(*engine, *sequence, request, &reply) == plain);
    return static_cast<double>(plain.ids.size()) / static_cast<double>(reply.counters.target);
  };
  const double often = tokens_a_pass(0.7), seldom = tokens_a_pass(0.3);
  CHECK(often > 1.5);
  CHECK(seldom < 1.2);
}

TEST_CASE("sample: counters repeat exactly, given a cost table") {
  const Package& package = sample_package();
  EngineOptions options = options_of();
  options.cost_table = testing::scratch_folder() + "/costs.json";
  const std::vector<std::vector<int>> prompts = testing::read_real30(package);
  const auto counters = [&] {
    const auto engine = Engine::open(package, options);
    const auto sequence = engine->new_sequence();
    std::vector<std::int64_t> all;
    for (const int i : {1, 2, 12}) {
      Reply reply;
      answer(*engine, *sequence,
             request_of(prompts[static_cast<std::size_t>(i)], 64,
                        {DraftOptions::Source::automatic, -1}),
             &reply);
      const Counters& c = reply.counters;
      for (const std::int64_t n : {c.target, c.drafted, c.bonus, c.cut, c.copy_rounds,
                                   c.copy_drafted, c.copy_accepted, c.head_levels}) {
        all.push_back(n);
      }
      all.insert(all.end(), c.accepted_at.begin(), c.accepted_at.end());
    }
    CHECK(engine->cost_digest().size() == 64);
    return all;
  };
  const auto first = counters();
  CHECK(first == counters());

  // With a table that is given, they are the same on every machine: whatever their processors.
  options.cost_table = cost_file("given-costs.json", 90'000, 120'000);
  const std::vector<std::int64_t> given = counters();
  std::string text;
  for (const std::int64_t n : given) text += std::to_string(n) + ' ';
  CHECK(text == kGivenCounters);
}

TEST_CASE("sample: requests that cannot be are refused with what would be right") {
  EngineOptions options = options_of();
  options.context = 64;
  const auto engine = Engine::open(sample_package(), options);
  const auto sequence = engine->new_sequence();
  CHECK_THROWS_AS(engine->generate(*sequence, request_of({}, 4), nullptr), Error);
  CHECK_THROWS_AS(engine->generate(*sequence, request_of({3200}, 4), nullptr), Error);
  CHECK_THROWS_AS(engine->generate(*sequence, request_of({-1}, 4), nullptr), Error);
  CHECK_THROWS_AS(engine->generate(*sequence, request_of(std::vector<int>(64, 5), 4), nullptr),
                  Error);
  CHECK(engine->generate(*sequence, request_of(std::vector<int>(63, 5), -1), nullptr).ids.size() ==
        1);
  options.context = 1 << 20;
  CHECK_THROWS_AS(Engine::open(sample_package(), options), Error);
}

}  // namespace
}  // namespace bolt
