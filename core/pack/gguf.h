// Reading GGUF version 3: header, metadata and tensor places, of one file or of a split. Everything
// is checked against the file before it is used. What the metadata means is gguf_model.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file_map.h"
#include "core/pack/safetensors.h"

namespace bolt {

// One value of the metadata, lent from the mapped file.
class GgufValue {
 public:
  enum class Type : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    string,
    array,
    u64,
    i64,
    f64
  };
  Type type = Type::u8;
  Type item = Type::u8;    // of an array
  std::uint64_t n = 0;     // items of an array; 1 otherwise
  std::string_view bytes;  // of the value or of all items

  // Number or boolean `i` as an integer or a double; false if it is neither.
  bool integer(std::uint64_t i, std::int64_t& out) const;
  bool number(std::uint64_t i, double& out) const;
  std::vector<std::string_view> strings() const;  // of a string, or an array of them
};

// The metadata of a model's first file, with typed reads whose errors name file and key.
class GgufMetadata {
 public:
  const GgufValue* find(std::string_view key) const;
  std::string_view string(std::string_view key) const;  // "" if it is not there
  std::int64_t integer(std::string_view key, std::int64_t otherwise, std::int64_t min,
                       std::int64_t max) const;
  std::int64_t integer(std::string_view key, std::int64_t min, std::int64_t max) const;
  double number(std::string_view key, double otherwise) const;
  bool boolean(std::string_view key, bool otherwise) const;
  // One integer for each of n: an array of n, or a scalar for all; empty if it is not there.
  std::vector<std::int64_t> integers(std::string_view key, std::size_t n, std::int64_t min,
                                     std::int64_t max) const;
  [[noreturn]] void fail(std::string_view key, const std::string& problem) const;

  std::string path;  // of the file, for errors
  FileMap file;      // that lends the values
  std::map<std::string_view, GgufValue> values;
};

struct GgufFile {
  GgufMetadata metadata;
  std::vector<Tensor> tensors;  // shapes with the innermost dimension last, as safetensors has them
};

// One file's header. `file` is put into each tensor. Throws Error(input) naming path, key or tensor
// and byte for whatever is malformed, cut short, overlapping or of a type without a format.
GgufFile read_gguf(const std::string& path, const FileDescriptor& descriptor,
                   const FileFacts& facts, int file);
// The same of a file's bytes, which lend the values and outlive them.
GgufFile parse_gguf(const std::string& path, std::string_view bytes, int file);

struct GgufCheckpoint {
  Checkpoint checkpoint;  // kind gguf; tensors by their names in the file
  GgufMetadata metadata;
};

// Whether `path` is a GGUF file by its name or first bytes, or a folder that holds some and no
// config.json.
bool is_gguf(const std::string& path);
// Opens a file (all of its split, whichever part is named) or a folder with one model.
GgufCheckpoint open_gguf(const std::string& path);

}  // namespace bolt
