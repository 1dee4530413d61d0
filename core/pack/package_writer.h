// Writing a package folder: where each weight lies, packing in parallel with bounded buffers,
// hashes, package.json, one atomic rename. What the rows hold is the caller's (convert, make).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/output.h"
#include "core/base/thread_pool.h"
#include "core/pack/package.h"
#include "core/pack/progress.h"
#include "core/pack/tile_codec.h"

namespace bolt {

inline constexpr std::uint64_t kWeightFileBytesMax = 1ull << 30;
inline constexpr std::uint64_t kWeightAlignment = 4096;

// A run of rows of one matrix: the unit that threads share out.
struct RowRun {
  const std::string* name = nullptr;  // of the weight
  const Weight* weight = nullptr;
  int matrix = 0, first_row = 0, n_rows = 0;
};
// Fills `rows`, already sized, with the codes (and scales) of a run.
using FillRows = std::function<void(const RowRun& run, RowCodes& rows)>;
// Looks at a run that was packed, on the thread that filled it, before it is written. index: its
// place among row_runs().
using CheckRun = std::function<void(std::size_t index, const RowRun& run,
                                    std::span<const std::byte> packed, float gain)>;
// One matrix's gain, for formats that have one.
using GainOf = std::function<float(const std::string& name, int matrix)>;

// What package.json says beside its list of files.
struct PackageFacts {
  std::string bolt_version;
  std::string source;                     // declared origin
  std::vector<PackageFile> source_files;  // of the checkpoint: path, bytes, sha256
  std::string options;                    // a JSON object: how it was made
};

class PackageWriter {
 public:
  // Refuses an existing `target` unless `force`, and then anything that is no package.
  PackageWriter(const std::string& target, bool force, int n_threads);

  // The folder under its temporary name.
  const std::string& path() const { return folder_.path(); }
  ThreadPool& pool() { return pool_; }

  // Gives every weight of `graph` (formats set) its file PREFIX-NNNNN.bin and offset.
  void place_weights(Graph& graph, const std::string& prefix = "weights");
  // Writes all of them and hashes what is written on the way; before any payload is linked.
  void write_weights(const Graph& graph, const FillRows& fill, const GainOf& gain,
                     const CheckRun& check, const WorkProgress& progress);
  // Sends what is written so far to the disk; a thread may, while the caller does something else.
  void sync() const { folder_.sync(); }
  // A file of another package as it stands, under the hash that it is known by: linked, or copied
  // (and hashed on the way) where the file system does not link. Answers whether it was linked.
  bool link_file(const std::string& from, const PackageFile& file);
  void write_text(const std::string& name, const std::string& role, const std::string& text);

  // Writes package.json and renames the folder. Answers the files, as Package::files() would.
  std::vector<PackageFile> finish(const PackageFacts& facts);

 private:
  AtomicFolder folder_;
  ThreadPool pool_;
  std::vector<PackageFile> files_;
};

// Cuts every weight of `graph` into runs of about 256 KiB, in order.
std::vector<RowRun> row_runs(const Graph& graph, std::vector<std::string>& names);

// package.json's text; its last member is the SHA-256 of all bytes before that member's line.
std::string package_json(const PackageFacts& facts, const std::vector<PackageFile>& files);

// SHA-256 of a file through a bounded buffer.
std::string sha256_of_file(const std::string& path);

}  // namespace bolt
