// GGUF headers and splits.
#include "core/pack/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <span>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/pack/file_kind.h"
#include "core/pack/source_blocks.h"

namespace bolt {
namespace {

using Type = GgufValue::Type;

constexpr std::uint64_t kDimsMax = 4;
constexpr std::uint64_t kKeyBytesMax = 65535, kNameBytesMax = 256;
constexpr int kSplitsMax = 10'000;

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  throw Error(Exit::input, fmt::format("{}: {}", path, problem));
}

// Bytes of a number of this type, 0 for strings and arrays.
std::uint64_t type_bytes(Type type) {
  switch (type) {
    case Type::u8:
    case Type::i8:
    case Type::boolean:
      return 1;
    case Type::u16:
    case Type::i16:
      return 2;
    case Type::u32:
    case Type::i32:
    case Type::f32:
      return 4;
    case Type::u64:
    case Type::i64:
    case Type::f64:
      return 8;
    default:
      return 0;
  }
}

// Walks the header; every read is checked against the end of the file.
class Cursor {
 public:
  Cursor(const std::string& path, std::string_view bytes) : path_(path), bytes_(bytes) {}

  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return bytes_.size() - at_; }
  std::string_view take(std::uint64_t n, std::string_view what) {
    if (n > left()) {
      refuse(path_, fmt::format("{} at byte {} takes {} bytes, but only {} follow; cut short or "
                                "malformed",
                                what, at_, n, left()));
    }
    const std::string_view part = bytes_.substr(at_, n);
    at_ += n;
    return part;
  }
  template <class T>
  T number(std::string_view what) {
    T x;
    std::memcpy(&x, take(sizeof(T), what).data(), sizeof(T));
    return x;
  }
  std::string_view string(std::string_view what) {
    const auto n = number<std::uint64_t>(what);
    return take(n, what);
  }
  // A count of things that take at least `least` bytes each.
  std::uint64_t count(std::uint64_t least, std::string_view what) {
    const std::uint64_t begin = at_;
    const auto n = number<std::uint64_t>(what);
    if (n > left() / least) {
      refuse(path_, fmt::format("{} at byte {} is {}, more than the {} bytes that follow can hold",
                                what, begin, n, left()));
    }
    return n;
  }
  Type type(std::string_view what) {
    const std::uint64_t begin = at_;
    const auto t = number<std::uint32_t>(what);
    if (t > static_cast<std::uint32_t>(Type::f64)) {
      refuse(path_, fmt::format("{} at byte {} is {}, expected 0 to 12", what, begin, t));
    }
    return static_cast<Type>(t);
  }

 private:
  const std::string& path_;
  std::string_view bytes_;
  std::uint64_t at_ = 0;
};

void check_name(const std::string& path, std::string_view name, std::uint64_t most,
                const char* what) {
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (!name.empty() && !control && name.size() <= most) return;
  refuse(path, fmt::format("a {} is {}, expected 1 to {} printable bytes", what,
                           name.empty() ? "empty" : printable(name.substr(0, 64)), most));
}

void skip_value(Cursor& cursor, Type type, std::uint64_t n, std::string_view what) {
  if (type == Type::string) {
    for (std::uint64_t i = 0; i < n; ++i) (void)cursor.string(what);
    return;
  }
  (void)cursor.take(n * type_bytes(type), what);
}

GgufValue read_value(Cursor& cursor, const std::string& path, std::string_view bytes,
                     const std::string& what) {
  GgufValue value;
  value.type = cursor.type(what);
  value.n = 1;
  Type item = value.type;
  if (value.type == Type::array) {
    item = value.item = cursor.type(what);
    if (item == Type::array) {
      refuse(path, fmt::format("{} is an array of arrays, at byte {}", what, cursor.at()));
    }
    value.n = cursor.count(item == Type::string ? 8 : type_bytes(item), what);
  }
  const std::uint64_t begin = cursor.at();
  skip_value(cursor, item, value.n, what);
  value.bytes = bytes.substr(begin, cursor.at() - begin);
  return value;
}

