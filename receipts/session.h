// The receipts of one serve-stdin process: a session receipt when it opens, a pack of its runs, and
// the closing session receipt as the pack's last.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "receipts/digest.h"
#include "receipts/facts.h"
#include "receipts/write.h"

namespace bolt::receipts {

class PackWriter {
 public:
  // Seals `facts` (an opening session) as NAME.bolt.jsonl and makes NAME.runs.jsonl beside it, both
  // 0600. Throws as write_session does.
  PackWriter(SessionFacts facts, const Where& where);
  PackWriter(const PackWriter&) = delete;
  PackWriter& operator=(const PackWriter&) = delete;
  ~PackWriter();  // without close() the pack stays open, as after a crash

  // Names the session as parent, seals, appends the whole group with one write, and syncs if the
  // last sync is a second ago. Returns the rid and PACK#N. May be called from several threads.
  Written add(RunFacts& facts);

  // A line got an error instead of a run.
  void add_failed(std::int64_t line);

  // Seals the totals: lines with a run or an error, those with an error, and the root over the
  // runs' rids in the order of their lines.
  Written close();

  const std::string& session_rid() const { return session_.rid; }
  const std::string& session_path() const { return session_.path; }
  const std::string& pack_path() const { return path_; }

 private:
  void append(const std::string& bytes, bool sync);

  std::mutex mutex_;
  SessionFacts facts_;
  Written session_;
  std::string path_;
  int fd_ = -1;
  std::int64_t n_ = 0, n_failed_ = 0, last_sync_ns_ = 0;
  std::vector<std::int64_t> failed_lines_;
  std::vector<std::pair<std::int64_t, Digest>> rids_;  // line, rid: 40 bytes a run
};

}  // namespace bolt::receipts
