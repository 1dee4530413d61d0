// One function per invariant, in the order of bolt-receipt(5).
#include "receipts/invariants.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "receipts/body.h"
#include "receipts/fields.h"
#include "receipts/status.h"

namespace bolt::receipts {
namespace {

struct Facts {
  const Value& body;
  const std::string& what;
  std::string stop = body.string_at("stop.kind");
  std::int64_t n = body.int_at("out.n"), rounds = body.int_at("count.rounds"),
               target = body.int_at("count.target"), drafted = body.int_at("count.drafted"),
               bonus = body.int_at("count.bonus"), cut = body.int_at("count.cut");
  std::vector<std::int64_t> accepted_at = list("count.accepted_at");

  std::vector<std::int64_t> list(std::string_view path) const {
    std::vector<std::int64_t> out;
    if (const Value* v = body.find(path)) {
      for (const Value& item : v->array()) out.push_back(item.as_int());
    }
    return out;
  }

  void must(bool holds, const std::string& problem) const {
    if (!holds) throw Failure(Status::malformed, what + ": " + problem);
  }

  // Each entry is at most 2^53, and lists are short, but a sum may not overflow on hostile input.
  std::int64_t accepted() const {
    std::int64_t sum = 0;
    for (const std::int64_t a : accepted_at) {
      must(sum + a <= kIntMax, "count.accepted_at: the sum is past 2^53-1");
      sum += a;
    }
    return sum;
  }