Tensor read_tensor(Cursor& cursor, const std::string& path) {
  Tensor tensor;
  const std::string_view name = cursor.string("a tensor's name");
  check_name(path, name, kNameBytesMax, "tensor's name");
  tensor.name = name;
  const auto fail = [&](const std::string& problem) {
    refuse(path, fmt::format("tensor {}: {}", tensor.name, problem));
  };
  const auto n_dims = cursor.number<std::uint32_t>("a tensor's number of dimensions");
  if (n_dims < 1 || n_dims > kDimsMax) {
    fail(fmt::format("has {} dimensions, expected 1 to {}", n_dims, kDimsMax));
  }
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < n_dims; ++i) {
    const auto n = cursor.number<std::uint64_t>("a tensor's dimension");
    if (n == 0) fail(fmt::format("dimension {} is 0", i));
    if (n >> 62 != 0 || __builtin_mul_overflow(elements, n, &elements) || elements >> 62 != 0) {
      fail(fmt::format("dimension {} is {}: the tensor overflows 62 bits", i, n));
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(n));
  }
  const auto type = cursor.number<std::uint32_t>("a tensor's type");
  const SourceEncoding* encoding = gguf_encoding(type);
  if (!encoding) {
    fail(fmt::format("has the type {} ({}), which bolt has no kernels for", gguf_type_name(type),
                     type));
  }
  tensor.dtype = encoding->dtype;
  const auto block = static_cast<std::uint64_t>(encoding->n_cols);
  if (static_cast<std::uint64_t>(tensor.shape.back()) % block != 0) {
    fail(fmt::format("{} columns are no multiple of {}'s {}", tensor.shape.back(), tensor.dtype,
                     block));
  }
  if (__builtin_mul_overflow(elements / block, static_cast<std::uint64_t>(encoding->bytes),
                             &tensor.bytes)) {
    fail(fmt::format("{} overflows 64 bits", tensor.shape_text()));
  }
  tensor.offset = cursor.number<std::uint64_t>("a tensor's offset");
  return tensor;
}

// Tensors follow each other, each at a multiple of the alignment; nothing overlaps, is left over or
// lies past the end.
void check_places(const std::string& path, std::vector<Tensor>& tensors, std::uint64_t data_start,
                  std::uint64_t alignment, std::uint64_t file_bytes) {
  std::vector<Tensor*> order;
  for (Tensor& tensor : tensors) {
    if (tensor.offset % alignment != 0) {
      refuse(path, fmt::format("tensor {} begins at byte {} of the data, expected a multiple of {}",
                               tensor.name, tensor.offset, alignment));
    }
    const std::uint64_t room = file_bytes > data_start ? file_bytes - data_start : 0;
    if (tensor.offset > room || tensor.bytes > room - tensor.offset) {
      refuse(path, fmt::format("is cut short: tensor {} takes {} bytes from byte {} on, the file "
                               "ends at {}",
                               tensor.name, tensor.bytes, data_start + tensor.offset, file_bytes));
    }
    tensor.offset += data_start;
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const Tensor* a, const Tensor* b) { return a->offset < b->offset; });
  std::uint64_t end = data_start;
  const Tensor* before = nullptr;
  for (const Tensor* tensor : order) {
    if (tensor->offset < end) {
      refuse(path, fmt::format("tensors {} and {} overlap at byte {}", before->name, tensor->name,
                               tensor->offset));
    }
    if (tensor->offset - end >= alignment) {
      refuse(path, fmt::format("bytes {} to {} before tensor {} belong to no tensor", end,
                               tensor->offset, tensor->name));
    }
    end = tensor->offset + tensor->bytes;
    before = tensor;
  }
  if (file_bytes > end && file_bytes - end >= alignment) {
    refuse(path, fmt::format("{} bytes after the last tensor, at byte {}, belong to no tensor",
                             file_bytes - end, end));
  }
}

std::string part_name(const std::string& stem, int i, int n) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", stem, i, n);
}

// stem, part and parts of NAME-00001-of-00003.gguf; false for any other name.
bool split_name(const std::string& name, std::string& stem, int& n) {
  constexpr std::size_t kTail = 20;  // -00001-of-00003.gguf
  if (name.size() <= kTail || !name.ends_with(".gguf")) return false;
  const std::string tail = name.substr(name.size() - kTail);
  int i = 0;
  if (std::sscanf(tail.c_str(), "-%5d-of-%5d.gguf", &i, &n) != 2) return false;
  stem = name.substr(0, name.size() - kTail);
  return part_name(stem, i, n) == name && i >= 1 && i <= n;
}

// The one model of a folder: a file, or the first of its split.
std::string only_model(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error) refuse(folder, "cannot list the folder: " + error.message());
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    std::string stem;
    int n = 0;
    if (!name.ends_with(".gguf")) continue;
    if (split_name(name, stem, n) && name != part_name(stem, 1, n)) continue;
    names.push_back(name);
  }
  if (names.size() == 1) return names.front();
  std::sort(names.begin(), names.end());
  refuse(folder, names.empty() ? "holds no .gguf file"
                               : fmt::format("holds several models: {}; name one of the files",
                                             fmt::join(names, ", ")));
}

}  // namespace

