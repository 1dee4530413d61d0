// Drafted replies against ordinary ones on the sample model: sources, depths, temperatures, seeds.
// A part by default; all of it with BOLT_FULL_TESTS=1 (an hour and more on two cores; shared out
// with BOLT_TEST_SHARD). With BOLT_TEST_DEVICE the GPU answers, and the CPU is what it must equal.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "core/engine/testing/sample.h"

namespace bolt {
namespace {

using testing::Answer;
using testing::answer;
using testing::drafted_package;
using testing::sample_package;
using Source = DraftOptions::Source;

const bool kFull = std::getenv("BOLT_FULL_TESTS") != nullptr;

struct Sampling {
  float temperature;
  std::uint64_t seed;
};

Request request_of(const std::vector<int>& prompt, std::int64_t max_new, Sampling sampling,
                   DraftOptions draft) {
  Request request;
  request.prompt_ids = prompt;
  request.max_new = max_new;
  request.sampling.temperature = sampling.temperature;
  request.sampling.seed = sampling.seed;
  request.draft = draft;
  return request;
}

// The engine under test, and ordinary answers from the CPU.
class Pair {
 public:
  Pair(const Package& package, EngineOptions options) {
    host_ = Engine::open(package, options);
    options.device = testing::test_device();
    if (options.device >= 0) device_ = Engine::open(package, options);
    for (Engine* engine : {host_.get(), &tested()}) sequences_.push_back(engine->new_sequence());
  }
  Answer ordinary(Request request) {
    request.draft = {Source::off, -1};
    const Answer plain = answer(*host_, *sequences_[0], request);
    if (device_) CHECK(answer(*device_, *sequences_[1], request) == plain);
    return plain;
  }
  Answer drafted(const Request& request, Reply* reply = nullptr) {
    return answer(tested(), *sequences_[1], request, reply);
  }

