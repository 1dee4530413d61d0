// One loop: take lines, give them places, run a round, hand out what came of it.
#include "cmd/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "cmd/batch_signals.h"
#include "cmd/report.h"
#include "cmd/streams.h"
#include "core/base/error.h"
#include "receipts/build_facts.h"
#include "receipts/library.h"

namespace bolt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kIdleMs = 100;  // how soon a signal is seen while nothing runs
constexpr auto kSyncEvery = std::chrono::seconds(1);

std::string plural(std::int64_t n, const char* noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

std::uint64_t resident_bytes() {
  std::uint64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

}  // namespace

// A request that has its place: a sequence, the reply in the making, what is not told yet.
struct BatchServer::Live {
  BatchLine line;
  std::atomic<bool> interrupt{false};
  std::string ended_by;  // what `interrupt` means: cancelled, interrupted
  std::unique_ptr<Sequence> sequence;
  std::unique_ptr<Answering> answering;
  std::unique_ptr<Generation> generation;
  std::vector<int> fresh_ids;  // since the last token record
  std::string fresh_text;
  ReplyExtras extras;
  std::unique_ptr<Sha256> logits_hash;
  bool sealed = false;

  const BatchRequest& request() const { return std::get<BatchRequest>(line.what); }
};

BatchServer::BatchServer(Session& session, LineSource& source, RecordSink& sink,
                         receipts::PackWriter& pack, const Settings& settings)
    : session_(session),
      source_(source),
      sink_(sink),
      pack_(pack),
      settings_(settings),
      status_(!settings.quiet),
      start_(Clock::now()),
      last_sync_(start_) {}

BatchServer::~BatchServer() = default;

double BatchServer::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

Exit BatchServer::run() {
  std::exception_ptr broken;
  try {
    loop();
  } catch (...) {
    // Nobody takes records any more: the reader went away, the disk is full. Another fault is the
    // engine's or the receipts', and leaves nothing to seal.
    if (!mute_) throw;
    broken = std::current_exception();
  }
  status_.clear();
  if (broken) {
    source_.stop();
    cut("cancelled");
  }
  if (!broken) sink_.sync();
  (void)pack_.close();
  if (broken) std::rethrow_exception(broken);
  if (!settings_.quiet) write_err(summary());
  if (failure_) std::rethrow_exception(failure_);
  if (BatchSignals::level() > 0) return Exit::interrupted;
  return n_failed_ + n_not_finite_ + n_unplanned_ > 0 ? Exit::no : Exit::ok;
}

void BatchServer::loop() {
  for (bool open = true;;) {
    heed_signals();
    if (!stopping_) {
      std::deque<BatchLine> lines;
      try {
        open = source_.take(lines, live_.empty() && waiting_.empty() ? kIdleMs : 0);
      } catch (const Error&) {
        failure_ = std::current_exception();
        stopping_ = true;
      }
      for (BatchLine& line : lines) handle(std::move(line));
    }
    admit();
    if (live_.empty()) {
      check_sink();
      show_progress();
      if (waiting_.empty() && (stopping_ || !open)) return;
      continue;
    }
    round_.clear();
    for (const auto& live : live_) round_.push_back(live->generation.get());
    session_.engine().round(round_);
    collect();
    check_sink();
    show_progress();
    if (Clock::now() - last_sync_ > kSyncEvery) {
      sink_.sync();
      last_sync_ = Clock::now();
    }
  }
}

void BatchServer::heed_signals() {
  const int level = BatchSignals::level();
  if (level >= 1 && !stopping_) {
    stopping_ = true;
    source_.stop();
    waiting_.clear();
    if (level == 1 && !settings_.quiet) {
      status_.clear();
      write_err(
          fmt::format("bolt: interrupted: no further line is taken, {} still to finish; "
                      "interrupt again to cut {} short\n",
                      live_.size() == 1 ? "one reply is" : plural(std::ssize(live_), "reply"),
                      live_.size() == 1 ? "it" : "them"));
    }
  }
  if (level < 2) return;
  for (const auto& live : live_) {
    if (live->ended_by.empty()) live->ended_by = "interrupted";
    live->interrupt = true;
  }
}

void BatchServer::handle(BatchLine line) {
  if (std::holds_alternative<BatchRequest>(line.what)) {
    waiting_.push_back(std::move(line));
    return;
  }
  source_.settle();
  if (const auto* error = std::get_if<LineError>(&line.what)) {
    fail(line, *error);
  } else if (const auto* asked = std::get_if<CancelLine>(&line.what)) {
    cancel(asked->id);
  } else {
    write_stats(line);
  }
}

void BatchServer::fail(const BatchLine& line, const LineError& error) {
  ++n_failed_;
  pack_.add_failed(line.number);
  tell(error_record(line, error));
}

void BatchServer::admit() {
  while (!waiting_.empty() && std::ssize(live_) < settings_.n_parallel) {
    if (!live_.empty() && !has_room(waiting_.front())) return;  // in turn: none overtakes it
    BatchLine line = std::move(waiting_.front());
    waiting_.pop_front();
    source_.settle();
    start(std::move(line));
  }
}

bool BatchServer::has_room(const BatchLine& line) const {
  const Task& task = std::get<BatchRequest>(line.what).task;
  Request request;
  request.prompt_ids = task.prompt_ids;
  request.max_new = task.max_new;
  return session_.engine().has_room(request);
}

std::unique_ptr<BatchServer::Live> BatchServer::prepare(BatchLine line) {
  auto live = std::make_unique<Live>();
  Live& it = *live;
  it.line = std::move(line);
  const BatchRequest& request = it.request();
  if (request.logits_sha256) it.logits_hash = std::make_unique<Sha256>();
  Listener listener;
  listener.wants_logits = request.logits_sha256 || request.n_logprobs >= 0;
  const int n_vocab = session_.config().n_tokens;
  listener.token = [&it, &request, n_vocab](int id, std::span<const float> logits) {
    if (request.stream) it.fresh_ids.push_back(id);
    if (it.logits_hash) it.logits_hash->update(std::as_bytes(logits));
    if (request.n_logprobs >= 0) {
      it.extras.logprobs.push_back(logprobs_of(id, logits, n_vocab, request.n_logprobs));
    }
  };
  if (request.stream) {
    listener.text = [&it](const std::string& piece) { it.fresh_text += piece; };
  }
  it.answering = std::make_unique<Answering>(session_, request.task, listener, it.interrupt);
  return live;
}

void BatchServer::start(BatchLine line) {
  auto live = prepare(std::move(line));
  try {
    live->sequence = session_.engine().new_sequence();
    live->generation = session_.engine().start(*live->sequence, live->answering->request(),
                                               live->answering->sink(), &live->interrupt);
  } catch (const Error& error) {
    // A prompt that can never be run; another fault is the engine's.
    if (error.code != Exit::usage && error.code != Exit::input) throw;
    return fail(live->line, {"does_not_fit", error.what(), ""});
  }
  live_.push_back(std::move(live));
}

void BatchServer::collect() {
  for (const auto& live : live_) {
    if (live->generation->is_finished()) {
      end(*live);
    } else {
      tell_tokens(*live);
    }
  }
  std::erase_if(live_, [](const auto& live) { return live->sealed; });
}

void BatchServer::tell_tokens(Live& live) {
  if (live.fresh_ids.empty() && live.fresh_text.empty()) return;
  tell(token_record(live.line, std::exchange(live.fresh_text, {}),
                    std::exchange(live.fresh_ids, {})));
}

// Seals first, tells then: a record names its receipt.
void BatchServer::end(Live& live) {
  Answering& answering = *live.answering;
  Outcome& outcome = answering.outcome();
  if (live.generation) {
    answering.finish(live.generation->reply());
  } else {
    Reply nothing;
    nothing.finish = Finish::interrupted;
    nothing.n_prompt = std::ssize(answering.task().prompt_ids);
    answering.finish(nothing);
  }
  if (outcome.stop == "interrupted") outcome.stop = live.ended_by;
  receipts::RunFacts facts = session_.facts(answering, live.sequence.get());
  facts.common.build.exe = receipts::executable_sha256();
  facts.request = receipts::RequestFacts{live.line.input, live.line.number,
                                         live.line.id == "null" ? "" : live.line.id};
  facts.sched.peers = std::max<std::int64_t>(std::ssize(live_) - 1, 0);
  if (answering.task().cell) {
    seal_planned(live);
    facts.series = {};  // the pack answers for the line alone
    std::erase_if(facts.common.parents, [](const auto& parent) { return parent.role == "plan"; });
  }
  const receipts::Written in_pack = pack_.add(facts);
  if (outcome.receipt.path.empty()) outcome.receipt = in_pack;
  live.sealed = true;
  if (answering.thrown()) std::rethrow_exception(answering.thrown());
  if (live.logits_hash) live.extras.logits_sha256 = live.logits_hash->hex();
  ++n_done_;
  if (outcome.stop == "error") ++n_not_finite_;
  n_tokens_ += std::ssize(outcome.reply.ids);
  n_reused_ += outcome.reply.n_reused;
  if (settings_.verbose) {
    status_.clear();
    write_err(fmt::format("line {}: {}\n", live.line.number, last_line(outcome)));
  }
  tell_tokens(live);
  tell(done_record(live.line, session_, answering.task(), outcome, live.extras));
}

// The planned run is a file of its own, if it ended by itself and is the first of its cell.
void BatchServer::seal_planned(Live& live) {
  Outcome& outcome = live.answering->outcome();
  const std::int64_t cell = *live.answering->task().cell;
  if (outcome.stop == "interrupted" || outcome.stop == "cancelled") return;
  if (planned_.insert(cell).second) {
    session_.seal(*live.answering, live.sequence.get(), receipts::folder_of(settings_.plan_file));
  } else {
    outcome.unplanned = fmt::format("cell {} was run by an earlier line", cell);
  }
  if (outcome.unplanned.empty()) return;
  ++n_unplanned_;
  status_.clear();
  write_err(
      fmt::format("bolt: line {}: not the planned run: {}\n", live.line.number, outcome.unplanned));
}

void BatchServer::cancel(const std::string& id) {
  for (const auto& live : live_) {
    if (live->line.id != id || !live->ended_by.empty()) continue;
    live->ended_by = "cancelled";
    live->interrupt = true;
  }
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (at->id != id) {
      ++at;
      continue;
    }
    const auto live = prepare(std::move(*at));
    at = waiting_.erase(at);
    source_.settle();
    live->ended_by = "cancelled";
    end(*live);
  }
}

