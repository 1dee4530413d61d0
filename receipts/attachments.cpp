// An attachment is canonical JSON with its fields in the one possible order, so it is read with a
// cursor: a list of a million ids takes four bytes an id, not a tree.
#include "receipts/attachments.h"

#include <fmt/format.h>

#include <climits>

#include "receipts/body.h"
#include "receipts/status.h"

namespace bolt::receipts {
namespace {

constexpr std::string_view kKinds[] = {"salt", "prompt_ids", "ids",  "prompt_text",
                                       "text", "logits",     "state"};

[[noreturn]] void malformed(const std::string& what, const std::string& problem) {
  throw Failure(Status::malformed, what + ": " + problem);
}

void append_line(std::string& out, std::string_view kind, std::string_view rid,
                 std::string_view data_key, const std::string& data) {
  // "data" sorts before "kind" and "of".
  out += fmt::format(R"({{"_type":"bolt.attachment/1","{}":{},"kind":"{}","of":"{}"}})", data_key,
                     data, kind, rid);
  out += '\n';
}

std::string int_list(const std::vector<int>& ids) {
  std::string out = "[";
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(ids[i]);
  }
  return out + "]";
}

std::string text_list(const std::vector<std::string>& texts) {
  return canonical(Value::Array(texts.begin(), texts.end()));
}

void append_text(std::string& out, std::string_view kind, std::string_view rid,
                 const std::string& text) {
  if (first_bad_utf8(text) == std::string_view::npos) {
    std::string quoted;
    append_quoted(quoted, text);
    append_line(out, kind, rid, "data", quoted);
  } else {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
    append_line(out, kind, rid, "data_hex", "\"" + hex({bytes, text.size()}) + "\"");
  }
}

std::vector<int> read_ids(Cursor& cursor) {
  std::vector<int> ids;
  cursor.expect('[');
  if (cursor.accept(']')) return ids;
  do {
    const std::int64_t id = cursor.integer();
    if (id < 0 || id > INT_MAX) cursor.fail("an id that is none");
    ids.push_back(static_cast<int>(id));
  } while (cursor.accept(','));
  cursor.expect(']');
  return ids;
}

std::vector<std::string> read_digests(Cursor& cursor) {
  std::vector<std::string> digests;
  cursor.expect('[');
  if (cursor.accept(']')) return digests;
  do {
    digests.push_back(cursor.string());
    if (!digest_from_hex(digests.back())) cursor.fail("a digest that is none");
  } while (cursor.accept(','));
  cursor.expect(']');
  return digests;
}

std::string read_hex(Cursor& cursor) {
  auto bytes = bytes_from_hex(cursor.string());
  if (!bytes) cursor.fail("data_hex that is no lower-case hex");
  return std::move(*bytes);
}

struct Check {
  const Value& body;
  const std::string& what;

  void same(std::string_view field, const std::string& found, std::string_view kind) const {
    const std::string sealed = body.string_at(field);
    if (sealed == found) return;
    malformed(what, fmt::format("attachment {}: digest {} does not match sealed {} {}", kind, found,
                                field, sealed.empty() ? "(absent)" : sealed));
  }
};

}  // namespace

std::string Attachments::list() const {
  const bool has[] = {salt.has_value(),        prompt_ids.has_value(), ids.has_value(),
                      prompt_text.has_value(), text.has_value(),       logits.has_value(),
                      state.has_value()};
  std::string out;
  for (std::size_t i = 0; i < std::size(kKinds); ++i) {
    if (!has[i]) continue;
    if (!out.empty()) out += ", ";
    out += kKinds[i];
  }
  return out;
}

std::string attachment_lines(const RunFacts& facts, std::string_view rid) {
  std::string out;
  if (facts.redaction.mode == Redaction::Mode::salted) {
    append_line(out, "salt", rid, "data_hex", "\"" + hex(facts.redaction.key) + "\"");
  }
  const Attach& attach = facts.attach;
  if (attach.ids) {
    append_line(out, "prompt_ids", rid, "data", int_list(facts.task.prompt_ids));
    append_line(out, "ids", rid, "data", int_list(facts.out.ids));
  }
  if (attach.text && facts.task.has_prompt_text) {
    append_text(out, "prompt_text", rid, facts.task.prompt_text);
  }
  if (attach.text && facts.out.has_text) append_text(out, "text", rid, facts.out.text);
  if (attach.logits && !facts.out.logits.empty()) {
    append_line(out, "logits", rid, "data", text_list(facts.out.logits));
  }
  if (attach.state && !facts.out.state.empty()) {
    append_line(out, "state", rid, "data", text_list(facts.out.state));
  }
  return out;
}

