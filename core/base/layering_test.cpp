// Keeps the arrows between the folders true, by reading every #include of the tree.
//   cmd -> core, receipts;   cuda -> core;   receipts -> nothing of ours
//   within core: base <- text <- pack <- ops <- engine
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Folder {
  std::string name;
  std::vector<std::string> may_include;  // folders, its own included
};

const std::vector<Folder> kFolders = {
    {"core/base", {"core/base"}},
    {"core/text", {"core/base", "core/text"}},
    {"core/pack", {"core/base", "core/text", "core/pack"}},
    {"core/ops", {"core/base", "core/pack", "core/ops"}},
    {"core/engine", {"core/base", "core/text", "core/pack", "core/ops", "core/engine"}},
    {"cuda", {"core/base", "core/pack", "core/ops", "core/engine", "cuda"}},
    {"receipts", {"receipts"}},
    {"cmd", {"core/base", "core/text", "core/pack", "core/ops", "core/engine", "receipts", "cmd"}},
};

bool is_within(const std::string& path, const std::string& folder) {
  return path.starts_with(folder + "/");
}

const Folder* folder_of(const std::string& path) {
  const auto it = std::find_if(kFolders.begin(), kFolders.end(),
                               [&](const Folder& f) { return is_within(path, f.name); });
  return it == kFolders.end() ? nullptr : &*it;
}

bool is_source(const fs::path& path) {
  const std::string ext = path.extension().string();
  return ext == ".h" || ext == ".cpp" || ext == ".cc" || ext == ".cu" || ext == ".cuh";
}

struct Include {
  int line;
  std::string target;
  bool quoted;
};

std::vector<Include> includes_of(const std::string& text) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*(["<])([^">]+)[">])re");
  std::vector<Include> includes;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (std::regex_search(line, match, kInclude)) {
      includes.push_back({number, match[2].str(), match[1] == "\""});
    }
  }
  return includes;
}

// What is wrong with the includes of one file; path is relative to the root, with '/'.
std::vector<std::string> violations(const std::string& path, const std::string& text) {
  std::vector<std::string> found;
  const Folder* folder = folder_of(path);
  if (folder == nullptr) return {path + ": lies in no folder that layering_test.cpp knows"};
  // nvcc compiles neither fmt nor simdjson: they stay out of headers and .cu files that it sees.
  const bool seen_by_nvcc = is_within(path, "core/ops") || is_within(path, "cuda");
  for (const Include& include : includes_of(text)) {
    const std::string where = path + ":" + std::to_string(include.line) + ": " + include.target;
    const Folder* target = folder_of(include.target);
    if (target != nullptr) {
      if (std::find(folder->may_include.begin(), folder->may_include.end(), target->name) ==
          folder->may_include.end()) {
        found.push_back(where + ": " + folder->name + " must not include " + target->name);
      }
    } else if (include.quoted && !include.target.ends_with(".inc")) {
      found.push_back(where + ": our own files are named from the root (core/base/bits.h)");
    } else if (seen_by_nvcc && !path.ends_with(".cpp") && !path.ends_with(".cc") &&
               (include.target.starts_with("fmt/") || include.target == "simdjson.h")) {
      found.push_back(where + ": stays in files of the host compiler, as nvcc does not compile it");
    }
  }
  return found;
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

TEST_CASE("layering: every include follows the arrows") {
  const fs::path root = BOLT_SOURCE_DIR;
  int files = 0;
  size_t own_includes = 0;
  for (const char* top : {"core", "cuda", "receipts", "cmd"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const std::string path = fs::relative(entry.path(), root).generic_string();
      const std::string text = read_text(entry.path());
      for (const std::string& line : violations(path, text)) FAIL_CHECK(line);
      for (const Include& include : includes_of(text)) {
        if (folder_of(include.target) == nullptr) continue;
        ++own_includes;
        CHECK_MESSAGE(fs::exists(root / include.target), path, ": ", include.target,
                      " is not there");
      }
      ++files;
    }
  }
  CHECK(files > 20);  // the walk saw the tree
  CHECK(own_includes > 40);
}

TEST_CASE("layering: planted violations are caught, in whatever spelling") {
  struct {
    const char* path;
    const char* text;
  } const planted[] = {
      {"receipts/seal.cpp", "// reads alone\n#include \"core/base/error.h\"\n"},
      {"receipts/seal.h", "#  include <core/base/error.h>\n"},
      {"receipts/seal.cpp", "#include \"../core/base/error.h\"\n"},
      {"core/base/bits.h", "#include \"core/ops/ops.h\"\n"},
      {"core/text/chat.cpp", " #include\"core/pack/package.h\"\n"},
      {"core/ops/linear.cpp", "#include \"core/engine/engine.h\"\n"},
      {"core/engine/engine.cpp", "#include \"receipts/seal.h\"\n"},
      {"core/engine/engine.cpp", "#include \"cuda/memory.h\"\n"},
      {"core/engine/engine.h", "#include \"cmd/output.h\"\n"},
      {"cuda/ops.cu", "#include \"cmd/run.h\"\n"},
      {"cuda/ops.cuh", "#include <fmt/format.h>\n"},
      {"cmd/run.cpp", "#include \"cuda/backend.h\"\n"},
      {"core/base/json.cpp", "#include \"bits.h\"\n"},
      {"extra/new.cpp", "\n"},
  };
  for (const auto& plant : planted) {
    CHECK_MESSAGE(violations(plant.path, plant.text).size() == 1, plant.path, ": ", plant.text);
  }
  CHECK(violations("cmd/run.cpp",
                   "#include <CLI/CLI.hpp>\n#include \"core/engine/engine.h\"\n"
                   "#include \"receipts/seal.h\"\n// #include \"cuda/backend.h\"\n")
            .empty());
}
