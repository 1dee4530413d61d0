// package.json: what a package lists, checked but for the files themselves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/pack/package.h"

namespace bolt {

struct Manifest {
  std::vector<PackageFile> files;  // as listed: paths right inside the folder, ascending
  std::string arith_id, arith_sha256;
  std::string source;  // declared origin
};

// `name` names the file in errors. Throws Error(input) naming the field, Error(unmet) for another
// arithmetic contract.
Manifest parse_manifest(const std::string& name, std::string_view text);

}  // namespace bolt
