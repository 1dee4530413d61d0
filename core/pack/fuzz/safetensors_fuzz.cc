// libFuzzer target: a safetensors header, as a checkpoint from a stranger may hold it.
#include "core/base/error.h"
#include "core/pack/fuzz/memory_file.h"
#include "core/pack/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static bolt::MemoryFile file("input.safetensors");
  const bolt::FileFacts facts = file.fill(data, size);
  try {
    for (const bolt::Tensor& tensor :
         bolt::read_safetensors_header(file.name(), file.descriptor(), facts.bytes, 0)) {
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
