// Refusals first, so that an engine is never run for an answer that would mean nothing.
#include "receipts/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "receipts/plan.h"
#include "receipts/show.h"

namespace bolt::receipts {
namespace {

[[noreturn]] void unmet(const Receipt& receipt, const std::string& problem) {
  throw Failure(Status::unmet, receipt.what + ": not comparable: " + problem);
}

float f32_of(const std::string& digits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(digits, nullptr, 16)));
}

void must_match(const Receipt& receipt, const ReplayerFacts& here, const ReplayOptions& options) {
  const Value& body = receipt.body;
  if (receipt.kind() != "run") unmet(receipt, "a " + receipt.kind() + " is no run");
  const auto same = [&](const char* what, const std::string& made, const std::string& ours) {
    if (made == ours) return;
    const bool digests = digest_from_hex(made) && digest_from_hex(ours);
    unmet(receipt,
          fmt::format("made under {} {}, this is {}", what, digests ? short_hex(made) : inert(made),
                      digests ? short_hex(ours) : inert(ours)));
  };
  same("arith", body.string_at("arith.id"), here.arith.id);
  same("arith vectors", body.string_at("arith.sha256"), here.arith.sha256);
  same("kv", body.string_at("arith.kv"), here.arith.kv);
  same("package", body.string_at("package.sha256"), here.package_sha256);
  same("vocabulary", body.string_at("package.vocab"), here.vocab);
  const std::string scope = body.string_at("arith.scope");
  if (scope != "any") same("device", body.string_at("device.arch"), here.device_arch);
  if (scope == "sm_count" && body.int_at("device.sms") != here.device_sms) {
    unmet(receipt, "another number of multiprocessors");
  }
  if (options.same_build) same("build", body.string_at("build.exe"), here.exe);
  const std::string stop = body.string_at("stop.kind");
  if (stop == "error" || stop == "interrupted" || stop == "cancelled") {
    unmet(receipt, "the reply was ended by: " + stop);
  }
  if (!receipt.attached.prompt_ids) unmet(receipt, "no prompt ids are attached");
}

ReplayTask task_of(const Receipt& receipt) {
  const Value& body = receipt.body;
  ReplayTask task;
  task.prompt_ids = *receipt.attached.prompt_ids;
  Sampling& sampling = task.sampling;
  sampling.kind = body.string_at("task.sampling.kind");
  if (sampling.kind == "sample") {
    sampling.temperature = f32_of(body.string_at("task.sampling.temperature"));
    sampling.top_p = f32_of(body.string_at("task.sampling.top_p"));
    sampling.min_p = f32_of(body.string_at("task.sampling.min_p"));
    sampling.top_k = body.int_at("task.sampling.top_k");
    sampling.rng = body.string_at("task.sampling.rng");
    sampling.seed = std::stoull(body.string_at("task.sampling.seed"), nullptr, 16);
  }
  const Value* stop_ids = body.find("task.stop_ids");
  if (stop_ids != nullptr && !body.bool_at("task.ignore_eos")) {
    for (const Value& id : stop_ids->array())
      task.stop_ids.push_back(static_cast<int>(id.as_int()));
  }
  task.context = body.int_at("limits.context");
  task.max_new = body.int_at("limits.max_new", -1);
  task.want_logits = body.find("out.logits") != nullptr;
  return task;
}

// Whether the sealed stop follows from the ids and the limits; empty if so. A stop text cannot be
// told from its digest, so only that nothing else ended the reply is checked.
std::string stop_problem(const Receipt& receipt, const std::vector<int>& ids,
                         const ReplayTask& task) {
  const std::string stop = receipt.body.string_at("stop.kind");
  const auto is_stop = [&](int id) {
    return std::ranges::find(task.stop_ids, id) != task.stop_ids.end();
  };
  const auto n = static_cast<std::int64_t>(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!is_stop(ids[i])) continue;
    if (i + 1 < ids.size()) return fmt::format("a stop id at token {}, but {} tokens", i + 1, n);
    if (stop != "eos") return "ends with a stop id, sealed is " + stop;
    if (receipt.body.int_at("stop.id") != ids[i]) return "stop.id is not the last id";
    return {};
  }
  if (stop == "eos") return "sealed is eos, but the last id is no stop id";
  const std::int64_t room = task.context - static_cast<std::int64_t>(task.prompt_ids.size());
  if (stop == "limit" && n != task.max_new) return "sealed is limit, but the limit is not reached";
  if (stop == "context" && n < room) {
    return fmt::format("sealed is context, but {} of {} tokens fit", n, room);
  }
  if (stop == "stop_text" && receipt.body.find("task.stop_texts") == nullptr) {
    return "sealed is stop_text, but there are no stop texts";
  }
  return {};
}

