// Digests and marks decide; attached ids only sharpen where the difference is.
#include "receipts/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "receipts/fields.h"
#include "receipts/show.h"

namespace bolt::receipts {
namespace {

bool same_at(const Value& a, const Value& b, std::string_view path) {
  const Value* x = a.find(path);
  const Value* y = b.find(path);
  if (x == nullptr || y == nullptr) return x == y;
  return *x == *y;
}

const char* same_word(bool same) { return same ? "same" : "differs"; }

// Salted receipts have a salt each: their digests say nothing to each other, their contents do.
bool compares_by_content(const Receipt& a, const Receipt& b) {
  const auto salted = [](const Receipt& r) {
    return r.body.string_at("redaction.mode") == "salted";
  };
  return salted(a) && salted(b) && !same_at(a.body, b.body, "redaction.key_id");
}

bool has_content(const Receipt& r) {
  return r.attached.salt && r.attached.prompt_ids && r.attached.ids &&
         r.body.find("task.stop_texts") == nullptr;
}

std::vector<std::string> differing_task_fields(const Receipt& a, const Receipt& b,
                                               bool by_content) {
  std::vector<std::string> names;
  for (const Field& field : fields()) {
    const std::string_view path = field.path;
    if (field.column != 'T' || field.type == FieldType::object || path.starts_with("limits") ||
        path.find("[]") != std::string_view::npos || path.starts_with("plan")) {
      continue;
    }
    const bool bound =
        path == "task.prompt_ids" || path == "task.sha256" || path == "redaction.key_id";
    if (by_content && bound) continue;
    if (!same_at(a.body, b.body, path)) names.emplace_back(path);
  }
  if (by_content && *a.attached.prompt_ids != *b.attached.prompt_ids) {
    names.emplace_back("task.prompt_ids");
  }
  if (names.size() > 1) std::erase(names, "task.sha256");  // it only follows from the others
  // One word for all that differs in how tokens were chosen.
  const auto is_sampling = [](const std::string& name) {
    return name.starts_with("task.sampling.");
  };
  if (std::erase_if(names, is_sampling) > 0) names.emplace_back("task.sampling");
  return names;
}

// "payload, config": roles whose files differ between two packages; empty where they are the same
// or a receipt does not list its files. Every difference shows in the manifest, too, which is named
// where nothing else is.
std::string differing_roles(const Value& a, const Value& b) {
  const Value* x = a.find("package.files");
  const Value* y = b.find("package.files");
  if (x == nullptr || y == nullptr || same_at(a, b, "package.sha256")) return {};
  const auto by_role = [](const Value& files) {
    std::map<std::string, std::vector<std::string>> roles;
    for (const Value& file : files.array()) {
      auto& digests = roles[file.string_at("role")];
      digests.push_back(file.string_at("sha256"));
    }
    return roles;
  };
  auto of_a = by_role(*x), of_b = by_role(*y);
  std::string names;
  for (const char* role : {"payload", "graph", "config", "tokenizer", "drafter", "draft_vocab"}) {
    if (of_a[role] != of_b[role]) names += (names.empty() ? "" : ", ") + std::string(role);
  }
  return !names.empty() ? names : of_a["manifest"] != of_b["manifest"] ? "manifest" : "file names";
}

std::string package_words(const Value& a, const Value& b) {
  if (same_at(a, b, "package.sha256")) return "package same";
  const std::string roles = differing_roles(a, b);
  return "package DIFFERS" + (roles.empty() ? "" : fmt::format(" ({})", roles));
}

std::string why_not_promised(const Value& a, const Value& b) {
  // The promise is of one package: another's reply may be the same, and says nothing of the first.
  if (!same_at(a, b, "package.sha256")) {
    const std::string roles = differing_roles(a, b);
    return "package.sha256 differs" + (roles.empty() ? "" : fmt::format(" ({})", roles));
  }
  for (const char* path :
       {"arith.id", "arith.sha256", "arith.kv", "arith.scope", "arith.width_invariant"}) {
    if (!same_at(a, b, path)) return std::string(path) + " differs";
  }
  const std::string scope = a.string_at("arith.scope");
  if (scope != "any" && !same_at(a, b, "device.arch")) return "device.arch differs";
  if (scope == "sm_count" && !same_at(a, b, "device.sms")) return "device.sms differs";
  for (const Value* body : {&a, &b}) {
    const Value* env = body->find("env");
    if (env == nullptr) continue;
    for (const Value& entry : env->array()) {
      const std::string name = entry.string_at("name");
      if (name == "LD_PRELOAD" || name == "LD_AUDIT" || name == "CUDA_INJECTION64_PATH") {
        return name + " injected code";
      }
    }
  }
  return {};
}

std::string why_barred(const Value& body) {
  if (body.int_at("out.nonfinite") > 0) return "logits were not finite";
  const std::string stop = body.string_at("stop.kind");
  if (stop == "error" || stop == "interrupted" || stop == "cancelled") return "a reply was " + stop;
  return {};
}

// First index at which the lists differ, or the shorter's length.
template <class T>
std::int64_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

void compare_by_ids(const std::vector<int>& a, const std::vector<int>& b, Comparison& c) {
  c.agreed = first_difference(a, b);
  const auto n = static_cast<std::int64_t>(std::min(a.size(), b.size()));
  if (c.agreed < n) {
    c.tokens = Tokens::differ;
    c.first = c.last = c.agreed + 1;
  } else {
    c.tokens = a.size() == b.size() ? Tokens::same : Tokens::prefix;
  }
}

const std::string& mark_at(const Value& body, std::int64_t index) {
  return body.find("out.chain.marks")->array()[static_cast<std::size_t>(index)].as_string();
}

// Chain values at tokens that are marks of both: a binary search would do, but lists are short.
void compare_by_marks(const Value& a, const Value& b, Comparison& c) {
  const std::int64_t n_a = a.int_at("out.n"), n_b = b.int_at("out.n");
  const std::int64_t stride_a = a.int_at("out.chain.stride"),
                     stride_b = b.int_at("out.chain.stride");
  const std::int64_t n = std::min(n_a, n_b);
  const auto has_mark = [](std::int64_t token, std::int64_t total, std::int64_t stride) {
    return token == total || token % stride == 0;
  };
  const auto index = [](std::int64_t token, std::int64_t stride) { return (token - 1) / stride; };
  for (std::int64_t token = 1; token <= n; ++token) {
    if (!has_mark(token, n_a, stride_a) || !has_mark(token, n_b, stride_b)) {
      // Jump to the next token that could be a mark of both.
      const std::int64_t stride = std::max(stride_a, stride_b);
      token = std::min(n, (token / stride + 1) * stride) - 1;
      if (token + 1 == n && !(has_mark(n, n_a, stride_a) && has_mark(n, n_b, stride_b))) break;
      continue;
    }
    if (mark_at(a, index(token, stride_a)) != mark_at(b, index(token, stride_b))) {
      c.tokens = Tokens::differ;
      c.first = c.agreed + 1;
      c.last = token;
      return;
    }
    c.agreed = token;
  }
  if (n_a == n_b) {
    const bool same = same_at(a, b, "out.ids");
    c.tokens = same ? Tokens::same : Tokens::differ;
    if (!same) {
      c.first = c.agreed + 1;
      c.last = n;
    }
  } else {
    c.tokens = c.agreed == n ? Tokens::prefix : Tokens::unknown;
  }
}

// The chain of the one whose ids are attached, at the other's length, settles a prefix's tail.
void settle_tail(const Receipt& shorter, const Receipt& longer, Comparison& c) {
  if (c.tokens != Tokens::unknown || !longer.attached.ids) return;
  const BinderChoice choice = choose_binder(longer, std::nullopt);
  if (!choice.known) return;
  const auto n = static_cast<std::size_t>(shorter.body.int_at("out.n"));
  const std::span<const int> head = std::span(*longer.attached.ids).first(n);
  const bool same =
      bind_hex(choice.binder, "ids", {ids_bytes(head)}) == shorter.body.string_at("out.ids");
  c.tokens = same ? Tokens::prefix : Tokens::differ;
  if (!same) {
    c.first = c.agreed + 1;
    c.last = static_cast<std::int64_t>(n);
  } else {
    c.agreed = static_cast<std::int64_t>(n);
  }
}

std::optional<bool> same_if_both(const Value& a, const Value& b, std::string_view path) {
  if (a.find(path) == nullptr || b.find(path) == nullptr) return std::nullopt;
  return same_at(a, b, path);
}

// Exact counters repeat within one mode; how the prompt was chunked is not part of it.
std::optional<bool> counters_same(const Value& a, const Value& b) {
  if (!same_at(a, b, "mode") || a.find("count") == nullptr || b.find("count") == nullptr) return {};
  for (const char* path : {"count.target", "count.segments", "count.rounds", "count.drafted",
                           "count.accepted_at", "count.bonus", "count.cut", "count.copy"}) {
    if (!same_at(a, b, path)) return false;
  }
  return true;
}

// Whether the shorter reply ended only because its own limit was the smaller one.
bool ended_by_own_limit(const Value& shorter, const Value& longer) {
  const std::string stop = shorter.string_at("stop.kind");
  if (stop == "limit") {
    return longer.int_at("limits.max_new", kIntMax) > shorter.int_at("limits.max_new", kIntMax);
  }
  return stop == "context" && longer.int_at("limits.context") > shorter.int_at("limits.context");
}

// Some characters of both texts around their first difference.
void add_text_around(const Receipt& a, const Receipt& b, std::vector<Line>& lines) {
  if (!a.attached.text || !b.attached.text) return;
  const std::string& x = *a.attached.text;
  const std::string& y = *b.attached.text;
  std::size_t at = static_cast<std::size_t>(
      std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin());
  if (at == x.size() && at == y.size()) return;
  std::size_t from = at > 24 ? at - 24 : 0;
  const auto is_tail = [&](std::size_t i) { return i < x.size() && (x[i] & 0xc0) == 0x80; };
  while (from < at && is_tail(from)) ++from;
  for (const std::string* text : {&x, &y}) {
    std::size_t to = std::min(text->size(), at + 24);
    while (to < text->size() && ((*text)[to] & 0xc0) == 0x80) ++to;
    lines.push_back(
        {fmt::format("  {} ...{}", text == &x ? "A" : "B", inert(text->substr(from, to - from)))});
  }
}

Answer compare_conversions(const Receipt& a, const Receipt& b) {
  Answer answer;
  const bool same = same_at(a.body, b.body, "package.sha256");
  answer.status = same ? Status::holds : Status::false_claim;
  answer.lines.push_back(
      {fmt::format("{}  source {}", package_words(a.body, b.body),
                   same_word(same_at(a.body, b.body, "conversion.source_files"))),
       same ? Tone::good : Tone::bad});
  answer.json.set("package", same ? "same" : "differ");
  return answer;
}

}  // namespace

Comparison compare_runs(const Receipt& a, const Receipt& b) {
  Comparison c;
  const bool by_content = compares_by_content(a, b);
  if (by_content && !(has_content(a) && has_content(b))) {
    c.status = Status::unmet;
    c.other_task = {"redaction.key_id"};
    return c;
  }
  c.other_task = differing_task_fields(a, b, by_content);
  if (!c.other_task.empty()) {
    c.status = Status::unmet;
    return c;
  }
  c.not_promised = why_not_promised(a.body, b.body);
  c.promised = c.not_promised.empty();
  c.barred = why_barred(a.body);
  if (c.barred.empty()) c.barred = why_barred(b.body);

  if (a.attached.ids && b.attached.ids) {
    compare_by_ids(*a.attached.ids, *b.attached.ids, c);
  } else {
    compare_by_marks(a.body, b.body, c);
  }
  const bool a_shorter = a.body.int_at("out.n") < b.body.int_at("out.n");
  const Receipt& shorter = a_shorter ? a : b;
  const Receipt& longer = a_shorter ? b : a;
  settle_tail(shorter, longer, c);
  c.stop_same = same_at(a.body, b.body, "stop");
  if (!by_content) {
    c.text_same = same_if_both(a.body, b.body, "out.text");
    c.logits_same = same_if_both(a.body, b.body, "out.logits");
    if (same_at(a.body, b.body, "out.state.boundary")) {
      c.state_same = same_if_both(a.body, b.body, "out.state.sha256");
    }
  }
  if (a.attached.logits && b.attached.logits) {
    const auto n =
        static_cast<std::int64_t>(std::min(a.attached.logits->size(), b.attached.logits->size()));
    const std::int64_t at = first_difference(*a.attached.logits, *b.attached.logits);
    if (at < n) c.logits_first = at + 1;
    if (c.tokens == Tokens::prefix) c.logits_same = at == n;
  }
  c.counters_same = counters_same(a.body, b.body);

  const bool own_limit =
      c.tokens == Tokens::prefix && ended_by_own_limit(shorter.body, longer.body);
  if (c.tokens == Tokens::prefix) {  // of unequal lengths, digests over the whole must differ
    c.text_same = c.state_same = c.counters_same = std::nullopt;
    if (c.logits_first == 0 && !(a.attached.logits && b.attached.logits))
      c.logits_same = std::nullopt;
  }
  if (!own_limit && c.tokens == Tokens::prefix && c.barred.empty()) {
    c.status = Status::false_claim;
  } else if (c.tokens == Tokens::differ || c.logits_same == false || c.state_same == false) {
    c.status = Status::false_claim;
  } else if (!c.barred.empty() || c.tokens == Tokens::unknown) {
    c.status = Status::unmet;
  } else if (c.tokens == Tokens::same &&
             (!c.stop_same || c.text_same == false || c.counters_same == false)) {
    c.status = Status::false_claim;
  }
  return c;
}

Answer compare(const Receipt& a, const Receipt& b, const CompareOptions& options) {
  VerifyOptions verify_options;
  verify_options.redaction_key = options.redaction_key;
  (void)verify(a, verify_options);
  (void)verify(b, verify_options);
  if (a.kind() != b.kind()) {
    throw Failure(Status::unmet, fmt::format("not comparable: {} is a {}, {} a {}", a.what,
                                             a.kind(), b.what, b.kind()));
  }
  if (a.kind() == "conversion") return compare_conversions(a, b);
  if (a.kind() != "run") {
    throw Failure(Status::unmet,
                  fmt::format("not comparable: a {} has nothing to compare", a.kind()));
  }
  const Comparison c = compare_runs(a, b);
  Answer answer;
  answer.status = c.status;
  Value& json = answer.json;
  json.set("a", a.rid);
  json.set("b", b.rid);
  if (!c.other_task.empty()) {
    std::string names;
    for (const std::string& name : c.other_task) names += (names.empty() ? "" : ", ") + name;
    answer.lines.push_back(
        {"not comparable: " + names + (c.other_task.size() > 1 ? " differ" : " differs"),
         Tone::bad});
    json.set("task", "differs");
    json.set("differing", Value::Array(c.other_task.begin(), c.other_task.end()));
    return answer;
  }
  const bool arith = same_at(a.body, b.body, "arith"), build = same_at(a.body, b.body, "build.exe");
  answer.lines.push_back({fmt::format("task same  arith {}  build {}  {}", same_word(arith),
                                      same_word(build), package_words(a.body, b.body))});
  const std::string mode_a = mode_name(a.body), mode_b = mode_name(b.body);
  answer.lines.push_back({"mode " + (mode_a == mode_b ? mode_a : mode_a + "|" + mode_b)});
  std::string line = "tokens ", tokens;
  switch (c.tokens) {
    case Tokens::same:
      tokens = "same";
      line += fmt::format("same ({})", a.body.int_at("out.n"));
      break;
    case Tokens::differ:
      tokens = "differ";
      line += c.first == c.last ? fmt::format("DIFFER first at {}", c.first)
                                : fmt::format("DIFFER first in {}-{}", c.first, c.last);
      break;
    case Tokens::prefix:
      tokens = "prefix";
      line += fmt::format("PREFIX: {} is the first {} of {}",
                          a.body.int_at("out.n") < b.body.int_at("out.n") ? "A" : "B", c.agreed,
                          std::max(a.body.int_at("out.n"), b.body.int_at("out.n")));
      break;
    case Tokens::unknown:
      tokens = "unknown";
      line += fmt::format("unknown after {}: no ids attached", c.agreed);
      break;
  }
  line += fmt::format("  stop {}", same_word(c.stop_same));
  const auto optional = [&](const char* name, const std::optional<bool>& same) {
    if (same) {
      line += fmt::format("  {} {}", name, same_word(*same));
      json.set(name, *same ? "same" : "differ");
    }
  };
  optional("text", c.text_same);
  optional("state", c.state_same);
  optional("logits", c.logits_same);
  if (c.logits_first > 0) line += fmt::format(" first at {}", c.logits_first);
  line += c.counters_same ? fmt::format("  counters {}", same_word(*c.counters_same))
                          : std::string("  counters not compared");
  answer.lines.push_back({line, c.status == Status::holds ? Tone::good : Tone::bad});
  if (c.tokens == Tokens::differ) add_text_around(a, b, answer.lines);
  if (!c.barred.empty()) answer.lines.push_back({"not equal: " + c.barred, Tone::bad});
  if (!c.promised) answer.lines.push_back({"observed, not promised: " + c.not_promised, Tone::bad});
  json.set("task", "same");
  json.set("arith", arith ? "same" : "differs");
  json.set("build", build ? "same" : "differs");
  json.set("package", same_at(a.body, b.body, "package.sha256") ? "same" : "differs");
  json.set("modes", Value::Array{mode_a, mode_b});
  json.set("tokens", tokens);
  if (c.tokens == Tokens::differ) {
    json.set("first", c.first);
    json.set("last", c.last);
  }
  json.set("agreed", c.agreed);
  if (c.logits_first > 0) json.set("logits_first", c.logits_first);
  json.set("stop", c.stop_same ? "same" : "differs");
  json.set("counters", !c.counters_same ? "not compared" : *c.counters_same ? "same" : "differs");
  json.set("promised", c.promised);
  if (!c.promised) json.set("not_promised", c.not_promised);
  if (!c.barred.empty()) json.set("barred", c.barred);
  return answer;
}

}  // namespace bolt::receipts
