// libFuzzer target: the JSON files of a package. The input is package.json, a zero byte,
// config.json, a zero byte, graph.json. The manifest is sealed anew, so that its fields are
// reached.
#include <filesystem>
#include <fstream>
#include <string_view>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/pack/fuzz/memory_file.h"
#include "core/pack/package.h"
#include "core/pack/package_text.h"

namespace {

// A folder in memory, one a process.
const std::string& folder() {
  static const std::string path = [] {
    const std::string made = "/dev/shm/bolt-package-fuzz-" + std::to_string(::getpid());
    std::filesystem::create_directories(made);
    return made;
  }();
  return path;
}

std::string sealed(std::string_view manifest) {
  std::string text(manifest);
  const std::size_t at = text.rfind(" \"sha256\": \"");
  if (at == std::string::npos) return text;
  text.resize(at);
  return text + " \"sha256\": \"" + bolt::sha256_hex(text) + "\"\n}\n";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t first = all.find('\0');
  const std::size_t second = first == all.npos ? all.npos : all.find('\0', first + 1);
  const auto part = [&](std::size_t begin, std::size_t end) {
    return begin > all.size() ? std::string() : std::string(all.substr(begin, end - begin));
  };
  const std::string config = first == all.npos ? "" : part(first + 1, second);
  const std::string graph = second == all.npos ? "" : part(second + 1, all.npos);
  try {
    bolt::ModelFacts facts;
    bolt::ModelConfig model;
    bolt::parse_config_json("config.json", config, facts, model);
    bolt::Graph skeleton = bolt::graph_skeleton(facts);
    bolt::parse_graph_json("graph.json", graph, skeleton);
    // One spelling: what was read is what would be written.
    if (bolt::graph_json(skeleton) != graph) std::abort();
  } catch (const bolt::Error& error) {
    if (error.code != bolt::Exit::input) std::abort();
  }
  std::ofstream(folder() + "/package.json", std::ios::binary) << sealed(all.substr(0, first));
  try {
    (void)bolt::Package::open(folder(), {.n_threads = 1, .use_hash_cache = false});
  } catch (const bolt::Error& error) {
    if (error.code != bolt::Exit::input && error.code != bolt::Exit::unmet &&
        error.code != bolt::Exit::fault)
      std::abort();
  }
  return 0;
}
