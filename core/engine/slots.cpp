// Page tables and commits: what rollback comes down to is a count of kept rows.
#include "core/engine/slots.h"

#include "core/base/error.h"

namespace bolt {

PagePool::PagePool(int n_pages)
    : n_pages_(n_pages), n_holders_(static_cast<std::size_t>(n_pages), 0) {
  require(n_pages > 0, "a page pool has pages");
  free_.reserve(static_cast<std::size_t>(n_pages));
  for (int page = n_pages - 1; page >= 0; --page) free_.push_back(page);  // page 0 goes first
}

int PagePool::take() {
  if (free_.empty()) {
    throw Error(Exit::fault, "key-value pages: all " + std::to_string(n_pages_) +
                                 " are taken; ask for fewer sequences or a smaller context");
  }
  const int page = free_.back();
  free_.pop_back();
  n_holders_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void PagePool::share(int page) {
  int& n = n_holders_[static_cast<std::size_t>(page)];
  require(n > 0, "a shared page is taken");
  ++n;
}

void PagePool::give(int page) {
  int& n = n_holders_[static_cast<std::size_t>(page)];
  require(n > 0, "a page that is given was taken");
  if (--n == 0) free_.push_back(page);
}

Slots::Slots(int n_slots, int n_pages, int n_extra)
    : pool_(n_pages), n_reservable_(n_pages - n_extra), slots_(static_cast<std::size_t>(n_slots)) {}

Slots::Slot& Slots::at(int slot) {
  require(slot >= 0 && slot < n_slots(), "slot in range");
  return slots_[static_cast<std::size_t>(slot)];
}
const Slots::Slot& Slots::at(int slot) const {
  require(slot >= 0 && slot < n_slots(), "slot in range");
  return slots_[static_cast<std::size_t>(slot)];
}

int Slots::open() {
  for (int i = 0; i < n_slots(); ++i) {
    if (at(i).open) continue;
    at(i).open = true;
    return i;
  }
  throw Error(Exit::fault, "sequences: all " + std::to_string(n_slots()) +
                               " are open; close one or ask for more at start");
}

void Slots::close(int slot) {
  reset(slot);
  at(slot).open = false;
}

void Slots::reset(int slot) {
  Slot& s = at(slot);
  // Last page first, so that a sequence that starts over gets the same pages in the same order.
  for (auto page = s.pages.rbegin(); page != s.pages.rend(); ++page) pool_.give(*page);
  n_reserved_ -= s.n_reserved;
  const bool open = s.open;
  s = Slot{};
  s.open = open;
}

bool Slots::reserve(int slot, int n_pages) {
  Slot& s = at(slot);
  if (!has_room(n_pages - s.n_reserved)) return false;
  n_reserved_ += n_pages - s.n_reserved;
  s.n_reserved = n_pages;
  return true;
}

void Slots::adopt(int slot, std::span<const int> ids, std::vector<int> pages, int n_lag) {
  Slot& s = at(slot);
  require(s.open && s.ids.empty() && s.pages.empty(), "a slot that adopts was reset");
  s.ids.assign(ids.begin(), ids.end());
  s.pages = std::move(pages);
  s.n_lag = n_lag;
}

std::span<const int> Slots::grow(int slot, std::int64_t n_positions) {
  Slot& s = at(slot);
  while (static_cast<int>(s.pages.size()) < pages_for(n_positions)) s.pages.push_back(pool_.take());
  return s.pages;
}

Segment Slots::begin(int slot, std::span<const int> ids, bool sure, int first_row, int n_rows) {
  Slot& s = at(slot);
  const int n_live = static_cast<int>(ids.size());
  require(s.open && !s.running, "a slot is open and its last rows were committed");
  require(n_live >= 1 && n_live <= n_rows, "a window has at least one row");
  require(sure || n_live <= kWindowRowsMax, "a window has at most 32 rows");
  Segment segment;
  segment.first_row = first_row;
  segment.n_rows = n_rows;
  segment.first_position = n_committed(slot);
  segment.n_live = n_live;
  segment.n_sure = sure ? n_live : 1;
  segment.n_lag = s.n_lag;
  segment.slot = slot;
  segment.pages = grow(slot, static_cast<std::int64_t>(s.ids.size()) + n_rows);
  s.fresh.assign(ids.begin(), ids.end());
  s.sure = sure;
  s.running = true;
  return segment;
}

void Slots::settle(int slot, std::span<const int> ids) {
  Slot& s = at(slot);
  require(s.running && !ids.empty() && ids.size() <= s.fresh.size(), "rows that were begun");
  s.fresh.assign(ids.begin(), ids.end());
}

void Slots::commit(int slot, int n_kept) {
  Slot& s = at(slot);
  const int n_fresh = static_cast<int>(s.fresh.size());
  require(s.running, "rows were run before they are committed");
  require(n_kept >= 1 && n_kept <= n_fresh, "a commit keeps at least the first row");
  require(!s.sure || n_kept == n_fresh, "sure rows are all kept");
  s.ids.insert(s.ids.end(), s.fresh.begin(), s.fresh.begin() + n_kept);
  s.n_lag = s.sure ? 0 : n_kept - 1;
  s.fresh.clear();
  s.running = false;
}

}  // namespace bolt
