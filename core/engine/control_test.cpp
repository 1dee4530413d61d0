// Mistakes planted in the ops must show on the sample model: in the reply, in the committed state,
// or in what the head drafts.
#include <doctest/doctest.h>

#include "core/base/sha256.h"
#include "core/engine/drafter.h"
#include "core/engine/generate.h"
#include "core/engine/ops_model.h"
#include "core/engine/testing/sample.h"
#include "core/engine/testing/wrong_ops.h"
#include "core/ops/host.h"

namespace bolt {
namespace {

using testing::Mistake;

struct Trace {
  std::vector<int> ids;
  std::string state, logits;
  std::vector<int> chain;  // that the head proposes at the end
};

// A reply of 24 ids with seven drafts a round, its state, and the chain after it. `again`: the
// chain of a fresh sequence over the same ids, which must be the same.
Trace run(Mistake mistake, int n_drafts, bool again = false) {
  const Package& package = testing::sample_package();
  HostOps host(1, resolve_isa(Isa::automatic));
  testing::WrongOps ops(host, mistake);
  ModelSizes sizes;
  sizes.context = 512;
  sizes.n_vocab = package.config().n_tokens;
  OpsModel model(ops, package.graph(), sizes);
  Request request;
  const std::vector<int> text = testing::text_ids(package, 40);
  request.prompt_ids = text;
  request.max_new = 24;
  request.want_logits = true;
  Sha256 hash;
  const auto sink = [&](int, std::span<const float> logits) {
    hash.update(logits.data(), logits.size_bytes());
    return true;
  };
  request.draft = {n_drafts > 0 ? DraftOptions::Source::mtp : DraftOptions::Source::off, n_drafts};
  const int slot = model.open_slot();
  Stream stream(model, slot, request, sink, make_drafter(request, model, {}), 512, 31, nullptr);
  Stream* const only = &stream;
  while (!stream.is_finished()) Rounds(model).run({&only, 1});
  Trace trace{stream.reply().ids, model.state_digest(slot), hash.hex(), {}};
  if (n_drafts == 0) return trace;

  const std::vector<int> held = model.ids(slot);
  if (again) {
    model.reset_slot(slot);
    Window window;
    window.slot = slot;
    window.ids = held;
    window.sure = true;
    window.feed_head = true;
    std::vector<WindowResult> results;
    model.run({&window, 1}, results);
    model.commit(slot, static_cast<int>(held.size()));
  }
  DraftAsk ask;
  ask.slot = slot;
  ask.next_id = trace.ids.back();
  ask.max_levels = 7;
  std::vector<std::vector<Draft>> chains;
  model.draft({&ask, 1}, chains);
  for (const Draft& draft : chains[0]) trace.chain.push_back(draft.id);
  return trace;
}

TEST_CASE("controls: mistakes in replay, keys and absorption are caught on the sample model") {
  const Trace plain = run(Mistake::none, 0), drafted = run(Mistake::none, 7);
  CHECK(drafted.ids == plain.ids);
  CHECK(drafted.state == plain.state);
  CHECK(drafted.chain == run(Mistake::none, 7, true).chain);
  CHECK(drafted.logits == plain.logits);
  for (const Mistake mistake : {Mistake::replays_one_less, Mistake::appends_keys}) {
    const Trace wrong = run(mistake, 7);
    CHECK((wrong.ids != plain.ids || wrong.state != plain.state));
  }
  // One ulp in one element of a window's last row: the comparison of logits sees it.
  CHECK(run(Mistake::sums_by_rows, 7).logits != run(Mistake::sums_by_rows, 0).logits);
  // Absorption touches no token; the chain shows it.
  CHECK(run(Mistake::forgets_head_keys, 7).ids == plain.ids);
  CHECK(run(Mistake::forgets_head_keys, 7).chain != drafted.chain);
}

}  // namespace
}  // namespace bolt