void BatchServer::cut(const std::string& stop) {
  round_.clear();
  for (const auto& live : live_) {
    if (live->sealed) continue;
    if (live->ended_by.empty()) live->ended_by = stop;
    live->interrupt = true;
    round_.push_back(live->generation.get());
  }
  session_.engine().round(round_);  // runs no row: all of them see their interrupt
  for (const auto& live : live_) {
    if (!live->sealed) end(*live);
  }
  live_.clear();
}

void BatchServer::tell(std::string record) {
  if (mute_) return;
  try {
    status_.clear();
    sink_.write(std::move(record));
  } catch (...) {
    mute_ = true;
    throw;
  }
}

void BatchServer::check_sink() {
  try {
    sink_.check();
  } catch (...) {
    mute_ = true;
    throw;
  }
}

void BatchServer::write_stats(const BatchLine& line) {
  JsonWriter json;
  json.begin_object().key("id").raw(line.id).member("line", line.number);
  json.member("event", "stats");
  json.member("lines", source_.n_lines()).member("done", n_done_).member("failed", n_failed_);
  json.member("running", live_.size()).member("waiting", waiting_.size());
  json.member("skipped", source_.n_skipped()).member("tokens", n_tokens_);
  json.member("reused", n_reused_);
  json.key("tok_per_s").raw(fmt::format("{:.1f}", static_cast<double>(n_tokens_) / seconds()));
  json.key("seconds").raw(fmt::format("{:.3f}", seconds()));
  json.member("resident_bytes", resident_bytes());
  tell(json.end_object().take());
}