 private:
  Engine& tested() { return device_ ? *device_ : *host_; }
  std::unique_ptr<Engine> host_, device_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

struct Tally {
  int n_tokens = 0, n_passes = 0, n_drafted = 0, n_accepted = 0;
  void add(const Reply& reply) {
    const Counters& c = reply.counters;
    n_tokens += static_cast<int>(reply.ids.size()) - 1;
    n_passes += static_cast<int>(c.target);
    n_drafted += static_cast<int>(c.drafted);
    n_accepted += static_cast<int>(
        std::accumulate(c.accepted_at.begin(), c.accepted_at.end(), std::int64_t{0}));
  }
};

TEST_CASE("matrix: ids and logits of drafted replies are those of ordinary ones (cases 3, 25)") {
  const Package& package = drafted_package();
  const std::vector<std::vector<int>> prompts = testing::read_real30(package);
  EngineOptions options;
  options.n_threads = 1;
  options.n_slots = 2;
  options.context = 2048;
  if (testing::test_device() < 0) {
    options.cost_table = testing::scratch_folder() + "/matrix-costs.json";
  }
  Pair pair(package, options);

  const std::int64_t max_new = kFull ? 128 : 48;
  const std::vector<Sampling> samplings =
      kFull ? std::vector<Sampling>{{0.0f, 0}, {0.3f, 1}, {0.3f, 2}, {0.8f, 1},
                                    {0.8f, 2}, {1.3f, 1}, {1.3f, 2}}
            : std::vector<Sampling>{{0.0f, 0}, {0.8f, 1}};
  const std::vector<int> depths =
      kFull ? std::vector<int>{1, 2, 3, 7, 15, 31, -1} : std::vector<int>{1, 7, 31, -1};
  int n_equal = 0, n_all = 0;
  for (const Sampling sampling : samplings) {
    Tally tallies[5][2];  // by source; by the depth rule and with seven drafts
    for (std::size_t p = 0; p < (kFull ? prompts.size() : 12); p += kFull ? 1 : 4) {  // short ones
      if (!testing::is_of_shard(p)) continue;
      const Answer plain = pair.ordinary(request_of(prompts[p], max_new, sampling, {}));
      for (const Source source :
           {Source::mtp, Source::copy, Source::automatic, Source::dspark, Source::dflash}) {
        const bool is_block = source == Source::dspark || source == Source::dflash;
        for (const int depth : depths) {
          if (is_block && depth > 7) continue;  // a block has no more
          Reply reply;
          const Answer drafted =
              pair.drafted(request_of(prompts[p], max_new, sampling, {source, depth}), &reply);
          CHECK_MESSAGE(drafted == plain, "prompt ", p, ", source ", static_cast<int>(source),
                        ", depth ", depth, ", temperature ", sampling.temperature, ", seed ",
                        sampling.seed);
          n_equal += drafted == plain;
          ++n_all;
          if (depth < 0 || depth == 7) tallies[static_cast<int>(source) - 1][depth == 7].add(reply);
        }
      }
      if (kFull) std::fprintf(stderr, "%d of %d equal so far\n", n_equal, n_all);
    }
    for (int i = 0; i < 10; ++i) {
      const Tally& tally = tallies[i / 2][i % 2];
      const char* const names[] = {"mtp", "copy", "auto", "dspark", "dflash"};
      std::printf(
          "temperature %.1f seed %d, %-6s %s: %5d tokens in %5d passes, %5d of %5d drafts kept: "
          "%.2f tokens a pass\n",
          static_cast<double>(sampling.temperature), static_cast<int>(sampling.seed), names[i / 2],
          i % 2 ? "k7  " : "rule", tally.n_tokens, tally.n_passes, tally.n_accepted,
          tally.n_drafted,
          static_cast<double>(tally.n_tokens) / static_cast<double>(std::max(1, tally.n_passes)));
      std::fflush(stdout);
    }
    // The target's noise goes into the drafts, so that they agree at a temperature, too.
    if (n_all > 0 && sampling.temperature <= 0.3f) CHECK(tallies[0][1].n_accepted > 0);
  }
  std::printf("%d of %d drafted replies equal\n", n_equal, n_all);
  CHECK(n_equal == n_all);
}

TEST_CASE("matrix: every depth from 1 to 31") {
  const Package& package = sample_package();
  const std::vector<std::vector<int>> prompts = testing::read_real30(package);
  EngineOptions options;
  options.n_threads = 1;
  options.n_slots = 2;
  options.context = 2048;
  Pair pair(package, options);
  for (std::size_t p = 0; p < (kFull ? 6 : 1); ++p) {
    if (!testing::is_of_shard(p)) continue;
    const Answer plain = pair.ordinary(request_of(prompts[p], 64, {0.0f, 0}, {}));
    for (int depth = 1; depth <= 31; ++depth) {
      const Answer drafted =
          pair.drafted(request_of(prompts[p], 64, {0.0f, 0}, {Source::automatic, depth}));
      CHECK_MESSAGE(drafted == plain, "prompt ", p, ", depth ", depth);
    }
  }
}

TEST_CASE("matrix: 75 short prompts on a quantised target, one draft (case 3)") {
  const Package& package = sample_package(Format::q8);
  const std::vector<int> text = testing::text_ids(package, 2000);
  EngineOptions options;
  options.n_threads = 1;
  options.n_slots = 2;
  options.context = 256;
  Pair pair(package, options);
  int n_equal = 0;
  int n_all = 0;
  for (int i = 0; i < 75; ++i) {
    if (!testing::is_of_shard(static_cast<std::size_t>(i))) continue;
    ++n_all;
    const std::vector<int> prompt(text.begin() + 20 * i, text.begin() + 20 * i + 12 + i % 9);
    const Answer plain = pair.ordinary(request_of(prompt, 16, {0.0f, 0}, {}));
    n_equal += pair.drafted(request_of(prompt, 16, {0.0f, 0}, {Source::mtp, 1})) == plain;
  }
  CHECK(n_equal == n_all);
}

}  // namespace
}  // namespace bolt
