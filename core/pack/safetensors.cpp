// safetensors headers and shard indices.
#include "core/pack/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/printable.h"
#include "core/pack/file_kind.h"

namespace bolt {
namespace {

constexpr std::pair<std::string_view, int> kDtypes[] = {
    {"F64", 8},     {"F32", 4},     {"F16", 2},     {"BF16", 2}, {"I64", 8}, {"I32", 4},
    {"I16", 2},     {"I8", 1},      {"U64", 8},     {"U32", 4},  {"U16", 2}, {"U8", 1},
    {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"BOOL", 1},
};

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw Error(Exit::input, fmt::format("{}: {}", path, problem));
}

// shape times dtype in bytes; false where it passes 2^63.
bool tensor_bytes(const std::vector<std::int64_t>& shape, int element_bytes, std::uint64_t& bytes) {
  bytes = static_cast<std::uint64_t>(element_bytes);
  bool zero = false;
  for (const std::int64_t n : shape) {
    if (n == 0)
      zero = true;
    else if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(n), &bytes))
      return false;
    if (bytes >> 63 != 0) return false;
  }
  if (zero) bytes = 0;
  return true;
}

// Names come from strangers and stand in every message about their tensor.
void check_tensor_name(const std::string& path, std::string_view name) {
  constexpr std::size_t kNameBytesMax = 256;
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (!control && name.size() <= kNameBytesMax) return;
  fail(path, fmt::format("tensor {} has {}", printable(name),
                         control ? "a control character in its name"
                                 : fmt::format("a name of {} bytes, expected at most {}",
                                               name.size(), kNameBytesMax)));
}

Tensor read_entry(const std::string& path, std::string_view name, const JsonValue& entry,
                  std::uint64_t data_start, std::uint64_t data_bytes) {
  Tensor tensor;
  tensor.name = name;
  tensor.dtype = entry.at("dtype").string();
  const int element = dtype_bytes(tensor.dtype);
  const auto refuse = [&](const std::string& problem) {
    fail(path, fmt::format("tensor {}: {}", name, problem));
  };
  if (element == 0) refuse(fmt::format("dtype \"{}\" is not known", printable(tensor.dtype)));
  for (const JsonValue& n : entry.at("shape").items()) {
    tensor.shape.push_back(n.integer(0, std::int64_t{1} << 62));
  }
  if (tensor.shape.size() > 8)
    refuse(fmt::format("has {} dimensions, expected at most 8", tensor.shape.size()));
  const auto offsets = entry.at("data_offsets").items();
  if (offsets.size() != 2)
    refuse(fmt::format("data_offsets holds {} numbers, expected 2", offsets.size()));
  const std::uint64_t begin = offsets[0].unsigned_integer(), end = offsets[1].unsigned_integer();
  if (begin > end)
    refuse(fmt::format("begins at byte {} of the data and ends before it, at {}", begin, end));
  std::uint64_t bytes = 0;
  if (!tensor_bytes(tensor.shape, element, bytes)) {
    refuse(fmt::format("{} overflows 63 bits", tensor.shape_text()));
  }
  if (end - begin != bytes) {
    refuse(fmt::format("{} takes {} bytes, but its range [{}, {}) holds {}", tensor.shape_text(),
                       bytes, begin, end, end - begin));
  }
  if (end > data_bytes) {
    fail(path, fmt::format("is cut short: tensor {} ends at byte {}, the file at {}", name,
                           data_start + end, data_start + data_bytes));
  }
  tensor.offset = data_start + begin;
  tensor.bytes = bytes;
  return tensor;
}

// Every data byte belongs to one tensor: no overlap, no hole, nothing behind the last.
void check_cover(const std::string& path, std::vector<Tensor>& tensors, std::uint64_t data_start,
                 std::uint64_t file_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  std::uint64_t at = data_start;
  const Tensor* before = nullptr;
  for (const Tensor& tensor : tensors) {
    if (tensor.offset < at) {
      fail(path, fmt::format("tensors {} and {} overlap at byte {}", before->name, tensor.name,
                             tensor.offset));
    }
    if (tensor.offset > at) {
      fail(path, fmt::format("bytes {} to {} before tensor {} belong to no tensor", at,
                             tensor.offset, tensor.name));
    }
    at = tensor.offset + tensor.bytes;
    if (tensor.bytes > 0) before = &tensor;
  }
  if (at != file_bytes) {
    fail(path, fmt::format("{} bytes after the last tensor, at byte {}, belong to no tensor",
                           file_bytes - at, at));
  }
}