bool GgufValue::integer(std::uint64_t i, std::int64_t& out) const {
  const Type of = type == Type::array ? item : type;
  const std::uint64_t width = type_bytes(of);
  if (width == 0 || of == Type::f32 || of == Type::f64 || i >= n) return false;
  std::uint64_t raw = 0;
  std::memcpy(&raw, bytes.data() + i * width, width);
  const bool is_signed = of == Type::i8 || of == Type::i16 || of == Type::i32 || of == Type::i64;
  if (is_signed && width < 8) {
    const int shift = 64 - 8 * static_cast<int>(width);
    out = static_cast<std::int64_t>(raw << shift) >> shift;
  } else {
    if (of == Type::u64 && raw >> 63 != 0) return false;
    out = static_cast<std::int64_t>(raw);
  }
  return true;
}

bool GgufValue::number(std::uint64_t i, double& out) const {
  const Type of = type == Type::array ? item : type;
  if (i < n && of == Type::f32) {
    float x;
    std::memcpy(&x, bytes.data() + i * 4, 4);
    out = static_cast<double>(x);
    return true;
  }
  if (i < n && of == Type::f64) {
    std::memcpy(&out, bytes.data() + i * 8, 8);
    return true;
  }
  std::int64_t whole = 0;
  if (!integer(i, whole)) return false;
  out = static_cast<double>(whole);
  return true;
}

std::vector<std::string_view> GgufValue::strings() const {
  std::vector<std::string_view> all;
  if ((type == Type::array ? item : type) != Type::string) return all;
  all.reserve(n);
  for (std::uint64_t at = 0; at + 8 <= bytes.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    all.push_back(bytes.substr(at + 8, length));
    at += 8 + length;
  }
  return all;
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto at = values.find(key);
  return at == values.end() ? nullptr : &at->second;
}
void GgufMetadata::fail(std::string_view key, const std::string& problem) const {
  refuse(path, fmt::format("key {} {}", key, problem));
}
std::string_view GgufMetadata::string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return {};
  if (value->type != Type::string) fail(key, "is no string");
  return value->strings().front();
}
std::int64_t GgufMetadata::integer(std::string_view key, std::int64_t otherwise, std::int64_t min,
                                   std::int64_t max) const {
  return find(key) ? integer(key, min, max) : otherwise;
}
std::int64_t GgufMetadata::integer(std::string_view key, std::int64_t min, std::int64_t max) const {
  const GgufValue* value = find(key);
  if (!value) fail(key, "is missing");
  std::int64_t x = 0;
  if (value->type == Type::array || !value->integer(0, x)) fail(key, "is no integer");
  if (x < min || x > max) fail(key, fmt::format("is {}, expected {} to {}", x, min, max));
  return x;
}
double GgufMetadata::number(std::string_view key, double otherwise) const {
  const GgufValue* value = find(key);
  if (!value) return otherwise;
  double x = 0.0;
  if (value->type == Type::array || !value->number(0, x)) fail(key, "is no number");
  return x;
}
bool GgufMetadata::boolean(std::string_view key, bool otherwise) const {
  return integer(key, otherwise ? 1 : 0, 0, 1) != 0;
}
std::vector<std::int64_t> GgufMetadata::integers(std::string_view key, std::size_t n,
                                                 std::int64_t min, std::int64_t max) const {
  const GgufValue* value = find(key);
  std::vector<std::int64_t> all;
  if (!value) return all;
  if (value->type != Type::array) {
    all.assign(n, integer(key, min, max));
    return all;
  }
  if (value->n != n) fail(key, fmt::format("has {} items, expected {}", value->n, n));
  for (std::uint64_t i = 0; i < n; ++i) {
    std::int64_t x = 0;
    if (!value->integer(i, x)) fail(key, "is no array of integers");
    if (x < min || x > max) {
      fail(key, fmt::format("holds {} at {}, expected {} to {}", x, i, min, max));
    }
    all.push_back(x);
  }
  return all;
}

GgufFile read_gguf(const std::string& path, const FileDescriptor& descriptor,
                   const FileFacts& facts, int file) {
  FileMap map(path, descriptor, facts);
  GgufFile read = parse_gguf(path, map.text(), file);
  read.metadata.file = std::move(map);
  return read;
}

