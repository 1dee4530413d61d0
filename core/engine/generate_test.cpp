// Rounds on a fake model: drafted replies equal ordinary ones whatever drafters say, and the
// planted mistakes are caught. Rows of public fault reports are named as "case N".
#include "core/engine/generate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/base/error.h"
#include "core/engine/testing/fake_model.h"

namespace bolt {
namespace {

using testing::FakeModel;
using testing::Fault;

constexpr int kStop = 7;

// Drafts by a function of (ids so far, most drafts).
class ScriptedDrafts final : public Drafter {
 public:
  using Propose = std::function<std::vector<int>(std::span<const int>, int)>;
  explicit ScriptedDrafts(Propose propose) : propose_(std::move(propose)) {}
  bool uses_head() const override { return false; }
  void plan(std::span<const int> known, int max_drafts, DraftPlan& plan) override {
    plan.ids = propose_(known, max_drafts);
    plan.ids.resize(std::min<std::size_t>(plan.ids.size(), static_cast<std::size_t>(max_drafts)));
    plan.gains.assign(plan.ids.size(), 1.0f);
  }
  void choose(std::span<const Draft>, DraftPlan&) override {}
  void learn(const DraftPlan&, int, int) override {}

 private:
  Propose propose_;
};

struct Outcome {
  Reply reply;
  std::vector<std::string> digests;  // [number of committed ids]; empty where no round ended
  std::vector<std::vector<float>> logits;
};

struct Setup {
  std::int64_t max_new = 40, context = 1024;
  std::vector<int> stop_ids;
  int max_drafts = kDraftsMax;
  std::function<bool(int)> sink;
  const std::atomic<bool>* interrupt = nullptr;
};

std::vector<int> prompt_of(int n, int seed = 0) {
  std::vector<int> ids;
  for (int i = 0; i < n; ++i) ids.push_back((i * i + 3 * i + seed) % FakeModel::kVocab);
  return ids;
}

Request request_of(const std::vector<int>& prompt, const Setup& setup) {
  Request request;
  request.prompt_ids = prompt;
  request.max_new = setup.max_new;
  request.stop_ids = setup.stop_ids;
  request.want_logits = true;
  return request;
}

Outcome answer(FakeModel& model, const std::vector<int>& prompt, std::unique_ptr<Drafter> drafter,
               const Setup& setup = {}) {
  Outcome out;
  const int slot = model.open_slot();
  const auto sink = [&](int id, std::span<const float> logits) {
    out.logits.emplace_back(logits.begin(), logits.end());
    return !setup.sink || setup.sink(id);
  };
  Stream stream(model, slot, request_of(prompt, setup), sink, std::move(drafter), setup.context,
                setup.max_drafts, setup.interrupt);
  Stream* const only = &stream;
  while (!stream.is_finished()) {
    Rounds(model).run({&only, 1});
    if (model.is_broken(slot)) continue;
    const std::size_t n = model.ids(slot).size();
    if (out.digests.size() <= n) out.digests.resize(n + 1);
    out.digests[n] = model.state_digest(slot);
  }
  out.reply = stream.reply();
  model.close_slot(slot);
  return out;
}

Outcome ordinary(const std::vector<int>& prompt, const Setup& setup = {}) {
  FakeModel model;
  return answer(model, prompt, nullptr, setup);
}

std::unique_ptr<Drafter> scripted(ScriptedDrafts::Propose propose) {
  return std::make_unique<ScriptedDrafts>(std::move(propose));
}

std::unique_ptr<Drafter> standard(const Model& model, DraftOptions options,
                                  const std::vector<int>& stop_ids = {}) {
  Request request;
  request.draft = options;
  request.stop_ids = stop_ids;
  static CostTable table;
  return make_drafter(request, model, [&]() -> const CostTable& {
    FakeModel timed;
    table = measure_costs(timed);
    return table;
  });
}

// Whether the drafted outcome is the ordinary one, states at every common boundary included.
bool equal(const Outcome& a, const Outcome& b, int* n_boundaries = nullptr) {
  bool same = a.reply.ids == b.reply.ids && a.reply.finish == b.reply.finish &&
              a.reply.stop_id == b.reply.stop_id && a.logits == b.logits;
  for (std::size_t n = 0; n < std::min(a.digests.size(), b.digests.size()); ++n) {
    if (a.digests[n].empty() || b.digests[n].empty()) continue;
    same = same && a.digests[n] == b.digests[n];
    if (n_boundaries) ++*n_boundaries;
  }
  return same;
}

void check_invariants(const Reply& reply) {
  const Counters& c = reply.counters;
  const auto n = static_cast<std::int64_t>(reply.ids.size());
  const std::int64_t accepted =
      std::accumulate(c.accepted_at.begin(), c.accepted_at.end(), std::int64_t{0});
  if (n > 0) CHECK(n == 1 + accepted + c.bonus - c.cut);
  CHECK(c.target == c.rounds);
  CHECK(accepted <= c.drafted);
  CHECK(std::is_sorted(c.accepted_at.rbegin(), c.accepted_at.rend()));
  if (!c.accepted_at.empty()) CHECK(c.accepted_at[0] <= c.rounds);
  // A pass that broke off in a numeric error gave no token.
  const bool broken_off = reply.finish == Finish::error && n > 0;
  if (c.drafted == 0) CHECK(c.target == std::max<std::int64_t>(n - 1, 0) + broken_off);
}

// The reply's continuation, known beforehand, with position `wrong` of every window spoilt.
ScriptedDrafts::Propose known_reply(std::vector<int> whole, int n_drafts, int wrong) {
  return [whole = std::move(whole), n_drafts, wrong](std::span<const int> known, int) {
    std::vector<int> drafts;
    for (int i = 0; i < n_drafts && known.size() + static_cast<std::size_t>(i) < whole.size();
         ++i) {
      const int id = whole[known.size() + static_cast<std::size_t>(i)];
      drafts.push_back(i == wrong ? (id + 1) % FakeModel::kVocab : id);
    }
    return drafts;
  };
}

std::vector<int> whole_of(const std::vector<int>& prompt, const Outcome& out) {
  std::vector<int> whole = prompt;
  whole.insert(whole.end(), out.reply.ids.begin(), out.reply.ids.end());
  return whole;
}

TEST_CASE("rounds: a draft wrong at any position changes nothing (case 6)") {
  const std::vector<int> prompt = prompt_of(20);
  const Outcome plain = ordinary(prompt);
  CHECK(plain.reply.ids.size() == 40);
  CHECK(plain.reply.counters.target == 39);
  int n_boundaries = 0;
  for (const int k : {1, 2, 3, 7, 15, 31}) {
    for (int wrong = 0; wrong <= k; ++wrong) {
      FakeModel model;
      const Outcome drafted =
          answer(model, prompt, scripted(known_reply(whole_of(prompt, plain), k, wrong)));
      CHECK(equal(plain, drafted, &n_boundaries));
      check_invariants(drafted.reply);
      if (wrong > 0) CHECK(drafted.reply.counters.accepted_at[0] > 0);
    }
  }
  CHECK(n_boundaries >= 388);
}

TEST_CASE("rounds: nothing is proposed after a long acceptance (case 5)") {
  const std::vector<int> prompt = prompt_of(33);
  const Outcome plain = ordinary(prompt);
  const std::vector<int> whole = whole_of(prompt, plain);
  for (const int n_accepted : {1, 2, 3, 9, 31}) {
    int round = 0;
    FakeModel model;
    const Outcome drafted = answer(
        model, prompt, scripted([&](std::span<const int> known, int most) {
          return round++ % 2 ? std::vector<int>{} : known_reply(whole, n_accepted, -1)(known, most);
        }));
    CHECK(equal(plain, drafted));
    check_invariants(drafted.reply);
  }
}

TEST_CASE("rounds: the head's drafts, copies and the depth rule change nothing") {
  int n_boundaries = 0;
  for (const int n_prompt : {1, 5, 127, 128, 129, 250, 513}) {
    const std::vector<int> prompt = prompt_of(n_prompt);
    Setup setup;
    setup.max_new = 120;
    const Outcome plain = ordinary(prompt, setup);
    for (const auto source :
         {DraftOptions::Source::mtp, DraftOptions::Source::copy, DraftOptions::Source::automatic}) {
      for (const int drafts : {-1, 1, 2, 3, 7, 15, 31}) {
        FakeModel model(1, Fault::none, n_prompt % 2 ? 64 : 512);
        const Outcome drafted = answer(model, prompt, standard(model, {source, drafts}), setup);
        CHECK(equal(plain, drafted, &n_boundaries));
        CHECK(model.n_stale == 0);
        check_invariants(drafted.reply);
        if (source == DraftOptions::Source::mtp) CHECK(drafted.reply.counters.drafted > 0);
      }
    }
  }
  CHECK(n_boundaries >= 388);
}

TEST_CASE("rounds: planted mistakes are caught") {
  const std::vector<int> prompt = prompt_of(50);
  Setup setup;
  setup.max_new = 120;
  const Outcome plain = ordinary(prompt, setup);
  const DraftOptions k7{DraftOptions::Source::mtp, 7};
  const auto caught = [&](Fault fault) {
    FakeModel model(1, fault);
    const Outcome drafted = answer(model, prompt, standard(model, k7), setup);
    return !equal(plain, drafted) || model.n_stale > 0;
  };
  CHECK_FALSE(caught(Fault::none));
  CHECK(caught(Fault::replay_off_by_one));
  CHECK(caught(Fault::keys_not_trimmed));
  CHECK(caught(Fault::absorbs_draft));
  CHECK(caught(Fault::ties_to_highest));
}

TEST_CASE("rounds: a drafted stop id that the target rejects ends nothing (case 15)") {
  const std::vector<int> prompt = prompt_of(9);
  Setup setup;
  setup.stop_ids = {kStop};
  setup.max_new = 300;
  const Outcome plain = ordinary(prompt, setup);
  REQUIRE(plain.reply.finish == Finish::eos);
  CHECK(plain.reply.ids.back() == kStop);
  CHECK(std::count(plain.reply.ids.begin(), plain.reply.ids.end(), kStop) == 1);
  const std::vector<int> whole = whole_of(prompt, plain);
  for (int at = 0; at < 5; ++at) {
    FakeModel model;
    const auto propose = [&](std::span<const int> known, int most) {
      std::vector<int> drafts = known_reply(whole, 5, -1)(known, most);
      if (at < static_cast<int>(drafts.size())) drafts[static_cast<std::size_t>(at)] = kStop;
      return drafts;
    };
    const Outcome drafted = answer(model, prompt, scripted(propose), setup);
    CHECK(equal(plain, drafted));
    check_invariants(drafted.reply);
  }
}

TEST_CASE("rounds: what follows a stop in a window is cut, and its rows are not kept") {
  const std::vector<int> prompt = prompt_of(9);
  Setup endless;
  endless.max_new = 300;
  const Outcome beyond = ordinary(prompt, endless);
  Setup setup = endless;
  setup.stop_ids = {kStop};
  const Outcome plain = ordinary(prompt, setup);
  FakeModel model;
  const Outcome drafted =
      answer(model, prompt, scripted(known_reply(whole_of(prompt, beyond), 31, -1)), setup);
  CHECK(equal(plain, drafted));
  CHECK(drafted.digests.size() == plain.digests.size());
  check_invariants(drafted.reply);
  // A stop text ends a reply at any token, in the same way.
  for (int stop_after = 1; stop_after < 40; ++stop_after) {
    int n = 0;
    Setup text = endless;
    text.sink = [&](int) { return ++n < stop_after; };
    FakeModel other;
    const Outcome cut =
        answer(other, prompt, scripted(known_reply(whole_of(prompt, beyond), 7, -1)), text);
    CHECK(cut.reply.finish == Finish::stop_text);
    CHECK(static_cast<int>(cut.reply.ids.size()) == stop_after);
    CHECK(std::equal(cut.reply.ids.begin(), cut.reply.ids.end(), beyond.reply.ids.begin()));
    check_invariants(cut.reply);
  }
}

TEST_CASE("rounds: windows shrink to the limit and the context (case 16)") {
  const std::vector<int> prompt = prompt_of(60);
  for (int n = 1; n <= 70; ++n) {
    Setup by_limit, by_context;
    by_limit.max_new = n;
    by_context.max_new = -1;
    by_context.context = 60 + n;
    const Outcome plain = ordinary(prompt, by_limit);
    for (const Setup& setup : {by_limit, by_context}) {
      FakeModel model(1, Fault::none, 512, 60 + n);
      const Outcome drafted =
          answer(model, prompt, standard(model, {DraftOptions::Source::mtp, 7}), setup);
      CHECK(drafted.reply.ids == plain.reply.ids);
      CHECK(static_cast<int>(drafted.reply.ids.size()) == n);
      CHECK(drafted.reply.finish == (setup.max_new < 0 ? Finish::context : Finish::limit));
      CHECK(drafted.reply.counters.cut == 0);
      check_invariants(drafted.reply);
    }
  }
  // -c of exactly prompt + n with the limit n: the limit is the reason.
  Setup both;
  both.max_new = 20;
  both.context = 80;
  CHECK(ordinary(prompt, both).reply.finish == Finish::limit);
}

TEST_CASE("rounds: max_new 0 runs the prompt and gives no token") {
  Setup setup;
  setup.max_new = 0;
  const Outcome out = ordinary(prompt_of(12), setup);
  CHECK(out.reply.ids.empty());
  CHECK(out.reply.finish == Finish::limit);
  CHECK(out.reply.counters.prompt_passes == 1);
  CHECK(out.reply.counters.target == 0);
}

TEST_CASE("rounds: a row that is not finite ends its sequence alone (cases 7, 8)") {
  const std::vector<int> prompt = prompt_of(10);
  const auto run_four = [&](std::int64_t nan_position, bool drafted) {
    FakeModel model(4);
    model.nan_slot = 1;
    model.nan_position = nan_position;
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<Stream*> all;
    for (int i = 0; i < 4; ++i) {
      const int slot = model.open_slot();
      streams.push_back(std::make_unique<Stream>(
          model, slot, request_of(prompt_of(10, i), {}), nullptr,
          drafted ? standard(model, {DraftOptions::Source::mtp, 3}) : nullptr, 1024, kDraftsMax,
          nullptr));
      all.push_back(streams.back().get());
    }
    while (std::any_of(all.begin(), all.end(), [](Stream* s) { return !s->is_finished(); })) {
      Rounds(model).run(all);
    }
    std::vector<Reply> replies;
    for (Stream* s : all) replies.push_back(s->reply());
    CHECK(model.is_broken(1) == (nan_position >= 0 && replies[1].finish == Finish::error));
    return replies;
  };
  const std::vector<Reply> clean = run_four(-1, false);
  for (const bool drafted : {false, true}) {
    for (const std::int64_t at : {3, 9, 10, 12, 13, 14, 15, 30}) {
      const std::vector<Reply> replies = run_four(at, drafted);
      for (const int i : {0, 2, 3})
        CHECK(replies[static_cast<std::size_t>(i)].ids == clean[static_cast<std::size_t>(i)].ids);
      const Reply& failed = replies[1];
      CHECK(failed.finish == Finish::error);
      CHECK(failed.error_position == at + 1);
      CHECK(failed.n_nonfinite == 1);
      const auto n = static_cast<std::size_t>(std::max<std::int64_t>(0, at - 9));
      REQUIRE(failed.ids.size() == n);
      CHECK(std::equal(failed.ids.begin(), failed.ids.end(), clean[1].ids.begin()));
      check_invariants(failed);
    }
  }
}

TEST_CASE("rounds: a marked row that is not reached ends nothing") {
  const std::vector<int> prompt = prompt_of(10);
  const Outcome plain = ordinary(prompt);
  // Every draft is wrong, so rows past the first are never reached; the fault lies on one of them.
  FakeModel model;
  model.nan_position = 60;  // past the reply's end at 49
  const Outcome drafted =
      answer(model, prompt, scripted(known_reply(whole_of(prompt, plain), 31, 0)));
  CHECK(equal(plain, drafted));
}

TEST_CASE("rounds: a reply is the same alone and among others, whatever they do (case 19)") {
  const auto alone = [](int i) { return ordinary(prompt_of(5 + 37 * i, i)).reply; };
  for (const int n : {1, 3, 7, 8, 15}) {
    FakeModel model(n + 1, Fault::none, 100);
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<Stream*> all;
    int started = 0;
    const auto start = [&] {
      const int i = started++;
      const DraftOptions options{
          i % 2 ? DraftOptions::Source::mtp : DraftOptions::Source::automatic, i % 3 - 1 ? 5 : -1};
      streams.push_back(std::make_unique<Stream>(
          model, model.open_slot(), request_of(prompt_of(5 + 37 * i, i), {}), nullptr,
          i % 4 == 3 ? nullptr : standard(model, options), 1024, kDraftsMax, nullptr));
      all.push_back(streams.back().get());
    };
    for (int round = 0; round < 400; ++round) {
      if (started <= n && round % 3 == 0) start();  // they arrive one after another
      Rounds(model).run(all);
    }
    CHECK(started == n + 1);
    CHECK(model.n_stale == 0);
    for (int i = 0; i <= n; ++i) {
      CHECK(all[static_cast<std::size_t>(i)]->is_finished());
      CHECK(all[static_cast<std::size_t>(i)]->reply().ids == alone(i).ids);
      check_invariants(all[static_cast<std::size_t>(i)]->reply());
    }
  }
}

TEST_CASE("rounds: an interrupt ends the reply between rounds, prompt chunks included (case 58)") {
  std::atomic<bool> interrupt{false};
  Setup setup;
  setup.interrupt = &interrupt;
  int n = 0;
  setup.sink = [&](int) {
    if (++n == 5) interrupt = true;
    return true;
  };
  FakeModel model;
  const Outcome out = answer(model, prompt_of(20), nullptr, setup);
  CHECK(out.reply.finish == Finish::interrupted);
  CHECK(out.reply.ids.size() == 5);
  check_invariants(out.reply);

  FakeModel slow(1, Fault::none, 4);
  const Outcome none = answer(slow, prompt_of(20), nullptr, setup);  // still set
  CHECK(none.reply.finish == Finish::interrupted);
  CHECK(none.reply.ids.empty());
  CHECK(slow.window_sizes.empty());
}

TEST_CASE("rounds: a sink that throws leaves a slot that must be reset") {
  FakeModel model;
  const int slot = model.open_slot();
  int n = 0;
  Stream stream(
      model, slot, request_of(prompt_of(10), {}),
      [&](int, std::span<const float>) -> bool {
        if (++n == 3) throw Error(Exit::fault, "stdout: gone");
        return true;
      },
      nullptr, 1024, kDraftsMax, nullptr);
  Stream* const only = &stream;
  CHECK_THROWS_AS(while (!stream.is_finished()) Rounds(model).run({&only, 1}), Error);
  CHECK(model.is_broken(slot));
  model.reset_slot(slot);
  CHECK_FALSE(model.is_broken(slot));
  CHECK(model.ids(slot).empty());
}

TEST_CASE("rounds: counters repeat exactly") {
  const std::vector<int> prompt = prompt_of(70);
  const auto counters = [&] {
    FakeModel model;
    return answer(model, prompt, standard(model, {})).reply.counters;
  };
  const Counters a = counters(), b = counters();
  CHECK(a.drafted == b.drafted);
  CHECK(a.accepted_at == b.accepted_at);
  CHECK(a.head_levels == b.head_levels);
  CHECK(a.target == b.target);
  CHECK(a.drafted > 0);
}

}  // namespace
}  // namespace bolt
