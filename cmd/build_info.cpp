// The text that cmake/build_info.cmake wrote at this build.
#include "cmd/build_info.h"

#include <string>

namespace bolt {

const BuildInfo& build_info() {
  static constexpr BuildInfo kInfo = {
#include "build_info.inc"
  };
  return kInfo;
}

receipts::Build compiled_build() {
  const BuildInfo& info = build_info();
  receipts::Build build;
  build.commit = info.commit;
  build.tree = info.tree;
  build.diff = info.diff;
  build.toolchain = info.compiler;
  build.flags = std::string(info.build_type) + (info.flags.empty() ? "" : " ") +
                std::string(info.flags) + (info.is_static == "ON" ? " static" : "") +
                (info.cuda == "ON" ? " cuda" : "") + " openssl " + std::string(info.openssl);
  return build;
}

}  // namespace bolt
