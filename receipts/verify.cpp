// Checks run from the outside in: form, then the body against itself, then what is attached, then
// who signed, then the receipts it stands on.
#include "receipts/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "receipts/digest.h"
#include "receipts/invariants.h"
#include "receipts/library.h"

namespace bolt::receipts {
namespace {

// Which kind of receipt a parent of this role must be.
std::string kind_of_role(const std::string& role) { return role == "control" ? "run" : role; }

struct Parents {
  int known = 0, found = 0;
  std::string missing;  // the first one
};

// Follows parents to the roots. A rid names its parents' rids, so a cycle needs a broken hash; the
// visited set makes even that end.
Parents follow_parents(const Receipt& receipt, const std::vector<std::string>& folders) {
  Parents result;
  std::set<std::string> path{receipt.rid};
  std::vector<Receipt> open;
  const auto step = [&](const Receipt& child, bool direct) {
    const Value* parents = child.body.find("parents");
    if (parents == nullptr) return;
    std::set<std::string> wanted;
    for (const Value& parent : parents->array()) wanted.insert(parent.string_at("rid"));
    const auto names = find_receipts(wanted, folders);
    for (const Value& parent : parents->array()) {
      const std::string rid = parent.string_at("rid"), role = parent.string_at("role");
      if (direct) ++result.known;
      const auto name = names.find(rid);
      if (name == names.end()) {
        if (result.missing.empty()) result.missing = fmt::format("{} {}", role, rid);
        continue;
      }
      Receipt found = read_receipt(name->second);
      const std::string kind = found.kind();
      if (kind != kind_of_role(role)) {
        throw Failure(Status::malformed,
                      fmt::format("{}: parent {} ({}) is a {}, expected a {}", child.what,
                                  short_hex(rid), found.what, kind, kind_of_role(role)));
      }
      const BinderChoice choice = choose_binder(found, std::nullopt);
      (void)check_invariants(found.body, choice.binder, choice.known, found.what);
      if (direct) ++result.found;
      if (path.insert(rid).second) {
        open.push_back(std::move(found));
      } else if (rid == receipt.rid) {
        throw Failure(Status::malformed, receipt.what + ": is its own ancestor");
      }
    }
  };
  step(receipt, true);
  while (!open.empty()) {
    const Receipt next = std::move(open.back());
    open.pop_back();
    step(next, false);
  }
  return result;
}

// "signature none", "signature unchecked" or who signed.
std::string check_signatures(const Receipt& receipt, const VerifyOptions& options, Value& json) {
  if (options.keys.empty() && (options.require_signed || options.threshold > 1)) {
    throw Failure(Status::trust, receipt.what +
                                     ": signatures are wanted, but no --key is given: a "
                                     "key is never taken from the receipt");
  }
  if (options.keys.empty()) {
    json.set("signature", receipt.envelopes.empty() ? "none" : "unchecked");
    return receipt.envelopes.empty() ? "signature none" : "signature unchecked (no --key)";
  }
  const std::vector<PublicKey> found = signers(receipt, options.keys);
  Value::Array ids;
  std::string names;
  for (const PublicKey& key : found) {
    ids.emplace_back(key.id());
    names += " " + key.id();
  }
  if (!ids.empty()) json.set("signers", std::move(ids));
  if (static_cast<int>(found.size()) < options.threshold) {
    throw Failure(
        Status::trust,
        fmt::format("{}: signed by {} of the given keys, expected {} ({} signature{} there)",
                    receipt.what, found.size(), options.threshold, receipt.envelopes.size(),
                    receipt.envelopes.size() == 1 ? "" : "s"));
  }
  json.set("signature", "ok");
  return "signature ok" + names;
}

Answer verify_pack(const std::string& path, const VerifyOptions& options) {
  ReceiptReader reader(LineReader::open(path), path, true);
  VerifyOptions each = options;
  each.folders.clear();  // the one parent is looked for once, below
  each.need_parents = false;
  std::vector<std::pair<std::int64_t, Digest>> runs;  // line number, rid
  std::string session, closing;
  std::optional<Receipt> closed;
  Answer answer;
  while (std::optional<Receipt> receipt = reader.next()) {
    if (closed) {
      throw Failure(Status::malformed, receipt->what + ": stands after the session was closed");
    }
    Answer one = verify(*receipt, each);
    const Value* parents = receipt->body.find("parents");
    std::string parent;
    if (parents != nullptr) {
      for (const Value& p : parents->array()) {
        if (p.string_at("role") == "session") parent = p.string_at("rid");
      }
    }
    if (parent.empty()) {
      throw Failure(Status::malformed,
                    receipt->what + ": names no session, as receipts of a pack do");
    }
    if (session.empty()) session = parent;
    if (parent != session) {
      throw Failure(Status::malformed,
                    fmt::format("{}: of session {}, the pack is of {}", receipt->what,
                                short_hex(parent), short_hex(session)));
    }
    if (receipt->kind() == "session") {
      closed = std::move(receipt);
    } else {
      runs.emplace_back(receipt->body.int_at("request.line"), *digest_from_hex(receipt->rid));
    }
  }
  std::stable_sort(runs.begin(), runs.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (closed) {
    std::vector<Digest> rids;
    for (const auto& [line, rid] : runs) rids.push_back(rid);
    const std::string root = hex(merkle_root(rids)),
                      sealed = closed->body.string_at("session.root");
    const std::int64_t answered = closed->body.int_at("session.answered");
    if (answered != static_cast<std::int64_t>(runs.size()) || root != sealed) {
      throw Failure(
          Status::malformed,
          fmt::format("{}: session.root {} over {}, those in the pack ({}) give {}", closed->what,
                      short_hex(sealed), counted(answered, "run"), runs.size(), short_hex(root)));
    }
  }
  const auto found = find_receipts({session}, options.folders);
  answer.lines.push_back(
      {fmt::format("pack ok: {}, session {} {}", counted(std::ssize(runs), "sealed run"),
                   short_hex(session),
                   closed ? "closed, root ok" : "NOT closed: it may be cut short"),
       closed ? Tone::good : Tone::bad});
  answer.lines.push_back(
      {fmt::format("session receipt {}", found.empty() ? "not found" : "found")});
  answer.json.set("receipts", static_cast<std::int64_t>(runs.size()));
  answer.json.set("closed", closed.has_value());
  answer.json.set("session", session);
  if (options.need_parents && (found.empty() || !closed)) {
    throw Failure(Status::unmet, fmt::format("{}: {}", path,
                                             found.empty() ? "the session's receipt is not found"
                                                           : "the session was never closed"));
  }
  answer.json.set("exit", static_cast<std::int64_t>(answer.status));
  return answer;
}

}  // namespace

BinderChoice choose_binder(const Receipt& receipt,
                           const std::optional<std::array<std::uint8_t, 32>>& redaction_key) {
  const std::string mode = receipt.body.string_at("redaction.mode");
  if (mode.empty() || mode == "plain") return {};
  std::optional<std::array<std::uint8_t, 32>> key;
  if (mode == "salted" && receipt.attached.salt) {
    key.emplace();
    std::memcpy(key->data(), receipt.attached.salt->data(), key->size());
  } else if (mode == "keyed") {
    key = redaction_key;
  }
  if (!key) return {Binder(), false};
  Binder binder(*key);
  if (mode == "keyed" && binder.key_id() != receipt.body.string_at("redaction.key_id")) {
    throw Failure(Status::unmet,
                  fmt::format("{}: redaction.key_id {} is not of the given key", receipt.what,
                              short_hex(receipt.body.string_at("redaction.key_id"))));
  }
  return {binder, true};
}

Answer verify(const Receipt& receipt, const VerifyOptions& options) {
  Answer answer;
  Value& json = answer.json;
  json.set("rid", receipt.rid);
  json.set("kind", receipt.kind());
  const BinderChoice choice = choose_binder(receipt, options.redaction_key);
  const InvariantCount invariants =
      check_invariants(receipt.body, choice.binder, choice.known, receipt.what);
  const std::string unchecked =
      check_attachments(receipt.body, receipt.attached, choice.binder, choice.known, receipt.what);
  json.set("invariants", invariants.held);
  std::string line =
      fmt::format("seal ok  canonical ok  invariants {}/{}", invariants.held, kInvariants);
  const std::string attached = receipt.attached.list();
  if (attached.empty()) {
    line += receipt.kind() == "run" ? "  nothing attached" : "";
  } else {
    line += fmt::format("  {} attached {}", attached, unchecked.empty() ? "ok" : "UNCHECKED");
    json.set("attached", attached);
  }
  json.set("attachments_checked", unchecked.empty());
  if (!options.challenge.empty() && receipt.body.string_at("challenge") != options.challenge) {
    const std::string found = receipt.body.string_at("challenge");
    throw Failure(Status::unmet,
                  fmt::format("{}: challenge is {}, expected {}: it may be an old "
                              "receipt",
                              receipt.what, found.empty() ? "absent" : found, options.challenge));
  }
  line += "  " + check_signatures(receipt, options, json);
  answer.lines.push_back({line, Tone::good});
  if (!invariants.unchecked.empty()) {
    answer.lines.push_back({"not checked: " + invariants.unchecked, Tone::bad});
    json.set("unchecked", invariants.unchecked);
  }
  const Parents parents = follow_parents(receipt, options.folders);
  if (parents.known > 0) {
    answer.lines.push_back({fmt::format("parents {} of {} found", parents.found, parents.known)});
    json.set("parents", parents.known);
    json.set("parents_found", parents.found);
  }
  if (options.need_parents && !parents.missing.empty()) {
    throw Failure(Status::unmet, fmt::format("{}: parent {} is not found; look further with "
                                             "--receipts DIR",
                                             receipt.what, parents.missing));
  }
  answer.lines.push_back({json.string_at("signature") == "ok"
                              ? "says: unchanged since sealing, and who signed. does not say: true"
                              : "says: unchanged since sealing. does not say: true",
                          Tone::dim});
  json.set("exit", static_cast<std::int64_t>(answer.status));
  return answer;
}

Answer verify_file(const std::string& name, const VerifyOptions& options) {
  const auto [path, number] = split_pack_name(name);
  VerifyOptions own = options;
  if (path != "-") own.folders.insert(own.folders.begin(), folder_of(path));
  if (number == 0 && is_pack_name(path)) return verify_pack(path, own);
  return verify(read_receipt(name), own);
}

}  // namespace bolt::receipts