std::string problem_list(const std::vector<std::int64_t>& misses) {
  std::string out;
  for (std::size_t i = 0; i < misses.size() && i < 8; ++i) out += fmt::format(" {}", misses[i]);
  return misses.size() > 8 ? out + " ..." : out;
}

// First of the logits' digests that differs from the attached ones, 0 if none does or none are
// there.
std::int64_t first_other_logits(const Receipt& receipt, const std::vector<std::string>& logits) {
  if (!receipt.attached.logits) return 0;
  const auto& sealed = *receipt.attached.logits;
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    if (i >= logits.size() || logits[i] != sealed[i]) return static_cast<std::int64_t>(i) + 1;
  }
  return 0;
}

}  // namespace

Answer replay(const Receipt& receipt, Replayer& replayer, const ReplayOptions& options) {
  const ReplayerFacts here = replayer.facts();
  must_match(receipt, here, options);
  const Value& body = receipt.body;
  if (body.string_at("sched.cache") == "resumed" && body.int_at("sched.cached_n") == 0) {
    unmet(receipt, "a resumed cache that does not say how much it held");
  }
  const BinderChoice choice = choose_binder(receipt, options.redaction_key);
  if (!choice.known) unmet(receipt, "its digests need the key of redaction.key_id");
  ReplayTask task = task_of(receipt);
  task.mode = options.as.empty() ? mode_word(body) : options.as;
  const std::int64_t n = body.int_at("out.n");
  const bool by_text = body.string_at("stop.kind") == "stop_text";
  if (by_text) task.max_new = n;  // the text is known as a digest alone
  const Replayed again = replayer.run(task);
  if (again.stop == "error") {
    throw Failure(Status::fault, receipt.what + ": the replay met logits that are not finite");
  }

  const bool same_ids =
      bind_hex(choice.binder, "ids", {ids_bytes(again.ids)}) == body.string_at("out.ids");
  std::int64_t first = 0, last = 0, agreed = static_cast<std::int64_t>(again.ids.size());
  if (!same_ids) {
    if (receipt.attached.ids) {
      const auto& ids = *receipt.attached.ids;
      agreed = std::mismatch(ids.begin(), ids.end(), again.ids.begin(), again.ids.end()).first -
               ids.begin();
      first = last = agreed + 1;
    } else {
      const std::int64_t stride = body.int_at("out.chain.stride");
      const auto task_digest = digest_from_hex(body.string_at("task.sha256"));
      const auto marks = chain_marks(choice.binder, *task_digest, again.ids, stride);
      const Value* sealed = body.find("out.chain.marks");
      std::size_t i = 0;
      while (sealed != nullptr && i < marks.size() && i < sealed->array().size() &&
             sealed->array()[i].as_string() == marks[i]) {
        ++i;
      }
      agreed = std::min(static_cast<std::int64_t>(i) * stride, n);
      first = agreed + 1;
      last = std::min(agreed + stride, std::max(n, first));
    }
  }
  const bool same_stop = by_text || again.stop == body.string_at("stop.kind");
  const std::int64_t other_logits = first_other_logits(receipt, again.logits);
  const bool same = same_ids && same_stop && other_logits == 0;
  Answer answer;
  answer.status = same ? Status::holds : Status::false_claim;
  const Tone tone = same ? Tone::good : Tone::bad;
  std::string line = fmt::format("replay {} with {}: ", task.mode, short_hex(here.exe));
  if (same_ids) {
    line += fmt::format("{}/{} tokens same", n, n);
  } else if (first == last) {
    line += fmt::format("tokens DIFFER first at {}", first);
  } else {
    line += fmt::format("tokens DIFFER first in {}-{}", first, last);
  }
  line += by_text     ? ", stop text not checked"
          : same_stop ? ", stop same"
                      : ", stop DIFFERS: " + again.stop;
  if (receipt.attached.logits) {
    line += other_logits == 0 ? ", logits same"
                              : fmt::format(", logits DIFFER first at {}", other_logits);
  }
  answer.lines.push_back({line, tone});
  answer.lines.push_back(
      {fmt::format("recorded {} {} replayed {}", mode_name(body), same ? "==" : "!=", task.mode),
       tone});
  answer.json.set("replay", task.mode);
  answer.json.set("build", here.exe);
  answer.json.set("tokens", same_ids ? "same" : "differ");
  if (!same_ids) {
    answer.json.set("first", first);
    answer.json.set("last", last);
  }
  answer.json.set("stop", by_text ? "not checked" : same_stop ? "same" : "differs");
  if (receipt.attached.logits) answer.json.set("logits", other_logits == 0 ? "same" : "differ");
  if (other_logits > 0) answer.json.set("logits_first", other_logits);
  return answer;
}

