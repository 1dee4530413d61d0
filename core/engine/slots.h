// Which sequence holds what: committed ids, KV pages, and how many rows of the last window its
// recurrent state still lags. Bookkeeping only; the numbers themselves lie in the caches of an Ops.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ops/ops.h"

namespace bolt {

// Pages of 128 absolute positions, shared by all sequences and by every attention layer: page p is
// index p of each layer's cache.
class PagePool {
 public:
  explicit PagePool(int n_pages);
  // Throws Error(fault) when all are taken: whoever admits sequences counts first.
  int take();
  void share(int page);  // one holder more of a page that is taken
  void give(int page);   // free once every holder gave it
  int n_free() const { return static_cast<int>(free_.size()); }
  int n_pages() const { return n_pages_; }

 private:
  int n_pages_;
  std::vector<int> free_, n_holders_;
};

inline int pages_for(std::int64_t n_positions) {
  return static_cast<int>((n_positions + kPageKeys - 1) / kPageKeys);
}

class Slots {
 public:
  // Of n_pages, the last n_extra are never reserved: kept prefixes hold as many.
  Slots(int n_slots, int n_pages, int n_extra = 0);

  int open();  // throws Error(fault) if every slot is taken
  void close(int slot);
  void reset(int slot);  // forgets the sequence, gives its pages back
  // Makes a slot that was reset hold these ids, with n_lag rows that its state lags. The pages are
  // the slot's from now on.
  void adopt(int slot, std::span<const int> ids, std::vector<int> pages, int n_lag);

  // The ids whose rows were run and kept. A row at position p holds ids[p].
  const std::vector<int>& ids(int slot) const { return at(slot).ids; }
  int n_committed(int slot) const { return static_cast<int>(at(slot).ids.size()); }
  int n_lag(int slot) const { return at(slot).n_lag; }
  const std::vector<int>& pages(int slot) const { return at(slot).pages; }
  // Rows were run and never committed (the caller failed between): the state is not to be used.
  bool is_broken(int slot) const { return at(slot).running; }

  // The rows `ids` at the slot's next positions, as `n_rows` >= ids.size() rows of a call from
  // `first_row` on. sure: all are certain to be kept (a prompt chunk); else the first alone is.
  // Grows the page table. The segment's pages stay valid until the slot changes.
  Segment begin(int slot, std::span<const int> ids, bool sure, int first_row, int n_rows);
  // What the rows begun turned out to be: no more of them.
  void settle(int slot, std::span<const int> ids);
  // Keeps the first n_kept of the rows begun, at least 1, all of them if they were sure.
  void commit(int slot, int n_kept);

  // Sets pages aside for a slot, so that it never lacks one; false, and nothing changed, where
  // others have them. reset and close give them up.
  bool reserve(int slot, int n_pages);
  bool has_room(int n_pages) const { return n_reserved_ + n_pages <= n_reservable_; }

  // Pages that hold positions below n_positions, taking what is missing.
  std::span<const int> grow(int slot, std::int64_t n_positions);

  int n_slots() const { return static_cast<int>(slots_.size()); }
  PagePool& pool() { return pool_; }

 private:
  struct Slot {
    bool open = false;
    bool running = false;  // between begin and commit
    bool sure = false;     // of the rows begun
    int n_lag = 0;
    int n_reserved = 0;      // pages
    std::vector<int> ids;    // committed
    std::vector<int> fresh;  // begun
    std::vector<int> pages;
  };
  Slot& at(int slot);
  const Slot& at(int slot) const;

  PagePool pool_;
  const int n_reservable_;
  int n_reserved_ = 0;  // by all slots
  std::vector<Slot> slots_;
};

}  // namespace bolt
