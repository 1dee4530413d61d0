// Test support: what a call throws, as a value.
#pragma once

#include <string>
#include <utility>

#include "core/base/error.h"

namespace bolt::testing {

struct Caught {
  Exit code = Exit::ok;  // ok: nothing was thrown
  std::string line;
  bool says(const std::string& part) const { return line.find(part) != std::string::npos; }
};

template <class Call>
Caught caught(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    return {error.code, error.what()};
  }
  return {};
}

// Like caught(), for a check that shows the line when it fails: "3 config.json: ..." or "nothing".
template <class Call>
std::string error_of(Call&& call) {
  const Caught error = caught(std::forward<Call>(call));
  return error.code == Exit::ok ? "nothing"
                                : std::to_string(static_cast<int>(error.code)) + " " + error.line;
}

}  // namespace bolt::testing