Answer score(const Receipt& receipt, Replayer& replayer, const ReplayOptions& options) {
  const ReplayerFacts here = replayer.facts();
  must_match(receipt, here, options);
  if (!receipt.attached.ids) unmet(receipt, "no ids are attached, and only they can be scored");
  const BinderChoice choice = choose_binder(receipt, options.redaction_key);
  if (!choice.known) unmet(receipt, "its digests need the key of redaction.key_id");
  const std::vector<int>& ids = *receipt.attached.ids;
  if (ids.empty()) unmet(receipt, "no tokens to score");
  const ReplayTask task = task_of(receipt);
  const Scored scored = replayer.score(task, ids);
  if (scored.nonfinite > 0 || scored.chosen.size() != ids.size()) {
    throw Failure(Status::fault,
                  fmt::format("{}: scoring gave {} of {} positions, {} not finite", receipt.what,
                              scored.chosen.size(), ids.size(), scored.nonfinite));
  }
  std::vector<std::int64_t> misses;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (scored.chosen[i] != ids[i]) misses.push_back(static_cast<std::int64_t>(i) + 1);
  }
  const std::string stop = stop_problem(receipt, ids, task);
  const std::int64_t other_logits = first_other_logits(receipt, scored.logits);
  const bool good = misses.empty() && stop.empty() && other_logits == 0;
  Answer answer;
  // Without a width-invariant contract a miss may be a near tie; the margin is not known here.
  const bool invariant = receipt.body.bool_at("arith.width_invariant");
  answer.status = good                         ? Status::holds
                  : invariant || !stop.empty() ? Status::false_claim
                                               : Status::unmet;
  std::string line = fmt::format("score {}/{} positions, {}{}, {} in {}", ids.size(), ids.size(),
                                 counted(std::ssize(misses), "miss", "misses"),
                                 misses.empty() ? "" : " at" + problem_list(misses),
                                 counted(scored.passes, "pass", "passes"), short_time(scored.ns));
  if (const std::int64_t ns = receipt.body.int_at("time.decode_ns"); ns > 0) {
    line += fmt::format(" (decoding took {})", short_time(ns));
  }
  if (receipt.attached.logits) {
    line += other_logits == 0 ? ", logits same"
                              : fmt::format(", logits DIFFER first at {}", other_logits);
  }
  answer.lines.push_back({line, good ? Tone::good : Tone::bad});
  if (!stop.empty()) answer.lines.push_back({"stop: " + stop, Tone::bad});
  if (receipt.body.string_at("stop.kind") == "stop_text") {
    answer.lines.push_back({"stop text not checked: only its digest is sealed", Tone::dim});
  }
  answer.lines.push_back({good ? "consistent: these ids are what this package says for this task"
                               : "NOT what this package says for this task",
                          good ? Tone::good : Tone::bad});
  Value::Array list;
  for (const std::int64_t miss : misses) list.emplace_back(miss);
  answer.json.set("positions", static_cast<std::int64_t>(ids.size()));
  answer.json.set("misses", std::move(list));
  answer.json.set("stop", stop.empty() ? "consistent" : stop);
  answer.json.set("passes", scored.passes);
  answer.json.set("score_ns", scored.ns);
  if (receipt.attached.logits) answer.json.set("logits", other_logits == 0 ? "same" : "differ");
  return answer;
}

}  // namespace bolt::receipts
