// Reading package.json: its seal, then every field.
#include "core/pack/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/contract.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/sha256.h"
#include "core/pack/file_kind.h"

namespace bolt {
namespace {

constexpr std::string_view kFormatVersion = "bolt-package/1";
constexpr std::size_t kFilesMax = 100'000;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  });
  return text;
}

// The seal: the last member is the SHA-256 of every byte before that member.
void check_seal(const std::string& name, std::string_view text) {
  const std::size_t at = text.rfind(" \"sha256\": \"");
  const std::string digest = at == text.npos ? "" : sha256_hex(text.substr(0, at));
  if (at == text.npos || text.substr(at) != fmt::format(" \"sha256\": \"{}\"\n}}\n", digest)) {
    throw Error(Exit::input,
                fmt::format("{}: its last line does not hold the SHA-256 of what stands before "
                            "({}); the file was changed, run `bolt convert` again",
                            name, digest.empty() ? "no such line" : digest));
  }
}

void require_sha256(const JsonValue& value) {
  if (!is_sha256_hex(std::string(value.string()))) value.fail("64 hexadecimal digits");
}

// Who made the package of what: told to people and receipts only, but told as it was written.
void read_origin(const JsonValue& root, Manifest& manifest) {
  (void)root.at("bolt").string();
  require_sha256(root.at("arithmetic").at("sha256"));
  root.at("arithmetic").only({"id", "sha256"});
  if (!root.at("options").is_object()) root.at("options").fail("an object");
  const JsonValue source = root.at("source");
  source.only({"name", "files"});
  manifest.source = source.at("name").string();
  for (const JsonValue& file : source.at("files").items()) {
    file.only({"path", "bytes", "sha256"});
    (void)file.at("path").string();
    (void)file.at("bytes").unsigned_integer();
    require_sha256(file.at("sha256"));
  }
}

void read_list(const JsonValue& list, Manifest& manifest) {
  const auto items = list.items();
  if (items.empty() || items.size() > kFilesMax) list.fail("a list of files");
  std::set<std::string> seen{"package.json"};
  std::string before;
  for (const JsonValue& item : items) {
    item.only({"path", "role", "bytes", "sha256"});
    PackageFile file;
    const JsonValue path = item.at("path");
    file.path = path.string();
    const std::string_view fault = path_fault(file.path);
    if (!fault.empty()) {
      throw Error(Exit::input,
                  fmt::format("{}: the file name {} {}, expected one inside the package",
                              path.where(), path.shown(), fault));
    }
    if (file.path.find('/') != std::string::npos) path.fail("a file right inside the package");
    if (!seen.insert(lower(file.path)).second)
      path.fail("a name that no other file has, letter case aside");
    if (file.path < before) path.fail("names in order");
    before = file.path;
    const JsonValue role = item.at("role");
    file.role = role.string();
    static const std::set<std::string> kRoles{"graph",       "config",  "tokenizer",
                                              "draft_vocab", "payload", "drafter"};
    if (!kRoles.contains(file.role))
      role.fail("graph, config, tokenizer, draft_vocab, payload or drafter");
    file.bytes = item.at("bytes").unsigned_integer();
    require_sha256(item.at("sha256"));
    file.sha256 = item.at("sha256").string();
    manifest.files.push_back(std::move(file));
  }
}

}  // namespace

Manifest parse_manifest(const std::string& name, std::string_view text) {
  const JsonDocument document = JsonDocument::parse(name, text);
  const JsonValue root = document.root();
  const JsonValue format = root.at("format");
  if (format.string() != kFormatVersion) {
    format.fail(fmt::format("\"{}\"; this bolt reads no other format, run its `bolt convert` again",
                            kFormatVersion));
  }
  check_seal(name, text);
  root.only({"format", "bolt", "arithmetic", "source", "options", "files", "sha256"});
  Manifest manifest;
  const JsonValue arithmetic = root.at("arithmetic");
  manifest.arith_id = arithmetic.at("id").string();
  manifest.arith_sha256 = arithmetic.at("sha256").string();
  if (manifest.arith_id != kContractId) {
    throw Error(Exit::unmet,
                fmt::format("{}: made for the arithmetic contract {}, this bolt computes {}", name,
                            manifest.arith_id, kContractId));
  }
  read_origin(root, manifest);
  read_list(root.at("files"), manifest);
  return manifest;
}

}  // namespace bolt