void read_attachment(std::string_view line, std::string_view rid, const std::string& what,
                     Attachments& to, int& last_rank) {
  // The kind stands behind the data, and says how to read them: look for it at the end first.
  Cursor cursor(line, what);
  cursor.expect(R"({"_type":"bolt.attachment/1",)");
  const std::string tail = fmt::format(R"(","of":"{}"}})", rid);
  const std::size_t kind_at = line.rfind(R"(,"kind":")");
  const std::size_t of_at = line.rfind(R"(","of":")");
  if (kind_at == std::string_view::npos || of_at == std::string_view::npos || of_at < kind_at + 9) {
    malformed(what, "attachment without kind and of");
  }
  if (line.substr(of_at) != tail) {
    malformed(what, fmt::format("attachment of another receipt, expected of {}", rid));
  }
  const std::string_view kind = line.substr(kind_at + 9, of_at - kind_at - 9);
  int rank = 0;
  for (std::size_t i = 0; i < std::size(kKinds); ++i) {
    if (kKinds[i] == kind) rank = static_cast<int>(i) + 1;
  }
  if (rank == 0) malformed(what, "attachment of an unknown kind");
  if (rank == last_rank) malformed(what, fmt::format("attachment {} twice", kind));
  if (rank < last_rank) malformed(what, fmt::format("attachment {} out of order", kind));
  last_rank = rank;

  const bool is_text = kind == "prompt_text" || kind == "text";
  const bool as_hex = line.substr(cursor.offset()).starts_with(R"("data_hex":)");
  if (as_hex && !is_text && kind != "salt")
    malformed(what, "data_hex for something that is no text");
  cursor.expect(as_hex ? R"("data_hex":)" : R"("data":)");
  if (kind == "salt") {
    if (!as_hex) malformed(what, "a salt that is not data_hex");
    to.salt = read_hex(cursor);
    if (to.salt->size() != 32) malformed(what, "a salt that has not 32 bytes");
  } else if (is_text) {
    std::string text = as_hex ? read_hex(cursor) : cursor.string();
    if (as_hex && first_bad_utf8(text) == std::string_view::npos) {
      malformed(what, "UTF-8 text given as data_hex");
    }
    (kind == "text" ? to.text : to.prompt_text) = std::move(text);
  } else if (kind == "ids" || kind == "prompt_ids") {
    (kind == "ids" ? to.ids : to.prompt_ids) = read_ids(cursor);
  } else {
    (kind == "logits" ? to.logits : to.state) = read_digests(cursor);
  }
  if (cursor.offset() != kind_at) cursor.fail("something between data and kind");
}

std::string check_attachments(const Value& body, const Attachments& attached, const Binder& binder,
                              bool have_key, const std::string& what) {
  const Check check{body, what};
  if (!attached.list().empty() && body.string_at("kind") != "run") {
    malformed(what, "attachments on a receipt that is no run");
  }
  // Lengths are sealed in clear, so they are checked even without the key.
  const auto count = [&](std::string_view field, std::size_t n, std::string_view kind) {
    const std::int64_t sealed = body.int_at(field, -1);
    if (sealed != static_cast<std::int64_t>(n)) {
      malformed(what,
                fmt::format("attachment {}: {} ids, sealed {} is {}", kind, n, field, sealed));
    }
  };
  if (attached.prompt_ids) count("task.prompt_n", attached.prompt_ids->size(), "prompt_ids");
  if (attached.ids) count("out.n", attached.ids->size(), "ids");
  if (attached.logits) count("out.n", attached.logits->size(), "logits");
  if (attached.salt && body.string_at("redaction.mode") != "salted") {
    malformed(what, "a salt on a receipt that is not salted");
  }
  if (!have_key) return attached.list();

  if (attached.salt && body.string_at("redaction.key_id") != binder.key_id()) {
    malformed(what, "attachment salt: not the one that redaction.key_id names");
  }
  if (attached.prompt_ids) {
    check.same("task.prompt_ids", bind_hex(binder, "ids", {ids_bytes(*attached.prompt_ids)}),
               "prompt_ids");
  }
  if (attached.ids) {
    check.same("out.ids", bind_hex(binder, "ids", {ids_bytes(*attached.ids)}), "ids");
    const auto task = digest_from_hex(body.string_at("task.sha256"));
    const std::int64_t stride = body.int_at("out.chain.stride");
    const Value* sealed = body.find("out.chain.marks");
    const auto marks = chain_marks(binder, task.value_or(Digest{}), *attached.ids, stride);
    for (std::size_t i = 0; i < marks.size(); ++i) {
      const std::string& mark = sealed->array()[i].as_string();
      if (mark != marks[i]) {
        malformed(what,
                  fmt::format("out.chain.marks[{}]: sealed {}, the attached ids and task give "
                              "{}: this outcome belongs to another request",
                              i, mark, marks[i]));
      }
    }
  }
  if (attached.prompt_text) {
    check.same("task.text", bind_hex(binder, "text", {*attached.prompt_text}), "prompt_text");
  }
  if (attached.text) check.same("out.text", bind_hex(binder, "text", {*attached.text}), "text");
  if (attached.logits) {
    check.same("out.logits", digest_list(binder, "logits", *attached.logits), "logits");
  }
  if (attached.state) {
    check.same("out.state.sha256", digest_list(binder, "state", *attached.state), "state");
  }
  return {};
}

}  // namespace bolt::receipts
