// Reading safetensors checkpoints: one file, or shards under an index. Headers are checked wholly
// before a byte of data is used. What the tensors mean is binding.h.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file_map.h"

namespace bolt {

// The format's own limit on a header.
inline constexpr std::uint64_t kHeaderBytesMax = 100'000'000;

struct Tensor {
  std::string name;
  std::string alias;  // what the same tensor is called in safetensors checkpoints; empty: name
  std::string dtype;  // as the header spells it: BF16, F16, F32, ...
  std::vector<std::int64_t> shape;
  int file = 0;              // index into Checkpoint::files
  std::uint64_t offset = 0;  // of its first byte in the file
  std::uint64_t bytes = 0;

  std::int64_t n_elements() const;
  std::string shape_text() const;  // BF16 [3, 4]
};

// Bytes of one element, 0 for a dtype that safetensors does not know.
int dtype_bytes(std::string_view dtype);

struct SourceFile {
  std::string name;  // relative to the checkpoint
  std::string path;
  FileDescriptor descriptor;
  FileFacts facts;
};

struct Checkpoint {
  std::string kind = "safetensors";  // or gguf
  std::string path;                  // as given
  std::string folder;                // that holds config.json
  std::vector<SourceFile> files;
  std::map<std::string, Tensor, std::less<>> tensors;
  // Tensors that the index names and whose shard is absent (only ever MTP tensors).
  std::vector<std::string> absent;
};

// Opens `path`, a folder or one .safetensors file. Throws Error(input) naming file, tensor and byte
// for whatever is malformed, cut short, overlapping or missing. A shard that is absent and holds
// only MTP tensors is allowed if `without_mtp`. Shards may be symbolic links: the name is checked
// as written, never its target.
Checkpoint open_checkpoint(const std::string& path, bool without_mtp);

// Tensors of one file by its header, checked against the file's size; `file` is put into each.
std::vector<Tensor> read_safetensors_header(const std::string& path,
                                            const FileDescriptor& descriptor,
                                            std::uint64_t file_bytes, int file);
// The same of bytes: how many the header takes after the first eight, by the file's first
// kStartBytes (all of a shorter file), and what it says.
inline constexpr std::uint64_t kStartBytes = 512;
std::uint64_t safetensors_header_bytes(const std::string& path, std::span<const std::byte> start,
                                       std::uint64_t file_bytes);
std::vector<Tensor> parse_safetensors_header(const std::string& path, std::string_view header,
                                             std::uint64_t file_bytes, int file);

bool is_mtp_name(std::string_view tensor_name);

}  // namespace bolt