void add_file(Checkpoint& checkpoint, const std::string& name) {
  SourceFile file;
  file.name = name;
  file.path = checkpoint.folder + "/" + name;
  file.descriptor = open_regular_file(file.path, file.facts);
  const int index = static_cast<int>(checkpoint.files.size());
  for (Tensor& tensor :
       read_safetensors_header(file.path, file.descriptor, file.facts.bytes, index)) {
    const auto [at, fresh] = checkpoint.tensors.emplace(tensor.name, tensor);
    if (!fresh) {
      fail(file.path,
           fmt::format("tensor {} is in {} too", tensor.name,
                       checkpoint.files[static_cast<std::size_t>(at->second.file)].name));
    }
  }
  checkpoint.files.push_back(std::move(file));
}

// Says which shards are missing and how many tensors each holds; only MTP shards may be.
void check_absent(Checkpoint& checkpoint, const std::string& index,
                  const std::map<std::string, std::vector<std::string>>& missing,
                  bool without_mtp) {
  if (missing.empty()) return;
  bool only_mtp = true;
  std::string list;
  for (const auto& [shard, names] : missing) {
    list += fmt::format("{}{} ({} tensors)", list.empty() ? "" : ", ", shard, names.size());
    for (const std::string& name : names) {
      only_mtp = only_mtp && is_mtp_name(name);
      checkpoint.absent.push_back(name);
    }
  }
  if (only_mtp && without_mtp) return;
  fail(index,
       fmt::format("names shards that are missing: {}; {}", list,
                   only_mtp ? "they hold only the MTP head: convert --without-mtp, or fetch them"
                            : "fetch them"));
}

void open_indexed(Checkpoint& checkpoint, const std::string& index, bool without_mtp) {
  // metadata.total_size is not asked: tools that merge, quantise or strip checkpoints leave stale
  // ones behind, no loader minds, and every byte is accounted for by the headers below anyway.
  const JsonDocument document = load_json(index);
  std::map<std::string, std::vector<std::string>> shards, missing;
  for (const auto& [name, shard] : document.root().at("weight_map").members()) {
    check_tensor_name(index, name);
    const std::string_view fault = path_fault(shard.string());
    if (!fault.empty()) {
      throw Error(Exit::input,
                  fmt::format("{}: the file name {} {}, expected one inside the folder",
                              shard.where(), shard.shown(), fault));
    }
    shards[std::string(shard.string())].push_back(std::string(name));
  }
  if (shards.empty()) fail(index, "weight_map is empty");
  for (const auto& [shard, names] : shards) {
    if (!path_exists(checkpoint.folder + "/" + shard)) missing[shard] = names;
  }
  check_absent(checkpoint, index, missing, without_mtp);
  std::size_t n_indexed = 0;
  for (const auto& [shard, names] : shards) {
    if (missing.contains(shard)) continue;
    add_file(checkpoint, shard);
    n_indexed += names.size();
    for (const std::string& name : names) {
      const auto at = checkpoint.tensors.find(name);
      if (at == checkpoint.tensors.end() ||
          at->second.file != static_cast<int>(checkpoint.files.size()) - 1) {
        fail(index, fmt::format("tensor {} should be in {}, but is not", name, shard));
      }
    }
  }
  if (n_indexed == checkpoint.tensors.size()) return;
  std::map<std::string_view, int> indexed;
  for (const auto& [shard, names] : shards) {
    for (const std::string& name : names) indexed[name] = 1;
  }
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (!indexed.contains(name)) {
      fail(index, fmt::format("does not list tensor {}, which is in {}", name,
                              checkpoint.files[static_cast<std::size_t>(tensor.file)].name));
    }
  }
}

// The one .safetensors file of a folder without an index, or what the folder holds instead.
std::string only_file(const std::string& folder) {
  std::vector<std::string> names, others;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error) fail(folder, "cannot list the folder: " + error.message());
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors")) names.push_back(name);
    if (name.ends_with(".gguf") || name.ends_with(".bin") || name.ends_with(".pth") ||
        name.ends_with(".pt")) {
      others.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  if (std::find(names.begin(), names.end(), "model.safetensors") != names.end())
    return "model.safetensors";
  if (names.size() == 1) return names.front();
  if (names.size() > 1) {
    fail(folder,
         fmt::format("holds {} safetensors files but no model.safetensors.index.json; fetch it",
                     names.size()));
  }
  if (!others.empty()) {
    std::sort(others.begin(), others.end());
    fail(folder,
         fmt::format("holds {} but no .safetensors file; expected a Hugging Face checkpoint "
                     "with config.json and model.safetensors",
                     others.front()));
  }
  fail(folder, "holds no .safetensors file; expected a Hugging Face checkpoint");
}

}  // namespace

