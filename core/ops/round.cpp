// The definition of a round, in ops that the host calls one after the other.
#include "core/ops/round.h"

#include <array>

#include "core/base/error.h"
#include "core/ops/replay_key.h"

namespace bolt {

void Ops::run_round(const RoundTask& task, RoundOutcome& outcome) {
  const auto at = [](auto span) { return span.empty() ? nullptr : span.data(); };
  std::vector<Sampled>& drafts = outcome.drafts;
  drafts.clear();
  float product = 1.0f;
  SampleSpec spec = task.level_sampling;
  Rows<const float> hidden = task.hidden;
  bool goes_on = task.max_levels > 0;
  while (goes_on) {
    const Batch batch{1, task.level_segments, task.level_marks};
    begin(batch, task.level_ids);
    replay(key_with(task.level_key, reinterpret_cast<std::uintptr_t>(hidden.data)),
           [&] { task.level_ops(hidden); });
    Sampled draft;
    sample(task.level_logits, {&spec, 1}, task.level_marks, task.level_columns, {&draft, 1});
    if (!task.given.empty()) draft = task.given[drafts.size()];
    if (draft.id < 0) break;
    drafts.push_back(draft);
    product *= draft.probability;
    goes_on = drafts_on(draft, static_cast<int>(drafts.size()), task.max_levels, product,
                        at(task.stop_ids), static_cast<int>(task.stop_ids.size()), at(task.go_on));
    task.level_ids[0] = draft.id;
    ++task.level_segments[0].first_position;
    ++spec.position;
    hidden = task.hidden_place;
  }
  outcome.sampled.clear();
  outcome.n_verified = 0;
  if (task.levels_only) return;

  const int n_drafts = static_cast<int>(drafts.size());
  outcome.n_verified = task.max_levels == 0 ? static_cast<int>(task.window_ids.size()) - 1
                       : task.row_prices.empty()
                           ? n_drafts
                           : n_worth(drafts.data(), n_drafts, task.row_prices.data());
  const int n_rows = outcome.n_verified + 1;
  const auto rows = static_cast<std::size_t>(n_rows);
  if (task.max_levels > 0) {
    for (std::size_t i = 1; i < rows; ++i) task.window_ids[i] = drafts[i - 1].id;
    task.window_segments[0].n_rows = task.window_segments[0].n_live = n_rows;
  }
  const Batch batch{n_rows, task.window_segments, task.window_marks.first(rows)};
  begin(batch, task.window_ids.first(rows));
  replay(key_with(task.window_key, rows), [&] { task.window_ops(n_rows); });
  std::array<SampleSpec, kWindowRowsMax> specs;
  for (std::size_t i = 0; i < rows; ++i) {
    specs[i] = task.window_sampling;
    specs[i].position += i;
  }
  outcome.sampled.assign(rows, Sampled{});
  sample(task.window_logits.rows(0, n_rows), {specs.data(), rows}, task.window_marks.first(rows),
         nullptr, outcome.sampled);
  finish(batch);
}

}  // namespace bolt
