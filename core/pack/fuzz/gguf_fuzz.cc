// libFuzzer target: a GGUF file, its header, tokenizer, template and configuration.
#include "core/base/error.h"
#include "core/pack/gguf_model.h"
#include "core/pack/source_blocks.h"
#include "core/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string name = "input.gguf";
  try {
    bolt::GgufCheckpoint opened;
    bolt::GgufFile read = bolt::parse_gguf(name, {reinterpret_cast<const char*>(data), size}, 0);
    for (const bolt::Tensor& tensor : read.tensors) {
      if (tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
      opened.checkpoint.tensors.emplace(tensor.name, tensor);
      // Its first row, decoded both ways.
      const bolt::SourceEncoding& encoding = *bolt::source_encoding(tensor.dtype);
      const auto n_cols = tensor.shape.back();
      if (n_cols > 4096) continue;
      const auto* row = reinterpret_cast<const std::byte*>(data) + tensor.offset;
      std::vector<float> values(static_cast<std::size_t>(n_cols));
      bolt::read_values(encoding, row, nullptr, 1.0f, static_cast<int>(n_cols), values.data());
      if (!bolt::is_integer(encoding.format)) continue;
      bolt::RowCodes codes;
      codes.resize(encoding.format, 1, static_cast<int>(n_cols));
      (void)bolt::read_codes(encoding, row, nullptr, static_cast<int>(n_cols), codes.codes.data(),
                             codes.scales.data());
    }
    opened.metadata = std::move(read.metadata);
    const std::string json = bolt::gguf_tokenizer_json(opened.metadata);
    const auto tokenizer = bolt::Tokenizer::from_json(json, name);
    (void)bolt::read_gguf_config(opened, *tokenizer);
    (void)bolt::gguf_template(opened.metadata);
  } catch (const bolt::Error& error) {
    if (error.code != bolt::Exit::input) std::abort();
  }
  return 0;
}
