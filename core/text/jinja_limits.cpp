#include "core/text/jinja_limits.h"

#include <fmt/format.h>
#include <string.h>

#include "core/base/error.h"

namespace bolt::jinja {
namespace {

// A known template keeps about as many bytes as it is given, and prints them once or twice.
constexpr std::size_t kBytesMax = 8u << 20, kBytesPerInputByte = 16;
// Half a second or so, and more for long chats: known templates take less than 2 units a byte.
constexpr std::size_t kWorkMax = 6'000'000, kWorkPerInputByte = 8;

thread_local Limits* current = nullptr;

}  // namespace

void refuse(const std::string& what) { throw Error(Exit::input, "the chat template " + what); }

Limits::Limits(std::size_t input_bytes)
    : outer_(current),
      n_bytes_max_(kBytesMax + kBytesPerInputByte * input_bytes),
      n_work_max_(kWorkMax + kWorkPerInputByte * input_bytes) {
  current = this;
}

Limits::~Limits() { current = outer_; }

void Limits::need(std::size_t n_bytes) const {
  if (n_bytes <= n_bytes_max_ - n_bytes_) return;
  refuse(fmt::format("builds more than {} MiB for this conversation", n_bytes_max_ >> 20));
}

void charge_work(std::size_t n) {
  if (current == nullptr) return;
  current->n_work_ += n;
  if (current->n_work_ <= current->n_work_max_) return;
  refuse(fmt::format("takes more than {} steps for this conversation", current->n_work_max_));
}

void charge_text(std::size_t n_bytes) {
  if (current == nullptr) return;
  charge_work(n_bytes / 64);
  current->need(n_bytes);
  current->n_bytes_ += n_bytes;
}

void need_room(std::size_t n_bytes) {
  if (current != nullptr) current->need(n_bytes);
}

Charge::Charge(std::size_t n_bytes) : limits_(current), n_bytes_(n_bytes) {
  if (limits_ == nullptr) return;
  charge_work(1 + n_bytes / 64);
  limits_->need(n_bytes);
  limits_->n_bytes_ += n_bytes;
}

Charge::~Charge() {
  if (limits_ != nullptr) limits_->n_bytes_ -= n_bytes_;
}

std::size_t find_text(std::string_view text, std::string_view needle, std::size_t begin) {
  if (begin > text.size()) return text.npos;
  if (needle.empty()) return begin;
  const void* found =
      memmem(text.data() + begin, text.size() - begin, needle.data(), needle.size());
  const std::size_t at =
      found != nullptr ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data())
                       : text.npos;
  charge_work(1 + ((found != nullptr ? at : text.size()) - begin + needle.size()) / 16);
  return at;
}

}  // namespace bolt::jinja
