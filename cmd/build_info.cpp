// The text that cmake/build_info.cmake wrote at this build.
#include "cmd/build_info.h"

namespace bolt {

const BuildInfo& build_info() {
  static constexpr BuildInfo kInfo = {
#include "build_info.inc"
  };
  return kInfo;
}

}  // namespace bolt
