// `bolt convert A.bolt B.bolt --geometry ...`: a package with another row geometry. No payload byte
// is read or written: the files are linked, or copied where the two lie on different file systems,
// their hashes carried over; graph.json and package.json are new.
#pragma once

#include "core/pack/convert.h"

namespace bolt {

// Whether `path` is a package rather than a checkpoint.
bool is_package(const std::string& path);

// Throws Error(usage) for options that need the checkpoint, Error(input) for a source that is no
// whole package, Error(fault) for a disk that fails or a copy whose hash is not the carried one.
ConvertFacts repackage(const ConvertOptions& options);

// The text of a geometry, "hybrid:8", and back; parse throws Error(usage) naming `option`.
std::string geometry_text(const Geometry& geometry);
Geometry parse_geometry(const std::string& option, const std::string& text);

}  // namespace bolt
