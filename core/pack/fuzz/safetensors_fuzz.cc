// libFuzzer target: a safetensors header, as a checkpoint from a stranger may hold it.
#include <algorithm>

#include "core/base/error.h"
#include "core/pack/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string name = "input.safetensors";
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const std::uint64_t n = bolt::safetensors_header_bytes(
        name, bytes.first(std::min<std::size_t>(size, bolt::kStartBytes)), size);
    if (n > size - 8) std::abort();
    const std::string_view header(reinterpret_cast<const char*>(data) + 8, n);
    for (const bolt::Tensor& tensor : bolt::parse_safetensors_header(name, header, size, 0)) {
      // What the reader promises: every tensor lies inside the file and is as large as its shape.
      if (tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
      const auto element = static_cast<std::uint64_t>(bolt::dtype_bytes(tensor.dtype));
      if (static_cast<std::uint64_t>(tensor.n_elements()) * element != tensor.bytes) std::abort();
    }
  } catch (const bolt::Error& error) {
    if (error.code != bolt::Exit::input) std::abort();
  }
  return 0;
}
