// What this executable was built from, for --version and for receipts. Constant text; hashing the
// executable itself is receipts/'s.
#pragma once

#include <string_view>

#include "receipts/facts.h"

namespace bolt {

struct BuildInfo {
  std::string_view version;
  std::string_view commit;    // hex; empty outside a git checkout
  std::string_view tree;      // hex, the commit's tree
  std::string_view diff;      // SHA-256 of what differed from the commit; empty if nothing did
  std::string_view compiler;  // name and version
  std::string_view build_type;
  std::string_view flags;  // beyond the project's own
  std::string_view openssl;
  std::string_view cuda;  // ON or OFF
  std::string_view is_static;
};

const BuildInfo& build_info();
// The same as a receipt takes it; receipts::build_facts() adds what is known only at run time.
receipts::Build compiled_build();

}  // namespace bolt
