// SHA-256 and HMAC come from OpenSSL; everything about framing is here.
#include "receipts/digest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "receipts/status.h"

namespace bolt::receipts {
namespace {

std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

void must(int ok) {
  if (ok != 1) throw Failure(Status::fault, "SHA-256: OpenSSL refused to hash");
}

// Fetched once: looking an algorithm up by name costs microseconds, and chains hash per token.
const EVP_MD* sha256_algorithm() {
  static const EVP_MD* const kAlgorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  if (kAlgorithm == nullptr) throw Failure(Status::fault, "SHA-256: not in this OpenSSL");
  return kAlgorithm;
}

std::string framed(std::string_view tag, std::initializer_list<std::string_view> parts) {
  std::size_t size = 8 + tag.size();
  for (const std::string_view part : parts) size += 8 + part.size();
  std::string message;
  message.reserve(size);
  message.append("bolt/1/").append(tag).push_back('\0');
  for (const std::string_view part : parts) message.append(u64le(part.size())).append(part);
  return message;
}

Digest merkle(std::span<const Digest> leaves) {
  if (leaves.size() == 1) return sha256(std::string("\0", 1).append(view(leaves[0])));
  std::size_t split = 1;
  while (split * 2 < leaves.size()) split *= 2;
  const Digest left = merkle(leaves.first(split)), right = merkle(leaves.subspan(split));
  return sha256(std::string("\1", 1).append(view(left)).append(view(right)));
}

}  // namespace

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  must(EVP_DigestInit_ex2(state_->context, sha256_algorithm(), nullptr));
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

Sha256& Sha256::update(std::string_view bytes) {
  must(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()));
  return *this;
}

Digest Sha256::finish() {
  Digest out;
  must(EVP_DigestFinal_ex(state_->context, out.data(), nullptr));
  must(EVP_DigestInit_ex2(state_->context, sha256_algorithm(), nullptr));
  return out;
}

Digest sha256(std::string_view bytes) { return Sha256().update(bytes).finish(); }
std::string sha256_hex(std::string_view bytes) { return hex(sha256(bytes)); }

std::string sha256_fd_hex(int fd, const std::string& name) {
  Sha256 hash;
  std::string buffer(1 << 18, '\0');
  off_t at = 0;
  while (true) {
    const ssize_t n = ::pread(fd, buffer.data(), buffer.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Failure(Status::fault, fmt::format("{}: cannot read: {}", name, std::strerror(errno)));
    }
    if (n == 0) return hex(hash.finish());
    hash.update(std::string_view(buffer).substr(0, static_cast<std::size_t>(n)));
    at += n;
  }
}

std::string sha256_file_hex(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    throw Failure(Status::fault, fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  }
  try {
    std::string result = sha256_fd_hex(fd, path);
    ::close(fd);
    return result;
  } catch (...) {
    ::close(fd);
    throw;
  }
}

std::string hex(std::span<const std::uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const std::uint8_t b : bytes) {
    out += kDigits[b >> 4];
    out += kDigits[b & 15];
  }
  return out;
}
std::string hex(const Digest& digest) { return hex(std::span<const std::uint8_t>(digest)); }

std::optional<std::string> bytes_from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string out;
  out.reserve(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
  }
  return out;
}

std::optional<Digest> digest_from_hex(std::string_view text) {
  if (text.size() != 64) return std::nullopt;
  const auto bytes = bytes_from_hex(text);
  if (!bytes) return std::nullopt;
  Digest out;
  std::memcpy(out.data(), bytes->data(), out.size());
  return out;
}

std::string u64le(std::uint64_t value) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i)
    out[static_cast<std::size_t>(i)] = static_cast<char>(value >> (8 * i));
  return out;
}

std::string u32le(std::uint32_t value) { return u64le(value).substr(0, 4); }

std::string ids_bytes(std::span<const int> ids) {
  std::string out;
  out.reserve(4 * ids.size());
  for (const int id : ids) out += u32le(static_cast<std::uint32_t>(id));
  return out;
}

Binder Binder::of(const Redaction& redaction) {
  return redaction.mode == Redaction::Mode::plain ? Binder() : Binder(redaction.key);
}

Digest Binder::raw(std::string_view message) const {
  if (!key_) return sha256(message);
  Digest out;
  unsigned size = 0;
  const auto* data = reinterpret_cast<const unsigned char*>(message.data());
  if (HMAC(sha256_algorithm(), key_->data(), static_cast<int>(key_->size()), data, message.size(),
           out.data(), &size) == nullptr) {
    throw Failure(Status::fault, "HMAC-SHA-256: OpenSSL refused to hash");
  }
  return out;
}

Digest Binder::bind(std::string_view tag, std::initializer_list<std::string_view> parts) const {
  return raw(framed(tag, parts));
}

std::string Binder::key_id() const {
  if (!key_) return {};
  const std::string_view key(reinterpret_cast<const char*>(key_->data()), key_->size());
  return hex(sha256(framed("key", {key})));
}

Chain::Chain(const Binder& binder, const Digest& task)
    : binder_(binder), value_(binder.bind("chain", {view(task)})) {}

void Chain::add(int id) {
  std::string message("bolt/1/tok\0", 11);
  message.append(view(value_)).append(u32le(static_cast<std::uint32_t>(id)));
  value_ = binder_.raw(message);
}

std::int64_t chain_stride(std::int64_t n) {
  constexpr std::int64_t kMarksMax = 4096;
  std::int64_t stride = 16;
  while ((n + stride - 1) / stride > kMarksMax) stride *= 2;
  return stride;
}

std::vector<std::string> chain_marks(const Binder& binder, const Digest& task,
                                     std::span<const int> ids, std::int64_t stride) {
  std::vector<std::string> marks;
  Chain chain(binder, task);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    chain.add(ids[i]);
    if ((i + 1) % static_cast<std::size_t>(stride) == 0 || i + 1 == ids.size()) {
      marks.push_back(hex(chain.value()));
    }
  }
  return marks;
}

Digest merkle_root(std::span<const Digest> leaves) {
  return leaves.empty() ? sha256("") : merkle(leaves);
}

std::string package_digest(std::vector<PackageFileFact> files) {
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  // The parts are framed here one after the other, because their number is not known beforehand.
  Sha256 hash;
  hash.update(std::string_view("bolt/1/pkg\0", 11));
  const auto part = [&](std::string_view bytes) { hash.update(u64le(bytes.size())).update(bytes); };
  for (const PackageFileFact& file : files) {
    const auto digest = digest_from_hex(file.sha256);
    if (!digest) {
      throw Failure(Status::fault, fmt::format("package file {}: no SHA-256 to seal", file.path));
    }
    part(file.path);
    part(file.role);
    part(u64le(file.bytes));
    part(view(*digest));
  }
  return hex(hash.finish());
}

std::string vocab_digest(int n_ids, const std::function<VocabEntry(int id)>& entry) {
  std::string tokens, special;
  for (int id = 0; id < n_ids; ++id) {
    const VocabEntry e = entry(id);
    tokens.append(u32le(static_cast<std::uint32_t>(e.bytes.size()))).append(e.bytes);
    special += e.special ? '\1' : '\0';
  }
  return hex(sha256(framed("vocab", {tokens, special})));
}

}  // namespace bolt::receipts
