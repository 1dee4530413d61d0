// Rendering chat templates: the part of Jinja2 that they use, with Python's values and with limits,
// so that a hostile template can neither run for ever nor fill the memory.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/text/jinja_value.h"

namespace bolt::jinja {

class Template {
 public:
  // Throws Error(usage) that names the line and what is not understood.
  explicit Template(std::string_view source);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // Whether the template reads a variable, or has a string constant, of this name.
  bool reads(std::string_view name) const;
  bool has_string(std::string_view text) const;
  bool has_attribute(std::string_view name) const;

  // The text, byte for byte as Jinja2 gives it under transformers' settings. Throws Error(usage)
  // for raise_exception and for whatever Jinja2 or Python would refuse, Error(input) for what costs
  // more than jinja_limits.h allows for these variables.
  std::string render(const Dict& variables) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bolt::jinja
