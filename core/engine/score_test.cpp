// Scoring on a fake model: the choices of a teacher-forced run are those of decoding, a changed id
// is missed where it stands and nowhere before, and a model that rounds by rows is caught.
#include "core/engine/score.h"

#include <doctest/doctest.h>

#include "core/base/error.h"
#include "core/engine/generate.h"
#include "core/engine/testing/fake_model.h"

namespace bolt {
namespace {

using testing::FakeModel;
using testing::Fault;

Request request_of(int n_prompt) {
  Request request;
  for (int i = 0; i < n_prompt; ++i)
    request.prompt_ids.push_back((i * i + 3 * i) % FakeModel::kVocab);
  request.max_new = 150;
  request.want_logits = true;
  return request;
}

using Logits = std::vector<std::vector<float>>;

std::vector<int> decoded(const Request& request, Logits& logits) {
  FakeModel model;
  const int slot = model.open_slot();
  const TokenSink sink = [&](int, std::span<const float> row) {
    logits.emplace_back(row.begin(), row.end());
    return true;
  };
  Stream stream(model, slot, request, sink, nullptr, 1024, 0, nullptr);
  Stream* const only = &stream;
  while (!stream.is_finished()) Rounds(model).run({&only, 1});
  return stream.reply().ids;
}

Scoring scored(FakeModel& model, const Request& request, const std::vector<int>& claimed,
               Logits* logits = nullptr) {
  const int slot = model.open_slot();
  const TokenSink sink = [&](int, std::span<const float> row) {
    if (logits) logits->emplace_back(row.begin(), row.end());
    return true;
  };
  Scoring scoring = score_reply(model, slot, request, claimed, sink, nullptr);
  model.close_slot(slot);
  return scoring;
}

TEST_CASE("score: choices and logits are those of decoding, at any prompt length and chunk") {
  for (const int n_prompt : {1, 2, 5, 63, 64, 65, 130}) {
    const Request request = request_of(n_prompt);
    Logits plain;
    const std::vector<int> reply = decoded(request, plain);
    for (const int chunk : {1, 7, 64, 512}) {
      FakeModel model(1, Fault::none, chunk);
      Logits logits;
      const Scoring scoring = scored(model, request, reply, &logits);
      CHECK(scoring.chosen == reply);
      CHECK(logits == plain);
      CHECK(scoring.n_nonfinite == 0);
      for (const int rows : model.window_sizes) CHECK(rows <= chunk);
    }
  }
  CHECK(scored(*std::make_unique<FakeModel>(), request_of(3), {}).chosen.empty());
}

TEST_CASE("score: one changed id is the first miss, at every position") {
  const Request request = request_of(9);
  Logits unused;
  const std::vector<int> reply = decoded(request, unused);
  FakeModel model;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    std::vector<int> claimed = reply;
    claimed[i] = (claimed[i] + 1) % FakeModel::kVocab;
    const std::vector<int> chosen = scored(model, request, claimed).chosen;
    REQUIRE(chosen.size() == reply.size());
    const auto first = std::mismatch(chosen.begin(), chosen.end(), claimed.begin()).first;
    CHECK(first - chosen.begin() == static_cast<std::ptrdiff_t>(i));
  }
}

TEST_CASE("score: the control, a model whose ties fall otherwise in calls of several rows") {
  const Request request = request_of(9);
  Logits unused;
  const std::vector<int> reply = decoded(request, unused);
  FakeModel wrong(1, Fault::ties_to_highest);
  CHECK(scored(wrong, request, reply).chosen != reply);
}

TEST_CASE("score: a row that is not finite ends it, in the prompt or in the reply") {
  const Request request = request_of(9);
  Logits unused;
  const std::vector<int> reply = decoded(request, unused);
  for (const int position : {3, 8, 20, 9 + 148}) {
    FakeModel model;
    model.nan_position = position;
    const Scoring scoring = scored(model, request, reply);
    CHECK(scoring.n_nonfinite == 1);
    CHECK(static_cast<int>(scoring.chosen.size()) == std::max(0, position - 8));
  }
  std::atomic<bool> stop = true;
  FakeModel model;
  CHECK(score_reply(model, model.open_slot(), request, reply, {}, &stop).interrupted);
}

}  // namespace
}  // namespace bolt