void BatchServer::show_progress() {
  if (!status_.due()) return;
  std::string line = fmt::format("{} done", n_done_);
  if (n_failed_ > 0) line += fmt::format("  {} failed", n_failed_);
  line += fmt::format("  {} running  {:.0f} tok/s", live_.size(),
                      static_cast<double>(n_tokens_) / seconds());
  const double fraction = source_.fraction();
  if (fraction > 0.0 && n_done_ > 0) {
    const auto left = static_cast<std::int64_t>(seconds() * (1.0 - fraction) / fraction);
    line += fmt::format("  {}:{:02}:{:02} left", left / 3600, left / 60 % 60, left % 60);
  }
  status_.show(line);
}

std::string BatchServer::summary() const {
  std::string line = plural(n_done_, "line") + " answered";
  if (n_failed_ + n_not_finite_ > 0) line += fmt::format(", {} failed", n_failed_ + n_not_finite_);
  if (source_.n_skipped() > 0) line += fmt::format(", {} answered before", source_.n_skipped());
  const double s = seconds();
  return line + fmt::format("; {} in {:.1f} s, {:.1f} tok/s; receipts {}\n",
                            plural(n_tokens_, "token"), s, static_cast<double>(n_tokens_) / s,
                            pack_.pack_path());
}

}  // namespace bolt
