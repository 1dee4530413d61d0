// What one rendering may cost. A chat template comes with the package, so it is not trusted: memory
// and work are counted, not timed, so that a rendering is refused alike on every machine.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace bolt::jinja {

inline constexpr int kValueDepthMax = 128;  // lists and dicts within one another
inline constexpr int kInputDepthMax = 100;  // of JSON that comes in; messages wrap it in a few more

// Throws Error(input): the chat template ... what
[[noreturn]] void refuse(const std::string& what);

// The account of the thread's rendering, as long as it lives. Without one nothing is counted.
class Limits {
 public:
  // `input_bytes` is the size of what the template is given: long chats may cost more.
  explicit Limits(std::size_t input_bytes);
  ~Limits();
  Limits(const Limits&) = delete;
  Limits& operator=(const Limits&) = delete;

 private:
  friend class Charge;
  friend void charge_work(std::size_t n);
  friend void charge_text(std::size_t n_bytes);
  friend void need_room(std::size_t n_bytes);
  void need(std::size_t n_bytes) const;

  Limits* outer_;
  std::size_t n_bytes_ = 0, n_bytes_max_;  // of values that live, and of all text printed
  std::size_t n_work_ = 0, n_work_max_;
};

// Counts work; a unit takes 20 to 100 ns. Throws Error(input) past the bound.
void charge_work(std::size_t n);
// Counts text that is printed, for good: macros and set blocks print into texts of their own.
void charge_text(std::size_t n_bytes);
// Throws Error(input) if values of `n_bytes` more would be past the bound: before they are built.
void need_room(std::size_t n_bytes);

// The bytes of one value, counted as long as it lives. Its Limits must outlive it.
class Charge {
 public:
  explicit Charge(std::size_t n_bytes);  // throws Error(input) past the bound
  ~Charge();
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  Limits* limits_;
  std::size_t n_bytes_;
};

// Where `needle` starts in `text` from `begin` on, npos if nowhere. Linear time, which is counted.
std::size_t find_text(std::string_view text, std::string_view needle, std::size_t begin = 0);

}  // namespace bolt::jinja
