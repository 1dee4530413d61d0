// Line 2: the seal. rid = SHA-256 of line 1's raw bytes, so that sha256sum and others agree.
#pragma once

#include <string>
#include <string_view>

namespace bolt::receipts {

std::string rid_of(std::string_view body);

// {"_type":"bolt.seal/1","alg":"sha256","bytes":N,"canon":"jcs-int/1","rid":"..."}, without LF.
std::string seal_line(std::string_view body);

// What to say where `line` is a seal that names another rid than the body's bytes have; empty
// otherwise. Neither line need be well-formed.
std::string changed_since_sealing(std::string_view body, std::string_view line);

// Checks `line` as the seal of `body`; returns the rid. Throws Failure(malformed).
std::string check_seal(std::string_view body, std::string_view line, const std::string& what);

}  // namespace bolt::receipts