int dtype_bytes(std::string_view dtype) {
  for (const auto& [name, bytes] : kDtypes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

std::int64_t Tensor::n_elements() const {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

std::string Tensor::shape_text() const {
  std::string text = dtype + " [";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

bool is_mtp_name(std::string_view name) {
  if (name.starts_with("language_model.")) name.remove_prefix(15);
  return name.starts_with("mtp.");
}

std::uint64_t safetensors_header_bytes(const std::string& path, std::span<const std::byte> start,
                                       std::uint64_t file_bytes) {
  constexpr std::uint64_t kPrefix = 8;
  const bool plausible = start.size() > kPrefix && start[kPrefix] == std::byte{'{'};
  const std::string_view kind = looks_like(start);
  if (!plausible && !kind.empty())
    fail(path, fmt::format("looks like {}, expected safetensors", kind));
  if (file_bytes < kPrefix) {
    fail(path,
         fmt::format("has {} bytes, expected a safetensors header of at least 8", file_bytes));
  }
  std::uint64_t n = 0;
  std::memcpy(&n, start.data(), sizeof n);
  if (n > kHeaderBytesMax) {
    fail(path, fmt::format("header length is {} at byte 0, expected at most {}; not safetensors", n,
                           kHeaderBytesMax));
  }
  if (n > file_bytes - kPrefix) {
    fail(path, fmt::format("header length is {} at byte 0, but only {} bytes follow; cut short", n,
                           file_bytes - kPrefix));
  }
  if (!plausible || n < 2) fail(path, "header does not start with '{' at byte 8; not safetensors");
  return n;
}

std::vector<Tensor> parse_safetensors_header(const std::string& path, std::string_view text,
                                             std::uint64_t file_bytes, int file) {
  const std::uint64_t data_start = 8 + text.size();
  const JsonDocument header = JsonDocument::parse(path, text);
  std::vector<Tensor> tensors;
  for (const auto& [name, entry] : header.root().members()) {
    if (name == "__metadata__") continue;
    check_tensor_name(path, name);
    entry.only({"dtype", "shape", "data_offsets"});
    tensors.push_back(read_entry(path, name, entry, data_start, file_bytes - data_start));
    tensors.back().file = file;
  }
  check_cover(path, tensors, data_start, file_bytes);
  return tensors;
}

std::vector<Tensor> read_safetensors_header(const std::string& path,
                                            const FileDescriptor& descriptor,
                                            std::uint64_t file_bytes, int file) {
  std::byte start[kStartBytes];
  const auto n_start = static_cast<std::size_t>(std::min<std::uint64_t>(file_bytes, sizeof start));
  read_at(descriptor, path, 0, {start, n_start});
  std::string text(safetensors_header_bytes(path, {start, n_start}, file_bytes), '\0');
  read_at(descriptor, path, 8, std::as_writable_bytes(std::span(text)));
  return parse_safetensors_header(path, text, file_bytes, file);
}

Checkpoint open_checkpoint(const std::string& path, bool without_mtp) {
  Checkpoint checkpoint;
  checkpoint.path = path;
  if (!path_exists(path)) throw Error(Exit::usage, path + ": no such checkpoint");
  if (!is_folder(path)) {
    const std::filesystem::path file(path);
    checkpoint.folder = file.parent_path().empty() ? "." : file.parent_path().string();
    add_file(checkpoint, file.filename().string());
    return checkpoint;
  }
  checkpoint.folder = path;
  while (checkpoint.folder.size() > 1 && checkpoint.folder.back() == '/')
    checkpoint.folder.pop_back();
  const std::string index = checkpoint.folder + "/model.safetensors.index.json";
  if (path_exists(index)) {
    open_indexed(checkpoint, index, without_mtp);
  } else {
    add_file(checkpoint, only_file(checkpoint.folder));
  }
  return checkpoint;
}

}  // namespace bolt
