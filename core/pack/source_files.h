// What conversions do with a checkpoint once it is bound: pack its rows, hash its files, see that
// they stayed as they were.
#pragma once

#include <vector>

#include "core/base/thread_pool.h"
#include "core/pack/package.h"
#include "core/pack/package_writer.h"
#include "core/pack/progress.h"
#include "core/pack/safetensors.h"
#include "core/pack/source_rows.h"
#include "core/pack/verify.h"

namespace bolt {

// Hashes of every file that the package was made from, weights in parallel.
std::vector<PackageFile> hash_sources(const Checkpoint& checkpoint, ThreadPool& pool,
                                      const WorkProgress& progress);
// A source that changed while it was read gives a package of no checkpoint at all: Error(fault).
void check_unchanged(const Checkpoint& checkpoint);
// Writes the weights of `graph`, which are placed; each run goes by the verifier, if there is one,
// before it is written.
void pack_rows(PackageWriter& writer, const Graph& graph, const SourceRows& source,
               PayloadVerifier* verifier, const WorkProgress& progress);

}  // namespace bolt