GgufFile parse_gguf(const std::string& path, std::string_view bytes, int file) {
  GgufFile read;
  read.metadata.path = path;
  if (!bytes.starts_with("GGUF")) {
    const std::string_view kind = looks_like(std::as_bytes(std::span(bytes.substr(0, 512))));
    refuse(path,
           fmt::format("{}, expected GGUF", kind.empty() ? "does not start with \"GGUF\""
                                                         : fmt::format("looks like {}", kind)));
  }
  Cursor cursor(path, bytes);
  (void)cursor.take(4, "the magic");
  const auto version = cursor.number<std::uint32_t>("the version");
  if (version != 3) {
    refuse(path, version >> 24 != 0 && (version & 0xffffffu) == 0
                     ? std::string("is a big-endian GGUF file; only little-endian ones are read")
                     : fmt::format("is GGUF version {}, expected 3", version));
  }
  // A tensor's info takes 32 bytes and more, a key with its value 13.
  const std::uint64_t n_tensors = cursor.count(32, "the number of tensors");
  const std::uint64_t n_values = cursor.count(13, "the number of keys");
  for (std::uint64_t i = 0; i < n_values; ++i) {
    const std::string_view key = cursor.string("a key");
    check_name(path, key, kKeyBytesMax, "key");
    GgufValue value = read_value(cursor, path, bytes, fmt::format("key {}", printable(key)));
    if (!read.metadata.values.emplace(key, value).second) {
      refuse(path, fmt::format("key {} is there twice", key));
    }
  }
  for (std::uint64_t i = 0; i < n_tensors; ++i) {
    read.tensors.push_back(read_tensor(cursor, path));
    read.tensors.back().file = file;
  }
  const auto alignment = static_cast<std::uint64_t>(
      read.metadata.integer("general.alignment", 32, 1, std::int64_t{1} << 30));
  if (!std::has_single_bit(alignment)) {
    read.metadata.fail("general.alignment", fmt::format("is {}, expected a power of 2", alignment));
  }
  const std::uint64_t data_start = (cursor.at() + alignment - 1) / alignment * alignment;
  check_places(path, read.tensors, data_start, alignment, bytes.size());
  return read;
}

bool is_gguf(const std::string& path) {
  if (is_folder(path)) {
    if (path_exists(path + "/config.json")) return false;
    std::error_code error;
    for (std::filesystem::directory_iterator at(path, error), end; !error && at != end;
         at.increment(error)) {
      if (at->path().extension() == ".gguf") return true;
    }
    return false;
  }
  if (!is_regular_file(path)) return false;
  if (path.ends_with(".gguf")) return true;
  if (path.ends_with(".safetensors")) return false;
  FileFacts facts;
  const FileDescriptor file = open_regular_file(path, facts);
  std::byte start[4] = {};
  if (facts.bytes >= 4) read_at(file, path, 0, start);
  return std::memcmp(start, "GGUF", 4) == 0;
}

GgufCheckpoint open_gguf(const std::string& path) {
  GgufCheckpoint opened;
  Checkpoint& checkpoint = opened.checkpoint;
  checkpoint.kind = "gguf";
  checkpoint.path = path;
  std::string name;
  if (is_folder(path)) {
    checkpoint.folder = path;
    name = only_model(path);
  } else {
    const std::filesystem::path file(path);
    checkpoint.folder = file.parent_path().empty() ? "." : file.parent_path().string();
    name = file.filename().string();
  }
  std::string stem;
  int n_parts = 1;
  const bool split = split_name(name, stem, n_parts);
  if (n_parts > kSplitsMax) refuse(path, fmt::format("is one of {} parts", n_parts));
  std::int64_t n_declared = -1;
  for (int part = 1; part <= n_parts; ++part) {
    SourceFile file;
    file.name = split ? part_name(stem, part, n_parts) : name;
    file.path = checkpoint.folder + "/" + file.name;
    if (!path_exists(file.path)) {
      refuse(file.path, fmt::format("is missing: part {} of {} of the model", part, n_parts));
    }
    file.descriptor = open_regular_file(file.path, file.facts);
    GgufFile read = read_gguf(file.path, file.descriptor, file.facts, part - 1);
    const std::int64_t count = read.metadata.integer("split.count", 0, 0, 65535);
    if (count > 1 || split) {
      if (count != n_parts) {
        read.metadata.fail("split.count", fmt::format("is {}, but the file's name says {} of {}",
                                                      count, part, n_parts));
      }
      const std::int64_t no = read.metadata.integer("split.no", 0, 65535);
      if (no != part - 1) {
        read.metadata.fail("split.no", fmt::format("is {}, expected {}", no, part - 1));
      }
      n_declared = read.metadata.integer("split.tensors.count", n_declared, 0, 1 << 30);
    }
    for (const Tensor& tensor : read.tensors) {
      if (!checkpoint.tensors.emplace(tensor.name, tensor).second) {
        refuse(file.path, fmt::format("tensor {} is there twice", tensor.name));
      }
    }
    checkpoint.files.push_back(std::move(file));
    if (part == 1) opened.metadata = std::move(read.metadata);
  }
  if (n_declared >= 0 && n_declared != static_cast<std::int64_t>(checkpoint.tensors.size())) {
    refuse(path, fmt::format("split.tensors.count is {}, but the parts hold {} tensors", n_declared,
                             checkpoint.tensors.size()));
  }
  return opened;
}

}  // namespace bolt
