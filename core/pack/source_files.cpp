// A checkpoint's files, hashed and watched; its rows, packed.
#include "core/pack/source_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/file_map.h"

namespace bolt {
namespace {

// What the thread has read of the source for the run that it is at.
RawRows& rows_at_hand() {
  static thread_local RawRows rows;
  return rows;
}

}  // namespace

std::vector<PackageFile> hash_sources(const Checkpoint& checkpoint, ThreadPool& pool,
                                      const WorkProgress& progress) {
  std::vector<PackageFile> files;
  for (const char* name :
       {"config.json", "hf_quant_config.json", "generation_config.json", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja", "model.safetensors.index.json"}) {
    const std::string path = checkpoint.folder + "/" + name;
    if (checkpoint.kind == "safetensors" && path_exists(path))
      files.push_back(
          {.path = name, .role = "", .bytes = 0, .sha256 = "", .how = "stream", .links = 1});
  }
  for (const SourceFile& file : checkpoint.files) {
    files.push_back(
        {.path = file.name, .role = "", .bytes = 0, .sha256 = "", .how = "stream", .links = 1});
  }
  std::uint64_t total = 0;
  for (PackageFile& file : files) {
    FileFacts facts;
    open_regular_file(checkpoint.folder + "/" + file.path, facts);
    file.bytes = facts.bytes;
    total += facts.bytes;
  }
  Meter meter(progress, "hashing the source", total);
  pool.parallel_for(static_cast<int>(files.size()), 1, [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) {
      PackageFile& file = files[static_cast<std::size_t>(i)];
      file.sha256 = sha256_of_file(checkpoint.folder + "/" + file.path);
      meter.add(file.bytes);
    }
  });
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

void check_unchanged(const Checkpoint& checkpoint) {
  for (const SourceFile& file : checkpoint.files) {
    FileFacts now;
    open_regular_file(file.path, now);
    if (now != file.facts) {
      throw Error(Exit::fault, fmt::format("{}: changed while it was being converted", file.path));
    }
  }
}

void pack_rows(PackageWriter& writer, const Graph& graph, const SourceRows& source,
               PayloadVerifier* verifier, const WorkProgress& progress) {
  const CheckRun check = [&](std::size_t index, const RowRun& run,
                             std::span<const std::byte> packed, float gain) {
    verifier->check(index, run, rows_at_hand(), packed, gain);
  };
  writer.write_weights(
      graph,
      [&](const RowRun& run, RowCodes& rows) {
        source.read(run, rows_at_hand());
        source.fill(run, rows_at_hand(), rows);
      },
      [&](const std::string& name, int matrix) { return source.gain(name, matrix); },
      verifier != nullptr ? check : CheckRun(), progress);
}

}  // namespace bolt
