// libFuzzer target: the JSON files of a package. The input is package.json, a zero byte,
// config.json, a zero byte, graph.json. The manifest is sealed anew, so that its fields are
// reached.
#include <string_view>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/pack/manifest.h"
#include "core/pack/package_text.h"

namespace {

std::string sealed(std::string_view manifest) {
  std::string text(manifest);
  const std::size_t at = text.rfind(" \"sha256\": \"");
  if (at == std::string::npos) return text;
  text.resize(at);
  return text + " \"sha256\": \"" + bolt::sha256_hex(text) + "\"\n}\n";
}

// What a reader may say of a file that a stranger wrote.
template <class Read>
void expect_error_or_none(Read read) {
  try {
    read();
  } catch (const bolt::Error& error) {
    if (error.code != bolt::Exit::input && error.code != bolt::Exit::unmet) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t first = all.find('\0');
  const std::size_t second = first == all.npos ? all.npos : all.find('\0', first + 1);
  const auto part = [&](std::size_t begin, std::size_t end) {
    return begin == all.npos ? std::string() : std::string(all.substr(begin + 1, end - begin - 1));
  };
  expect_error_or_none([&] {
    const std::string config = part(first, second), graph = part(second, all.npos);
    bolt::ModelFacts facts;
    bolt::ModelConfig model;
    bolt::parse_config_json("config.json", config, facts, model);
    bolt::Graph skeleton = bolt::graph_skeleton(facts);
    bolt::parse_graph_json("graph.json", graph, skeleton);
    // One spelling: what was read is what would be written.
    if (bolt::graph_json(skeleton) != graph) std::abort();
  });
  expect_error_or_none([&] {
    const bolt::Manifest manifest =
        bolt::parse_manifest("package.json", sealed(all.substr(0, first)));
    // No name may lead out of the folder.
    for (const bolt::PackageFile& file : manifest.files) {
      if (file.path.empty() || file.path.find('/') != file.path.npos || file.path == "..")
        std::abort();
    }
  });
  return 0;
}
