// Steps that conversions share, whatever they make a package of; each adds what it did to the
// facts.
#pragma once

#include <string>
#include <string_view>

#include "core/pack/convert.h"
#include "core/pack/graph.h"
#include "core/pack/package_writer.h"
#include "core/pack/source_rows.h"

namespace bolt {

// Places the weights of `graph` in files PREFIX-NNNNN.bin and writes them; with options.verify
// compares each with its source.
void pack_weights(const ConvertOptions& options, PackageWriter& writer, SourceRows& source,
                  Graph& graph, const std::string& prefix, ConvertFacts& facts);

// Links (or copies) the files of a package but its manifest and those of role `rewritten`; all of
// them are sources.
void link_files(const Package& package, PackageWriter& writer, std::string_view rewritten,
                ConvertFacts& facts);

// Sorts the sources by path, writes the manifest from the facts and renames the folder.
void finish_package(const ConvertOptions& options, PackageWriter& writer, ConvertFacts& facts);

// Values of the graph's weights, without the draft vocabulary's copies.
std::uint64_t n_parameters(const Graph& graph);

}  // namespace bolt
