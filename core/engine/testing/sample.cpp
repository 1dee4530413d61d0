#include "core/engine/testing/sample.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/json.h"
#include "core/base/sha256.h"
#include "core/pack/convert.h"
#include "core/pack/safetensors.h"
#include "core/text/chat.h"
#include "core/text/tokenizer.h"

namespace bolt::testing {
namespace {

const std::string kTestdata = std::string(BOLT_SOURCE_DIR) + "/testdata/";

struct Scratch {
  std::string path =
      (std::filesystem::temp_directory_path() / ("bolt-engine-test-" + std::to_string(::getpid())))
          .string();
  Scratch() { std::filesystem::create_directories(path); }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

template <class T>
std::vector<T> values_of(const FileMap& file, const Tensor& tensor) {
  std::vector<T> values(static_cast<std::size_t>(tensor.n_elements()));
  std::memcpy(values.data(), file.bytes().data() + tensor.offset, tensor.bytes);
  return values;
}

std::map<std::string, Tensor> tensors_of(const FileMap& file) {
  FileFacts facts;
  const FileDescriptor descriptor = open_regular_file(file.path(), facts);
  std::map<std::string, Tensor> tensors;
  for (const Tensor& t : read_safetensors_header(file.path(), descriptor, facts.bytes, 0)) {
    tensors[t.name] = t;
  }
  return tensors;
}

}  // namespace

const std::string& scratch_folder() {
  static const Scratch scratch;
  return scratch.path;
}

std::unique_ptr<Package> converted(const std::string& checkpoint, const std::string& target,
                                   std::optional<Format> quant) {
  ConvertOptions options;
  options.source = checkpoint;
  options.target = target;
  options.quant = quant;
  options.verify = false;  // the conversion's own tests do
  options.n_threads = 1;
  convert(options);
  return Package::open(target, {.n_threads = 1, .use_hash_cache = false});
}

const Package& sample_package(std::optional<Format> quant) {
  static std::map<int, std::unique_ptr<Package>> packages;
  std::unique_ptr<Package>& package = packages[quant ? static_cast<int>(*quant) : -1];
  if (!package) {
    package =
        converted(kTestdata + "sample-model",
                  scratch_folder() + "/sample-" + std::to_string(packages.size()) + ".bolt", quant);
  }
  return *package;
}

const Package& drafted_package(std::optional<Format> quant) {
  static std::map<int, std::unique_ptr<Package>> packages;
  std::unique_ptr<Package>& package = packages[quant ? static_cast<int>(*quant) : -1];
  if (!package) {
    std::string before = sample_package().path();
    for (const char* kind : {"dspark", "dflash"}) {
      ConvertOptions options;
      options.source = kTestdata + "sample-model/drafters/" + kind;
      options.drafter_for = before;
      options.quant = quant;
      options.target = before =
          scratch_folder() + "/with-" + kind + "-" + std::to_string(packages.size()) + ".bolt";
      options.n_threads = 1;
      convert(options);
    }
    package = Package::open(before, {.n_threads = 1, .use_hash_cache = false});
  }
  return *package;
}

int test_device() {
  const char* const text = std::getenv("BOLT_TEST_DEVICE");
  return text == nullptr ? -1 : std::atoi(text);
}

bool is_of_shard(std::size_t i) {
  const char* const text = std::getenv("BOLT_TEST_SHARD");
  unsigned k = 0, n = 1;
  if (text != nullptr) {
    require(std::sscanf(text, "%u/%u", &k, &n) == 2 && k < n, "BOLT_TEST_SHARD is K/N with K < N");
  }
  return i % n == k;
}

std::vector<Golden> read_goldens() {
  const FileMap file(kTestdata + "sample-model/goldens/goldens.safetensors");
  const std::map<std::string, Tensor> tensors = tensors_of(file);
  std::vector<Golden> goldens;
  for (int i = 0; tensors.count("prompt" + std::to_string(i)); ++i) {
    const std::string n = std::to_string(i);
    Golden golden;
    golden.prompt = values_of<int>(file, tensors.at("prompt" + n));
    golden.greedy = values_of<int>(file, tensors.at("greedy" + n));
    golden.drafts = values_of<int>(file, tensors.at("drafts" + n));
    const std::vector<float> logits = values_of<float>(file, tensors.at("logits" + n));
    const auto half = logits.begin() + static_cast<std::ptrdiff_t>(logits.size() / 2);
    golden.before_last.assign(logits.begin(), half);
    golden.last.assign(half, logits.end());
    goldens.push_back(golden);
  }
  return goldens;
}

std::vector<DrafterGolden> read_drafter_goldens() {
  const FileMap file(kTestdata + "sample-model/drafters/goldens.safetensors");
  const std::map<std::string, Tensor> tensors = tensors_of(file);
  std::vector<DrafterGolden> goldens;
  for (int i = 0; tensors.count("prompt" + std::to_string(i)); ++i) {
    const std::string n = std::to_string(i);
    DrafterGolden golden;
    golden.prompt = values_of<int>(file, tensors.at("prompt" + n));
    golden.reply = values_of<int>(file, tensors.at("reply" + n));
    for (std::size_t kind = 0; kind < 2; ++kind) {
      const std::string at = kind == 0 ? "dspark." : "dflash.";
      const auto drafts = values_of<int>(file, tensors.at(at + "drafts" + n));
      const auto accepted = values_of<int>(file, tensors.at(at + "accepted" + n));
      const auto leads = values_of<float>(file, tensors.at(at + "leads" + n));
      const std::size_t width = drafts.size() / accepted.size();
      for (std::size_t r = 0; r < accepted.size(); ++r) {
        const auto first = static_cast<std::ptrdiff_t>(r * width),
                   last = static_cast<std::ptrdiff_t>((r + 1) * width);
        golden.rounds[kind].push_back({{drafts.begin() + first, drafts.begin() + last},
                                       {leads.begin() + first, leads.begin() + last},
                                       accepted[r]});
      }
    }
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

std::vector<std::vector<int>> read_real30(const Package& package) {
  const auto tokenizer = Tokenizer::from_json(package.tokenizer_json(), "tokenizer.json");
  const ChatTemplate chat(package.config().chat_template, package.config().chat_facts);
  std::ifstream lines(kTestdata + "prompts/real30.jsonl");
  std::vector<std::vector<int>> prompts;
  for (std::string line; std::getline(lines, line);) {
    const JsonDocument document = JsonDocument::parse("real30.jsonl", line);
    std::vector<Message> messages;
    for (const JsonValue& message : document.root().at("messages").items()) {
      Message m;
      m.role = message.at("role").string();
      m.content = message.at("content").string();
      messages.push_back(m);
    }
    ChatOptions options;
    options.thinking = false;
    prompts.push_back(tokenizer->encode(chat.render(messages, options), false));
  }
  require(prompts.size() == 30, "real30 has 30 prompts");
  return prompts;
}

std::vector<int> text_ids(const Package& package, int n) {
  std::vector<int> ids;
  for (const std::vector<int>& prompt : read_real30(package)) {
    ids.insert(ids.end(), prompt.begin(), prompt.end());
  }
  require(n <= static_cast<int>(ids.size()), "enough text");
  ids.resize(static_cast<std::size_t>(n));
  return ids;
}

Answer answer(Engine& engine, Sequence& sequence, Request request, Reply* reply) {
  sequence.reset();
  request.want_logits = true;
  Sha256 hash;
  const auto sink = [&](int, std::span<const float> logits) {
    hash.update(logits.data(), logits.size_bytes());
    return true;
  };
  const Reply made = engine.generate(sequence, request, sink);
  if (reply) *reply = made;
  return {made.ids, hash.hex(), made.finish};
}

}  // namespace bolt::testing
