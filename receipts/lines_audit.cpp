// Findings are collected, never thrown: an auditor wants all of them at once.
#include "receipts/lines_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "receipts/digest.h"
#include "receipts/library.h"

namespace bolt::receipts {
namespace {

constexpr std::size_t kFindingsShown = 1000;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct Run {
  std::string what, rid;
  std::string input, task, out;  // digests; out: tokens and stop
  std::string stop;
  BinderChoice binder;  // of its digests
  int session = 0;
};

struct Session {
  std::string pack;
  bool closed = false;
};

struct Found {
  std::map<std::int64_t, std::vector<Run>> runs;  // by line
  std::vector<Session> sessions;
  std::set<std::int64_t> failed;
  std::int64_t n_failed_unlisted = 0;
  std::vector<std::string> findings;
  std::int64_t n_findings = 0;

  void add(const std::string& line) {
    if (++n_findings <= static_cast<std::int64_t>(kFindingsShown)) findings.push_back(line);
  }
};

void take_failed(const Value& body, Found& found) {
  const Value* lines = body.find("session.failed_lines");
  std::int64_t n = 0;
  if (lines != nullptr) {
    for (const Value& line : lines->array()) found.failed.insert(line.as_int()), ++n;
  }
  found.n_failed_unlisted += body.int_at("session.failed") - n;
}

// All of a pack, its root included.
void collect_pack(const std::string& path, const LinesAuditOptions& options, Found& found) {
  const int session = static_cast<int>(found.sessions.size());
  found.sessions.push_back({path, false});
  std::error_code error;
  if (std::filesystem::file_size(path, error) == 0 && !error)
    return;  // killed before its first run
  try {
    VerifyOptions verify_options;
    verify_options.redaction_key = options.redaction_key;
    (void)verify_file(path, verify_options);
    ReceiptReader reader(LineReader::open(path), path, true);
    while (const std::optional<Receipt> receipt = reader.next()) {
      const Value& body = receipt->body;
      if (receipt->kind() == "session") {
        found.sessions.back().closed = true;
        take_failed(body, found);
        continue;
      }
      Run run;
      run.what = receipt->what;
      run.rid = receipt->rid;
      run.input = body.string_at("request.input");
      run.task = body.string_at("task.sha256");
      run.out = body.string_at("out.ids") + " " + body.string_at("stop.kind");
      run.stop = body.string_at("stop.kind");
      run.binder = choose_binder(*receipt, options.redaction_key);
      run.session = session;
      found.runs[body.int_at("request.line")].push_back(std::move(run));
    }
  } catch (const Failure& failure) {
    found.add(inert(failure.what()));
  }
}

bool is_cut(const Run& run) { return run.stop == "interrupted" || run.stop == "cancelled"; }

// The one that answers the line; null where none does. Says what is wrong with the others.
const Run* answer_of(std::int64_t line, const std::vector<Run>& runs, Found& found) {
  const Run *answer = nullptr, *cut = nullptr;
  int n_closed = 0;
  for (const Run& run : runs) {
    if (is_cut(run)) {
      if (run.stop == "cancelled") cut = &run;
      continue;
    }
    n_closed += found.sessions[static_cast<std::size_t>(run.session)].closed;
    if (answer != nullptr && answer->task == run.task && answer->out != run.out) {
      found.add(fmt::format("line {}: {} and {} differ in their replies", line, inert(answer->what),
                            inert(run.what)));
    }
    // The one of a session that was closed is the one that was told.
    if (answer == nullptr || found.sessions[static_cast<std::size_t>(run.session)].closed) {
      answer = &run;
    }
  }
  if (n_closed > 1) found.add(fmt::format("line {}: answered {} times", line, n_closed));
  return answer != nullptr ? answer : cut;
}

std::string digest_of(const std::string& bytes, const Binder& binder = Binder()) {
  return bind_hex(binder, "line", {bytes});
}

// A digest of another line must be told apart, or nothing here can.
void plant_and_find() {
  if (digest_of("{\"prompt\": \"a\"}") == digest_of("{\"prompt\": \"b\"}")) {
    throw Failure(Status::fault, "audit: the planted difference was not found: the gate is broken");
  }
}

}  // namespace

Answer audit_lines(const std::vector<std::string>& folders, const std::string& input,
                   const LinesAuditOptions& options) {
  plant_and_find();
  Found found;
  const std::set<std::string> packs = list_folders(folders, is_pack_name);
  for (const std::string& pack : packs) collect_pack(pack, options, found);

  std::ifstream in(input, std::ios::binary);
  if (!in) throw Failure(Status::unmet, input + ": cannot read");
  std::int64_t number = 0, n_lines = 0, n_answered = 0, n_failed = 0, n_missing = 0, n_again = 0;
  std::vector<Digest> rids;
  for (std::string bytes; std::getline(in, bytes);) {
    ++number;
    if (bytes.ends_with('\r')) bytes.pop_back();
    if (number == 1 && bytes.starts_with(kByteOrderMark)) bytes.erase(0, kByteOrderMark.size());
    if (bytes.find_first_not_of(" \t\r\n\v\f") == std::string::npos) continue;
    if (options.is_word && options.is_word(bytes)) continue;
    ++n_lines;
    const auto at = found.runs.find(number);
    const Run* answer = at == found.runs.end() ? nullptr : answer_of(number, at->second, found);
    if (answer == nullptr) {
      if (found.failed.contains(number)) {
        ++n_failed;
      } else {
        ++n_missing;
        found.add(fmt::format("line {}: no run answers it", number));
      }
      continue;
    }
    ++n_answered;
    n_again += std::ssize(at->second) - 1;
    rids.push_back(*digest_from_hex(answer->rid));
    for (const Run& run : at->second) {
      if (!run.binder.known) {
        found.add(fmt::format("line {}: {} binds its line under a key that is not here", number,
                              inert(run.what)));
      } else if (run.input != digest_of(bytes, run.binder.binder)) {
        found.add(fmt::format("line {}: {} answers another line", number, inert(run.what)));
      }
    }
  }
  for (auto at = found.runs.upper_bound(number); at != found.runs.end(); ++at) {
    found.add(fmt::format("{}: answers line {}, the input has {}", inert(at->second[0].what),
                          at->first, number));
  }
  if (n_lines == 0) throw Failure(Status::unmet, input + ": no line: nothing was checked");
  if (found.runs.empty() && found.failed.empty() && packs.empty()) {
    throw Failure(Status::unmet, fmt::format("no run found in {}: nothing was checked",
                                             counted(std::ssize(packs), "pack")));
  }

  const auto n_open = std::count_if(found.sessions.begin(), found.sessions.end(),
                                    [](const Session& s) { return !s.closed; });
  Answer answer;
  const bool clean = found.n_findings == 0;
  answer.status = clean ? Status::holds : Status::false_claim;
  answer.lines.push_back(
      {fmt::format("{}: {}, {} answered once, {} failed, {} missing", inert(input),
                   counted(n_lines, "line"), n_answered, n_failed, n_missing),
       clean ? Tone::good : Tone::bad});
  answer.lines.push_back(
      {fmt::format("{}, {} never closed; {} cut short or made again",
                   counted(std::ssize(packs), "session"), n_open, counted(n_again, "run"))});
  for (const std::string& line : found.findings) answer.lines.push_back({line, Tone::bad});
  const std::string root = hex(merkle_root(rids));
  answer.lines.push_back({"root " + root});
  answer.json.set("lines", n_lines);
  answer.json.set("answered", n_answered);
  answer.json.set("failed", n_failed);
  answer.json.set("missing", n_missing);
  answer.json.set("sessions", static_cast<std::int64_t>(packs.size()));
  answer.json.set("findings", Value::Array(found.findings.begin(), found.findings.end()));
  answer.json.set("root", root);
  return answer;
}

}  // namespace bolt::receipts
