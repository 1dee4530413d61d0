// What of a sequence is kept as a prefix, and another one made to go on from it.
#include <algorithm>

#include "core/base/error.h"
#include "core/engine/ops_model.h"

namespace bolt {

// Keys that the head has not absorbed yet are written by whoever goes on, each with its own token.
int OpsModel::n_whole_pages(const KeptPrefix& prefix) const {
  return (static_cast<int>(prefix.ids.size()) - prefix.n_backlog) / kPageKeys;
}

bool OpsModel::copy_page(int from, int to) {
  bool copied = true;
  for (auto* caches : {&forward_.caches(), &forward_.head_caches()}) {
    for (LayerCache& cache : *caches) {
      if (cache.kv) copied = cache.kv->copy(from, to) && copied;
    }
  }
  each_block([&](BlockKind, BlockRunner& block) { block.copy_page(from, to); });
  return copied;
}

void OpsModel::keep_prefix(int slot) {
  if (!keeps_prefixes() || slots_.is_broken(slot)) return;
  const Backlog& backlog = backlog_of(slot);
  const std::vector<int>& ids = slots_.ids(slot);
  KeptPrefix prefix;
  each_block([&](BlockKind kind, BlockRunner& block) {
    prefix.block_first_key[static_cast<std::size_t>(kind)] = block.first_key(slot);
  });
  if (const int same = prefixes_.find_same(ids); same >= 0) {
    const KeptPrefix& kept = prefixes_.at(same);
    bool adds = backlog.complete && !kept.head_complete;
    for (std::size_t i = 0; i < kBlockKinds.size(); ++i) {
      adds = adds || prefix.block_first_key[i] < kept.block_first_key[i];
    }
    if (!adds) return;
    prefixes_.drop(same);  // this one serves more drafters
  }
  each_block([&](BlockKind, BlockRunner& block) { block.drain(place_of(slot)); });
  prefix.ids = ids;
  const auto n_pages = static_cast<std::size_t>(pages_for(static_cast<std::int64_t>(ids.size())));
  const std::vector<int>& pages = slots_.pages(slot);
  prefix.pages.assign(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(n_pages));
  prefix.n_lag = slots_.n_lag(slot);
  prefix.head_complete = backlog.complete;
  if (graph_.draft && backlog.complete) {
    prefix.n_backlog = backlog.n;
    prefix.backlog.resize(static_cast<std::size_t>(backlog.n * graph_.d_model));
    if (backlog.n > 0) ops_.read(backlog_rows(slot, 0, 1).row(0), prefix.backlog);
  }
  const int place = prefixes_.keep(std::move(prefix));
  if (place < 0) return;
  for (LayerCache& cache : forward_.caches()) {
    if (cache.mamba) cache.mamba->copy(slot, state_slot(place));
  }
  each_block([&](BlockKind, BlockRunner& block) { block.copy_slot(slot, state_slot(place)); });
}

void OpsModel::resume_prefix(int slot, std::span<const int> prompt, bool with_head,
                             BlockSet with_blocks) {
  if (!keeps_prefixes()) return;
  const int place = prefixes_.find(prompt, [&](const KeptPrefix& prefix) {
    if (with_head && graph_.draft && !prefix.head_complete) return false;
    for (const BlockKind kind : kBlockKinds) {
      if (!with_blocks[kind] || !block_of(kind)) continue;
      if (!block_of(kind)->goes_on(prefix.block_first_key[static_cast<std::size_t>(kind)])) {
        return false;
      }
    }
    return copies_pages_ || n_whole_pages(prefix) == static_cast<int>(prefix.pages.size());
  });
  if (place < 0) return;
  const KeptPrefix& prefix = prefixes_.at(place);
  const auto n_whole = static_cast<std::size_t>(n_whole_pages(prefix));
  std::vector<int> pages;
  for (std::size_t i = 0; i < prefix.pages.size(); ++i) {
    if (i < n_whole) {
      slots_.pool().share(prefix.pages[i]);
      pages.push_back(prefix.pages[i]);
    } else {
      pages.push_back(slots_.pool().take());
      copy_page(prefix.pages[i], pages.back());
    }
  }
  slots_.adopt(slot, prefix.ids, std::move(pages), prefix.n_lag);
  for (LayerCache& cache : forward_.caches()) {
    if (cache.mamba) cache.mamba->copy(state_slot(place), slot);
  }
  each_block([&](BlockKind, BlockRunner& block) { block.copy_slot(state_slot(place), slot); });
  Backlog& backlog = backlog_of(slot);
  backlog = Backlog{};
  backlog.n = prefix.n_backlog;
  backlog.complete = prefix.head_complete;
  if (backlog.n > 0) {
    ops_.write(prefix.backlog.data(), prefix.backlog.size() * sizeof(float),
               backlog_rows(slot, 0, 1).row(0));
  }
}

}  // namespace bolt
