// Every field of every kind of receipt, in one table: the reader checks bodies against it, and
// man/bolt-receipt.5 is checked against it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "receipts/canonical.h"

namespace bolt::receipts {

enum class FieldType {
  object,   // its fields have entries of their own
  list,     // of what the entry "path[]" says
  text,     // any string
  choice,   // one of `choices`
  integer,  // 0 .. 2^53-1
  boolean,
  sha256,     // 64 hex digits
  hex_bytes,  // any even number of hex digits
  id128,      // 32 hex digits
  f32,        // 8 hex digits, the IEEE bits
  u64,        // 16 hex digits
  utc,        // 2026-01-31T12:34:56Z
  file_name,  // a relative path that stays inside its folder
};

// How two receipts are compared in a field.
//   T must match to be comparable        A must match for equality to be promised
//   O is compared                        C is compared within one mode
//   P is pinned by claims about one build or package
//   X is the experiment's axis           I is information
struct Field {
  std::string_view path;  // dotted; [] after a list
  FieldType type;
  char column;
  // Kinds, one letter each: Run Session Conversion Bench Plan Audit; r: a run outside a pack.
  // A field below an object or list is needed only where that is present.
  std::string_view needed;
  std::string_view allowed;  // kinds that may have it besides
  std::string_view choices;  // of `choice`: a|b|c
  std::string_view why;
};

std::span<const Field> fields();
const char* type_name(FieldType type);

inline constexpr std::string_view kBodyType = "bolt.receipt/1";
// Kind's letter for the table, '\0' for an unknown kind.
char kind_letter(std::string_view kind);

// Checks types, choices, needed and unknown fields. Throws Failure(malformed) that names the field,
// expected and found. `what` begins the line.
void check_fields(const Value& body, const std::string& what);

// A run that belongs to a session's pack (its parents name the session).
bool in_pack(const Value& body);

// Whether a package's file name stays inside the package: relative, no empty, "." or ".." step, no
// backslash, no control character.
bool is_inside_name(std::string_view path);

}  // namespace bolt::receipts
