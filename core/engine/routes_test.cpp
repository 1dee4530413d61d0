// The sample model by every route that a checkpoint may take: the same answers, and where nothing
// was rounded the same bits.
#include "core/engine/testing/routes.h"

#include <doctest/doctest.h>

#include <cstring>
#include <map>

#include "core/engine/testing/sample.h"
#include "core/pack/convert.h"
#include "core/pack/graph_walk.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

using testing::Answer;
using testing::Golden;

std::unique_ptr<Package> converted(const std::string& source, const std::string& name) {
  ConvertOptions options;
  options.source = source;
  options.target = testing::scratch_folder() + "/" + name + ".bolt";
  options.n_threads = 2;
  const ConvertFacts facts = convert(options);
  CHECK(facts.verified);
  CHECK(facts.template_problem == "");
  return Package::open(options.target, {.n_threads = 2, .use_hash_cache = false});
}

// Answers to the golden prompts, and how many are the float64 reference's.
std::vector<Answer> answers(const Package& package, int& n_golden,
                            int device = testing::test_device()) {
  EngineOptions options;
  options.device = device;
  options.n_threads = 2;
  options.context = 2048;
  const auto engine = Engine::open(package, options);
  const auto sequence = engine->new_sequence();
  std::vector<Answer> all;
  n_golden = 0;
  for (const Golden& golden : testing::read_goldens()) {
    Request request;
    request.prompt_ids = golden.prompt;
    request.max_new = static_cast<std::int64_t>(golden.greedy.size());
    request.stop_ids = package.config().stop_ids;
    all.push_back(testing::answer(*engine, *sequence, request));
    n_golden += all.back().ids == golden.greedy;
  }
  return all;
}

// Names of the weights whose bytes differ. Routers are f32 in a GGUF, of the same values.
std::vector<std::string> differing(const Package& a, const Package& b) {
  std::vector<std::string> names;
  std::map<std::string, const Weight*> of_b;
  each_weight(b.graph(), [&](const std::string& name, const Weight& w) { of_b[name] = &w; });
  each_weight(a.graph(), [&](const std::string& name, const Weight& w) {
    const Weight& other = *of_b.at(name);
    if (name.ends_with(".router") && other.format == Format::f32) return;
    if (w.format != other.format || w.bytes != other.bytes ||
        std::memcmp(w.data, other.data, w.bytes) != 0)
      names.push_back(name);
  });
  return names;
}

}  // namespace

TEST_CASE("routes: bf16 through GGUF gives the checkpoint's own bits; a foreign exp, only A's") {
  int n_golden = 0;
  const Package& plain = testing::sample_package();
  const auto right = answers(plain, n_golden);
  CHECK(n_golden == 24);
  const std::string folder = testing::scratch_folder();
  testing::write_sample_gguf(folder + "/bf16.gguf", "BF16");
  const auto gguf = converted(folder + "/bf16.gguf", "gguf-bf16");
  CHECK(differing(plain, *gguf).empty());
  CHECK(answers(*gguf, n_golden) == right);
  CHECK(gguf->config().stop_ids == plain.config().stop_ids);
  CHECK(gguf->config().chat_template_sha256 == plain.config().chat_template_sha256);
  const std::string text = "def solve(items):\n    return [x for x in items if x > 3]  # 12 é";
  CHECK(read_tokenizer(*gguf)->encode(text, true) == read_tokenizer(plain)->encode(text, true));

  testing::write_sample_gguf(folder + "/foreign.gguf", "BF16", /*foreign_exp=*/true);
  const auto foreign = converted(folder + "/foreign.gguf", "gguf-foreign");
  for (const std::string& name : differing(plain, *foreign)) CHECK(name.ends_with(".A"));
  const auto others = answers(*foreign, n_golden);
  CHECK(n_golden == 24);
  for (std::size_t i = 0; i < right.size(); ++i) CHECK(others[i].ids == right[i].ids);
}

TEST_CASE("routes: Q8_0, Q5_0, Q4_0, ModelOpt's FP8 and NVFP4 answer") {
  const std::string folder = testing::scratch_folder();
  // How many of 24 replies are the float64 reference's of the bf16 weights to the last id: the
  // arithmetic is exact, so these counts are the same everywhere.
  struct Route {
    std::string name;
    Format format;
    int n_golden;
  };
  for (const Route& route : {Route{"Q8_0", Format::q8, 24}, Route{"Q5_0", Format::q5_0, 20},
                             Route{"Q4_0", Format::q4_0, 20}, Route{"FP8", Format::fp8, 23},
                             Route{"NVFP4", Format::nvfp4, 22}}) {
    std::string source = folder + "/" + route.name;
    if (route.name.starts_with("Q")) {
      source += ".gguf";
      testing::write_sample_gguf(source, route.name);
    } else {
      testing::write_sample_modelopt(source, route.name == "FP8");
    }
    const auto package = converted(source, "route-" + route.name);
    const auto& mamba = std::get<Mamba2>(package->graph().layers.front().mixer);
    CHECK(mamba.in_proj.format == route.format);
    int n_golden = 0;
    const std::vector<Answer> all = answers(*package, n_golden);
    CHECK_MESSAGE(n_golden == route.n_golden, route.name, ": ", n_golden, " of 24");
    if (testing::test_device() >= 0) CHECK(answers(*package, n_golden, -1) == all);
  }
}

}  // namespace bolt
