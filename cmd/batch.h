// The work of serve-stdin: lines in, shared rounds, records out. Every line is answered once, as it
// would be alone; what ends the work early seals what was running.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cmd/answering.h"
#include "cmd/batch_line.h"
#include "cmd/batch_records.h"
#include "cmd/line_source.h"
#include "cmd/record_sink.h"
#include "cmd/status_line.h"
#include "core/base/error.h"
#include "core/base/sha256.h"
#include "receipts/session.h"

namespace bolt {

class BatchServer {
 public:
  struct Settings {
    int n_parallel = 4;
    bool quiet = false, verbose = false;
    std::string plan_file;  // planned runs are sealed beside it
  };
  // All must outlive the batch.
  BatchServer(Session& session, LineSource& source, RecordSink& sink, receipts::PackWriter& pack,
              const Settings& settings);
  ~BatchServer();

  // Answers all lines and seals the session. ok, no (some line failed) or interrupted.
  // Throws ReaderGone and what stdin, the output or the device throw, after sealing what it can.
  Exit run();

 private:
  struct Live;

  void loop();
  void handle(BatchLine line);
  void admit();
  bool has_room(const BatchLine& line) const;
  std::unique_ptr<Live> prepare(BatchLine line);
  void start(BatchLine line);
  void collect();
  void end(Live& live);
  void seal_planned(Live& live);
  void fail(const BatchLine& line, const LineError& error);
  void cancel(const std::string& id);
  void tell(std::string record);
  void tell_tokens(Live& live);
  void check_sink();
  void write_stats(const BatchLine& line);
  // Ends what runs, with this word in its receipts.
  void cut(const std::string& stop);
  void heed_signals();
  void show_progress();
  std::string summary() const;
  double seconds() const;

  Session& session_;
  LineSource& source_;
  RecordSink& sink_;
  receipts::PackWriter& pack_;
  const Settings settings_;
  StatusLine status_;
  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_sync_;

  std::deque<BatchLine> waiting_;  // requests without a place yet
  std::vector<std::unique_ptr<Live>> live_;
  std::vector<Generation*> round_;  // of the round at hand
  std::set<std::int64_t> planned_;  // cells that lines have run
  bool stopping_ = false;           // no further line is taken
  bool mute_ = false;               // nobody takes records any more
  std::int64_t n_done_ = 0, n_failed_ = 0, n_not_finite_ = 0, n_unplanned_ = 0, n_tokens_ = 0,
               n_reused_ = 0;
  std::exception_ptr failure_;  // of the input; what was read is still answered
};

}  // namespace bolt
