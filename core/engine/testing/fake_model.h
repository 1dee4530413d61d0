// A model whose next token depends on the whole history through hashes, on the real bookkeeping: a
// recurrent hash that lags and is replayed, key cells in pages, a draft head with cells of its own.
// Anything stale changes what comes next. Faults plant the mistakes that tests must catch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/engine/model.h"
#include "core/engine/slots.h"

namespace bolt::testing {

enum class Fault {
  none,
  replay_off_by_one,  // one lagging row too few
  keys_not_trimmed,   // rejected rows' cells stay visible
  absorbs_draft,      // cells that the head's chain wrote are kept as if they were true
  ties_to_highest,    // in windows of several rows, as a tree reduction might
};

inline std::uint64_t mix(std::uint64_t h, std::uint64_t x) {
  h = (h ^ (x + 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
  h ^= h >> 29;
  h *= 0xc4ceb9fe1a85ec53u;
  return h ^ (h >> 32);
}

class FakeModel final : public Model {
 public:
  static constexpr int kVocab = 40;

  explicit FakeModel(int n_slots = 1, Fault fault = Fault::none, int chunk_rows = 512,
                     int context = 1024)
      : slots_(n_slots, n_slots * (pages_for(context) + 1)),
        fault_(fault),
        chunk_rows_(chunk_rows),
        cells_(static_cast<std::size_t>(slots_.pool().n_pages()) * kPageKeys),
        head_cells_(cells_.size()),
        states_(static_cast<std::size_t>(n_slots)) {}

  // Hooks of the tests.
  std::int64_t nan_position = -1;  // the row at this position gives no token
  int nan_slot = 0;
  int right_of_8 = 6;             // how many of 8 drafts of the head are right
  std::int64_t n_stale = 0;       // head cells that were not made of true hidden rows
  std::vector<int> window_sizes;  // of every call's windows

  int open_slot() override { return slots_.open(); }
  void close_slot(int slot) override { reset_slot(slot), slots_.close(slot); }
  void reset_slot(int slot) override { slots_.reset(slot), at(slot) = State{}; }
  const std::vector<int>& ids(int slot) const override { return slots_.ids(slot); }
  bool is_broken(int slot) const override { return slots_.is_broken(slot); }

  void run(std::span<const Window> windows, std::vector<WindowResult>& results) override {
    results.assign(windows.size(), {});
    sampled_logits_.assign(windows.size(), {});
    for (std::size_t w = 0; w < windows.size(); ++w) {
      const Window& window = windows[w];
      const int n = static_cast<int>(window.ids.size());
      window_sizes.push_back(n);
      const Segment segment = slots_.begin(window.slot, window.ids, window.sure, 0, n);
      State& state = at(window.slot);
      const int n_lag = std::max(0, segment.n_lag - (fault_ == Fault::replay_off_by_one));
      std::uint64_t h = replayed(state, n_lag);
      state.lagging.clear();
      state.fresh.clear();
      for (int r = 0; r < n; ++r) {
        const int position = segment.first_position + r;
        cell(cells_, segment.pages, position) =
            mix(static_cast<std::uint64_t>(window.ids[r]), static_cast<std::uint64_t>(position));
        state.high_water = std::max(state.high_water, position);
      }
      for (int r = 0; r < n; ++r) {
        const int position = segment.first_position + r;
        h = mix(h, static_cast<std::uint64_t>(window.ids[r]));
        if (r < segment.n_sure) state.h = h;
        if (r >= segment.n_sure) state.lagging.push_back(window.ids[r]);
        const int last_key = fault_ == Fault::keys_not_trimmed ? state.high_water : position;
        const Hidden hidden{h, sum_of(cells_, segment.pages, last_key)};
        state.fresh.push_back(hidden);
        if (r < n - window.n_sampled) {
          if (is_marked(window.slot, position) && results[w].first_marked < 0) {
            results[w].first_marked = r;
          }
          continue;
        }
        const int id = is_marked(window.slot, position) ? -1 : pick(hidden.value(), n > 1);
        results[w].sampled.push_back({id, 1.0f});
        sampled_logits_[w].push_back(hidden.value());
      }
      state.fed = window.feed_head;
    }
  }

  void commit(int slot, int n_kept) override {
    State& state = at(slot);
    if (!state.fed) state.complete = false;
    state.backlog.insert(state.backlog.end(), state.fresh.begin(), state.fresh.begin() + n_kept);
    slots_.commit(slot, n_kept);
  }

  void draft(std::span<const DraftAsk> asks, std::vector<std::vector<Draft>>& drafts) override {
    drafts.assign(asks.size(), {});
    for (std::size_t i = 0; i < asks.size(); ++i) {
      const DraftAsk& ask = asks[i];
      State& state = at(ask.slot);
      if (!state.complete || state.backlog.empty()) continue;
      const std::vector<int>& ids = slots_.ids(ask.slot);
      const int n = static_cast<int>(ids.size());
      const auto pages = slots_.grow(ask.slot, n + ask.max_levels + 1);
      const int first = n - static_cast<int>(state.backlog.size());
      for (int p = first; p < n; ++p) {
        if (fault_ == Fault::absorbs_draft && p <= state.head_high_water) continue;
        const int next = p + 1 < n ? ids[static_cast<std::size_t>(p + 1)] : ask.next_id;
        cell(head_cells_, pages, p) =
            head_cell(state.backlog[static_cast<std::size_t>(p - first)], next);
      }
      check_head(ask.slot, ask.next_id, pages);
      // The chain knows how the target goes on, and is wrong now and then.
      Hidden hidden = state.backlog.back();
      std::uint64_t h = hidden.h, sum = hidden.sum;
      int token = ask.next_id;
      float product = 1.0f;
      state.head_high_water = n - 1;
      for (int k = 1; k <= ask.max_levels; ++k) {
        const int position = n - 1 + k;  // of `token`
        h = mix(h, static_cast<std::uint64_t>(token));
        sum += mix(static_cast<std::uint64_t>(token), static_cast<std::uint64_t>(position));
        const Hidden next{h, sum};
        int id = pick(next.value(), false);
        const float probability = 0.9f;
        if (static_cast<int>(mix(next.value(), 77) % 8) >= right_of_8) id = (id + 1) % kVocab;
        drafts[i].push_back({id, probability});
        product *= probability;
        if (k == ask.max_levels) break;
        if (!ask.go_on.empty() && !chain_goes_on(product, ask.go_on[static_cast<std::size_t>(k)])) {
          break;
        }
        // The head's own hidden is not the target's: a cell made of it must not be kept.
        cell(head_cells_, pages, position) = head_cell({h ^ 1, sum}, id);
        state.head_high_water = position;
        token = id;
      }
      state.backlog.clear();
    }
  }

  void read_logits(int window, int i, std::span<float> to) override {
    const auto w = static_cast<std::size_t>(window), row = static_cast<std::size_t>(i);
    for (int id = 0; id < kVocab; ++id) {
      to[static_cast<std::size_t>(id)] = static_cast<float>(level(sampled_logits_[w][row], id));
    }
  }

  std::string state_digest(int slot) const override {
    const State& state = states_[static_cast<std::size_t>(slot)];
    const int n = slots_.n_committed(slot);
    const int n_lag = std::max(0, slots_.n_lag(slot) - (fault_ == Fault::replay_off_by_one));
    std::uint64_t h = replayed(state, n_lag);
    for (int p = 0; p < n; ++p) {
      h = mix(h, cells_[static_cast<std::size_t>(
                            slots_.pages(slot)[static_cast<std::size_t>(p / kPageKeys)]) *
                            kPageKeys +
                        static_cast<std::size_t>(p % kPageKeys)]);
    }
    return std::to_string(h);
  }

  bool has_head() const override { return true; }
  std::span<const int> draft_vocab() const override { return {}; }
  int vocab_size() const override { return kVocab; }
  int max_rows() const override { return std::max(chunk_rows_, 32 * slots_.n_slots()); }
  int max_window_rows() const override { return kWindowRowsMax; }
  int max_chunk_rows() const override { return chunk_rows_; }
  std::int64_t time_window_ns(int n_rows) override { return 1000 + 20 * n_rows; }
  std::int64_t time_level_ns(bool) override { return 100; }

  const Slots& slots() const { return slots_; }

 private:
  struct Hidden {
    std::uint64_t h = 0, sum = 0;
    std::uint64_t value() const { return mix(h, sum); }
  };
  struct State {
    std::uint64_t h = 1;          // after the sure rows of the last window
    std::vector<int> lagging;     // its other rows
    std::vector<Hidden> fresh;    // hidden rows of the last run
    std::vector<Hidden> backlog;  // kept ones that the head has not absorbed
    bool fed = false, complete = true;
    int high_water = -1, head_high_water = -1;
  };

  State& at(int slot) { return states_[static_cast<std::size_t>(slot)]; }
  bool is_marked(int slot, int position) const {
    return slot == nan_slot && position == nan_position;
  }
  static std::uint64_t replayed(const State& state, int n_lag) {
    std::uint64_t h = state.h;
    for (int r = 0; r < n_lag; ++r) {
      h = mix(h, static_cast<std::uint64_t>(state.lagging[static_cast<std::size_t>(r)]));
    }
    return h;
  }
  // Logits take few values, so that ties are common.
  static int level(std::uint64_t value, int id) {
    return static_cast<int>(mix(value, static_cast<std::uint64_t>(id)) % 6);
  }
  int pick(std::uint64_t value, bool in_window) const {
    int best = 0;
    for (int id = 1; id < kVocab; ++id) {
      const int a = level(value, id), b = level(value, best);
      if (a > b || (a == b && in_window && fault_ == Fault::ties_to_highest)) best = id;
    }
    return best;
  }
  static std::uint64_t& cell(std::vector<std::uint64_t>& cells, std::span<const int> pages,
                             int position) {
    const int page = pages[static_cast<std::size_t>(position / kPageKeys)];
    return cells[static_cast<std::size_t>(page) * kPageKeys +
                 static_cast<std::size_t>(position % kPageKeys)];
  }
  static std::uint64_t sum_of(std::vector<std::uint64_t>& cells, std::span<const int> pages,
                              int last) {
    std::uint64_t sum = 0;
    for (int p = 0; p <= last; ++p) sum += cell(cells, pages, p);
    return sum;
  }
  static std::uint64_t head_cell(const Hidden& hidden, int next_id) {
    return mix(hidden.value(), static_cast<std::uint64_t>(next_id));
  }
  // Every cell below the chain must be made of what the ids alone give.
  void check_head(int slot, int next_id, std::span<const int> pages) {
    const std::vector<int>& ids = slots_.ids(slot);
    std::uint64_t h = 1, sum = 0;
    for (std::size_t p = 0; p < ids.size(); ++p) {
      h = mix(h, static_cast<std::uint64_t>(ids[p]));
      sum += mix(static_cast<std::uint64_t>(ids[p]), p);
      const int next = p + 1 < ids.size() ? ids[p + 1] : next_id;
      n_stale += cell(head_cells_, pages, static_cast<int>(p)) != head_cell({h, sum}, next);
    }
  }

  Slots slots_;
  const Fault fault_;
  const int chunk_rows_;
  std::vector<std::uint64_t> cells_, head_cells_;
  std::vector<State> states_;
  std::vector<std::vector<std::uint64_t>> sampled_logits_;
};

}  // namespace bolt::testing