  // The last round may have ended without a token of its own.
  bool broken_off() const {
    return stop == "error" || stop == "interrupted" || stop == "cancelled";
  }
};

void accepted_within_drafted(const Facts& f) {
  for (std::size_t i = 1; i < f.accepted_at.size(); ++i) {
    f.must(f.accepted_at[i] <= f.accepted_at[i - 1],
           fmt::format("count.accepted_at[{}]: {} accepted after {} at the depth before", i,
                       f.accepted_at[i], f.accepted_at[i - 1]));
  }
  f.must(f.accepted() <= f.drafted,
         fmt::format("count.accepted_at: {} accepted of {} drafted", f.accepted(), f.drafted));
}

// What no run can count, whatever it drafted with: windows have at most 31 drafts, copies are among
// them, a fixed depth bounds every round, and a token needs a pass over its prompt.
void counts_are_possible(const Facts& f) {
  constexpr std::int64_t kDraftsMax = 31;
  const auto at_most = [&](const char* name, std::int64_t value, std::int64_t most) {
    f.must(value <= most, fmt::format("{}: {}, at most {} are possible", name, value, most));
  };
  const std::int64_t copies = f.body.int_at("count.copy.rounds"),
                     copied = f.body.int_at("count.copy.drafted"),
                     taken = f.body.int_at("count.copy.accepted");
  at_most("count.copy.rounds", copies, f.rounds);
  at_most("count.copy.drafted", copied, f.drafted);
  at_most("count.copy.accepted", taken, std::min(copied, f.accepted()));
  f.must(copied == 0 || copies > 0, "count.copy.drafted: without a copy round");
  const bool fixed = f.body.string_at("mode.kind") == "speculative" &&
                     !f.body.bool_at("mode.adaptive") && f.body.int_at("mode.depth") > 0;
  const std::int64_t depth = fixed ? std::min(f.body.int_at("mode.depth"), kDraftsMax) : kDraftsMax;
  at_most("count.accepted_at", static_cast<std::int64_t>(f.accepted_at.size()), depth);
  // rounds is at most 2^53, so the product fits.
  at_most("count.drafted", f.drafted, f.rounds * depth);
  f.must(f.n == 0 || f.body.int_at("count.prompt_passes", 1) > 0,
         "count.prompt_passes: 0, but there is a reply");
}

void tokens_add_up(const Facts& f) {
  if (f.n == 0) return;
  const std::int64_t sum = 1 + f.accepted() + f.bonus - f.cut;
  f.must(f.n == sum, fmt::format("out.n: {}, but 1 + {} accepted + {} bonus - {} cut = {}", f.n,
                                 f.accepted(), f.bonus, f.cut, sum));
}

void one_acceptance_a_round(const Facts& f) {
  const std::int64_t first = f.accepted_at.empty() ? 0 : f.accepted_at[0];
  f.must(first <= f.rounds, fmt::format("count.accepted_at[0]: {} in {} rounds", first, f.rounds));
  f.must(f.bonus <= f.rounds, fmt::format("count.bonus: {} in {} rounds", f.bonus, f.rounds));
}

void passes_are_rounds(const Facts& f) {
  const std::int64_t segments = f.body.int_at("count.segments");
  f.must(f.target == f.rounds + segments,
         fmt::format("count.target: {}, but {} rounds + {} segments = {}", f.target, f.rounds,
                     segments, f.rounds + segments));
}

void ordinary_drafts_nothing(const Facts& f) {
  if (f.body.string_at("mode.kind") != "ordinary") return;
  f.must(f.drafted == 0, fmt::format("count.drafted: {} in ordinary mode, expected 0", f.drafted));
  const std::int64_t expected = std::max<std::int64_t>(f.n - 1, 0);
  const bool one_more = f.broken_off() && f.n > 0 && f.target == expected + 1;
  f.must(f.target == expected || one_more,
         fmt::format("count.target: {} for {} tokens in ordinary mode, expected {}", f.target, f.n,
                     expected));
}

void limit_means_limit(const Facts& f) {
  const std::int64_t max_new = f.body.int_at("limits.max_new", -1);
  f.must(max_new < 0 || f.n <= max_new,
         fmt::format("out.n: {} past limits.max_new {}", f.n, max_new));
  if (f.stop != "limit") return;
  f.must(f.n == max_new,
         max_new < 0
             ? std::string("stop.kind: limit, but limits.max_new is absent")
             : fmt::format("stop.kind: limit at {} tokens, limits.max_new is {}", f.n, max_new));
}

void eos_is_a_stop_id(const Facts& f) {
  if (f.stop != "eos") return;
  const std::int64_t id = f.body.int_at("stop.id", -1);
  const std::vector<std::int64_t> ids = f.list("task.stop_ids");
  f.must(std::ranges::find(ids, id) != ids.end(),
         fmt::format("stop.id: {} is none of task.stop_ids", id));
  f.must(!f.body.bool_at("task.ignore_eos"), "stop.kind: eos, but task.ignore_eos is true");
  f.must(f.n > 0, "stop.kind: eos without a token");
}

void marks_cover_the_reply(const Facts& f) {
  const std::int64_t stride = f.body.int_at("out.chain.stride");
  f.must(stride > 0, "out.chain.stride: 0");
  const Value* marks = f.body.find("out.chain.marks");
  const auto found = static_cast<std::int64_t>(marks == nullptr ? 0 : marks->array().size());
  const std::int64_t expected = f.n / stride + (f.n % stride != 0 ? 1 : 0);
  f.must(found == expected,
         fmt::format("out.chain.marks: {} for {} tokens at stride {}, expected {}", found, f.n,
                     stride, expected));
}

void derived_digests(const Facts& f, const Binder& binder, bool have_key) {
  const auto same = [&](const char* field, const std::string& derived) {
    const std::string sealed = f.body.string_at(field);
    f.must(sealed == derived,
           fmt::format("{}: sealed {}, its inputs give {}", field, sealed, derived));
  };
  if (const Value* list = f.body.find("package.files")) {
    std::vector<PackageFileFact> files;
    for (const Value& item : list->array()) {
      PackageFileFact& file = files.emplace_back();
      file.path = item.string_at("path");
      file.role = item.string_at("role");
      file.bytes = static_cast<std::uint64_t>(item.int_at("bytes"));
      file.sha256 = item.string_at("sha256");
    }
    same("package.sha256", package_digest(files));
  }
  if (f.body.string_at("kind") != "run" || !have_key) return;
  same("task.sha256", hex(task_digest(f.body, binder)));
  same("out.key", out_key(f.body, binder));
}

void run_rules(const Facts& f) {
  const Value& body = f.body;
  const bool sample = body.string_at("task.sampling.kind") == "sample";
  for (const char* name : {"temperature", "top_k", "top_p", "min_p", "rng", "seed"}) {
    const bool there = body.find(std::string("task.sampling.") + name) != nullptr;
    f.must(there == sample, fmt::format("task.sampling.{}: {}", name,
                                        sample ? "is missing" : "has no place in greedy sampling"));
  }
  f.must(
      (f.stop == "eos") == (body.find("stop.id") != nullptr),
      f.stop == "eos" ? "stop.id: is missing" : "stop.id: has a place only where stop.kind is eos");
  f.must(f.stop == "error" || body.find("stop.at") == nullptr,
         "stop.at: has a place only where stop.kind is error");
  const std::int64_t cached = body.int_at("sched.cached_n"), prompt = body.int_at("task.prompt_n");
  f.must(cached <= prompt, fmt::format("sched.cached_n: {} of {} prompt ids", cached, prompt));
  f.must(body.string_at("sched.cache") == "resumed" || cached == 0,
         fmt::format("sched.cached_n: {} on a cold cache", cached));
  const std::int64_t context = body.int_at("limits.context", kIntMax);
  f.must(prompt + f.n <= context,
         fmt::format("limits.context: {}, but {} prompt ids and {} tokens", context, prompt, f.n));
  for (const char* name : {"device.ranks", "sched.slots"}) {
    f.must(body.int_at(name, 1) >= 1, std::string(name) + ": 0");
  }
  const bool ordinary = body.string_at("mode.kind") == "ordinary";
  f.must(!ordinary || body.int_at("mode.depth") == 0, "mode.depth: not 0 in ordinary mode");
  const std::int64_t at = body.int_at("out.margin.at", 1);
  f.must(at >= 1 && (at <= f.n || body.find("out.margin") == nullptr),
         fmt::format("out.margin.at: {} of {} tokens", at, f.n));
}

void session_rules(const Facts& f) {
  const bool closed = f.body.string_at("session.phase") == "closed";
  for (const char* name : {"lines", "answered", "failed", "root"}) {
    const bool there = f.body.find(std::string("session.") + name) != nullptr;
    f.must(there == closed, fmt::format("session.{}: {}", name,
                                        closed ? "is missing" : "has no place while it is open"));
  }
}

std::string folded(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

void shared_rules(const Facts& f) {
  const Value& body = f.body;
  const std::string mode = body.string_at("redaction.mode");
  if (!mode.empty()) {
    f.must((mode == "plain") == (body.find("redaction.key_id") == nullptr),
           fmt::format("redaction.key_id: {} mode {}",
                       mode == "plain" ? "has no place in" : "is missing in", mode));
  }
  if (const Value* env = body.find("env")) {
    for (const Value& entry : env->array()) {
      f.must((entry.find("value") != nullptr) != (entry.find("sha256") != nullptr),
             "env: an entry needs either value or sha256");
    }
  }
  for (const char* name : {"package.files", "conversion.source_files"}) {
    const Value* files = body.find(name);
    if (files == nullptr) continue;
    std::vector<std::string> names;
    for (const Value& file : files->array()) {
      names.push_back(file.string_at("path"));
      const std::size_t i = names.size() - 1;
      f.must(i == 0 || names[i - 1] < names[i],
             fmt::format("{}[{}]: not in order of paths", name, i));
    }
    for (std::string& path : names) path = folded(std::move(path));
    std::ranges::sort(names);
    f.must(std::ranges::adjacent_find(names) == names.end(),
           std::string(name) + ": two paths that differ in case alone");
  }
}

}  // namespace

InvariantCount check_invariants(const Value& body, const Binder& binder, bool have_key,
                                const std::string& what) {
  const Facts facts{body, what};
  shared_rules(facts);
  if (facts.body.string_at("kind") == "session") session_rules(facts);
  InvariantCount result;
  const bool is_run = body.string_at("kind") == "run";
  if (is_run) {
    run_rules(facts);
    if (body.find("count") != nullptr) {
      accepted_within_drafted(facts);
      counts_are_possible(facts);
      tokens_add_up(facts);
      one_acceptance_a_round(facts);
      passes_are_rounds(facts);
      ordinary_drafts_nothing(facts);
      result.held = 5;
    } else {
      result.unchecked = "counters were left out";
    }
    limit_means_limit(facts);
    eos_is_a_stop_id(facts);
    marks_cover_the_reply(facts);
    result.held += 3;
  } else {
    result.held = 8;  // they speak of runs, and hold where there is none
  }
  derived_digests(facts, binder, have_key);
  if (is_run && !have_key) {
    result.unchecked += (result.unchecked.empty() ? "" : "; ") +
                        std::string("derived digests need the key of redaction.key_id");
  } else {
    result.held += 1;
  }
  return result;
}

}  // namespace bolt::receipts
