// There is one right seal for a body; anything else is compared field by field only to say what is
// wrong with it.
#include "receipts/seal.h"

#include <fmt/format.h>

#include "receipts/canonical.h"
#include "receipts/digest.h"
#include "receipts/display.h"
#include "receipts/status.h"

namespace bolt::receipts {

std::string rid_of(std::string_view body) { return sha256_hex(body); }

std::string seal_line(std::string_view body) {
  return fmt::format(
      R"({{"_type":"bolt.seal/1","alg":"sha256","bytes":{},"canon":"jcs-int/1","rid":"{}"}})",
      body.size(), rid_of(body));
}

std::string changed_since_sealing(std::string_view body, std::string_view line) {
  constexpr std::string_view kSealStart = R"({"_type":"bolt.seal/)", kRid = R"("rid":")";
  constexpr std::size_t kDigits = 64;
  const std::size_t at = line.find(kRid);
  if (!line.starts_with(kSealStart) || at == std::string_view::npos) return {};
  const std::string_view named = line.substr(at + kRid.size(), kDigits);
  const std::string found = rid_of(body);
  if (named == found) return {};
  return fmt::format("changed since sealing: the seal names rid {}, these bytes have {}",
                     inert(named), found);
}

std::string check_seal(std::string_view body, std::string_view line, const std::string& what) {
  const std::string expected = seal_line(body);
  const Value right = read_canonical(expected, what);
  if (line == expected) return right.string_at("rid");
  const Value found = read_canonical(line, what + ": seal", 4096);
  if (!found.is_object()) throw Failure(Status::malformed, what + ": line 2 is no seal");
  const auto text = [](const Value* v) {
    return v == nullptr ? std::string("nothing") : inert(canonical(*v).substr(0, 100));
  };
  for (const auto& [key, value] : right.object()) {
    const Value* other = found.find(key);
    if (other == nullptr || !(*other == value)) {
      throw Failure(Status::malformed, fmt::format("{}: seal field {}: expected {}, found {}", what,
                                                   key, text(&value), text(other)));
    }
  }
  throw Failure(Status::malformed, what + ": the seal has a field that seals do not have");
}

}  // namespace bolt::receipts
