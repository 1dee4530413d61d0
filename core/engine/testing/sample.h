// The sample model for tests: converted once a process into a folder of its own, its goldens, and
// the frozen prompts as ids.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/pack/package.h"

namespace bolt::testing {

// A fresh folder under the system's temporary one, removed when the process ends.
const std::string& scratch_folder();

// The sample package, in its own precision or quantised.
const Package& sample_package(std::optional<Format> quant = std::nullopt);

// The same with both trained drafters of testdata/sample-model/drafters.
// quant: of the drafters' linears.
const Package& drafted_package(std::optional<Format> quant = {});

// A checkpoint as a package at `target`, in its own precision or quantised.
std::unique_ptr<Package> converted(const std::string& checkpoint, const std::string& target,
                                   std::optional<Format> quant);

// Where the engines under test run: the CPU (-1), or the GPU that BOLT_TEST_DEVICE names. Answers
// they are compared with are the CPU's in either case.
int test_device();
// Whether this process takes prompt i: all, or with BOLT_TEST_SHARD=K/N those of the K-th part
// (from 0), so that many cores share the long tests.
bool is_of_shard(std::size_t i);

struct Golden {
  std::vector<int> prompt, greedy, drafts;
  std::vector<float> before_last, last;  // logits after the last two prompt ids
};
std::vector<Golden> read_goldens();

// Rounds of a greedy reply with seven drafts each, by an independent reference.
struct DrafterGolden {
  std::vector<int> prompt, reply;
  struct Round {
    std::vector<int> drafts;
    std::vector<float> leads;  // of each draft's logit over the next best
    int n_accepted = 0;
  };
  std::array<std::vector<Round>, 2> rounds;  // by BlockKind
};
std::vector<DrafterGolden> read_drafter_goldens();

// testdata/prompts/real30.jsonl as the sample's chat template and tokenizer have it.
std::vector<std::vector<int>> read_real30(const Package& package);
// n ids of running text.
std::vector<int> text_ids(const Package& package, int n);

// What a reply must not depend on anything for.
struct Answer {
  std::vector<int> ids;
  std::string logits;  // digest of every emitted position's logits
  Finish finish = Finish::limit;
  bool operator==(const Answer&) const = default;
};
// Runs a request on a sequence that starts afresh.
Answer answer(Engine& engine, Sequence& sequence, Request request, Reply* reply = nullptr);

}  // namespace bolt::testing
