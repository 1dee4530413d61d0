// The engine's speed on one package: prompt and decode rates beside the memory's own, the cost of
// windows, and drafted against ordinary decoding at chosen acceptance rates, all in one run. Run by
// hand, not a test:  engine_bench PACKAGE [-t THREADS] [-p PROMPT] [-n TOKENS] [-r REPEATS]
//                                 [--chunk ROWS] [--kv i16|f32] [--isa NAME]
//                                 [--device cpu|cuda:N] [--no-graphs] [--rates none]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/engine/cost_table.h"
#include "core/engine/engine.h"
#include "core/ops/bench/read_ceiling.h"
#include "core/pack/package.h"
#include "core/pack/row_bytes.h"

namespace bolt {
namespace {

using Clock = std::chrono::steady_clock;

struct Spread {
  double median = 0, low = 0, high = 0;
};
Spread spread_of(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return {x[x.size() / 2], x.front(), x.back()};
}

struct Setup {
  std::string package;
  EngineOptions engine;
  int n_prompt = 512, n_new = 64, n_repeats = 5;
  std::vector<double> rates = {0.9, 0.7, 0.4, 0.1};
};

Setup parse(int n_args, char** args) {
  Setup setup;
  for (int i = 1; i < n_args; ++i) {
    const std::string arg = args[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= n_args) throw Error(Exit::usage, arg + ": expected a value");
      return args[++i];
    };
    if (arg == "-t") {
      setup.engine.n_threads = std::stoi(value());
    } else if (arg == "-p") {
      setup.n_prompt = std::stoi(value());
    } else if (arg == "-n") {
      setup.n_new = std::stoi(value());
    } else if (arg == "-r") {
      setup.n_repeats = std::stoi(value());
    } else if (arg == "--chunk") {
      setup.engine.chunk_rows = std::stoi(value());
    } else if (arg == "--device") {
      const std::string name = value();
      setup.engine.device = name == "cpu" ? -1 : name == "cuda" ? 0 : std::stoi(name.substr(5));
    } else if (arg == "--no-graphs") {
      setup.engine.graphs = false;
    } else if (arg == "--rates") {
      setup.rates = value() == "none" ? std::vector<double>{} : setup.rates;
    } else if (arg == "--kv") {
      setup.engine.kv = value() == "f32" ? KvKind::f32 : KvKind::i16;
    } else if (arg == "--isa") {
      const std::string name = value();
      for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
        if (name == isa_name(isa)) setup.engine.isa = isa;
      }
    } else {
      setup.package = arg;
    }
  }
  if (setup.package.empty()) throw Error(Exit::usage, "engine_bench: expected a package's path");
  return setup;
}

class Bench {
 public:
  explicit Bench(const Setup& setup)
      : setup_(setup), package_(Package::open(setup.package)), costs_path_(costs_path()) {
    EngineOptions options = setup.engine;
    options.cost_table = costs_path_;
    options.context =
        std::min<std::int64_t>(package_->config().context_limit, setup.n_prompt + setup.n_new + 64);
    engine_ = Engine::open(*package_, options);
    sequence_ = engine_->new_sequence();
    for (int i = 0; i < setup.n_prompt; ++i) {
      prompt_.push_back((i * 7919 + 13 + i * i % 97) % package_->config().n_tokens);
    }
  }
  ~Bench() { std::filesystem::remove(costs_path_); }

  void run() {
    const Graph& graph = package_->graph();
    const std::uint64_t row_bytes = bytes_of_row(graph);
    std::vector<std::span<const std::byte>> parts;
    std::uint64_t total = 0;
    each_weight(graph, [&](const std::string&, const Weight& weight) {
      parts.emplace_back(weight.data, weight.bytes);
      total += weight.bytes;
    });
    const double ceiling = ceiling_of(parts);
    std::printf("%s: %.1f MB of weights, %.1f MB a row; %s, %d threads; reads at most %.1f GB/s\n",
                setup_.package.c_str(), static_cast<double>(total) / 1e6,
                static_cast<double>(row_bytes) / 1e6, engine_->backend().arch.c_str(),
                engine_->n_threads(), ceiling / 1e9);

    once({});  // warm-up
    std::vector<double> prompt_rate, decode_rate;
    Reply plain;
    for (int i = 0; i < setup_.n_repeats; ++i) {
      plain = once({});
      prompt_rate.push_back(setup_.n_prompt * 1e9 / static_cast<double>(plain.prefill_ns));
      decode_rate.push_back(decode_rate_of(plain));
    }
    const Spread prompt = spread_of(prompt_rate), decode = spread_of(decode_rate);
    const double floor_ms = static_cast<double>(row_bytes) * 1e3 / ceiling;
    const double gb_per_s = decode.median * static_cast<double>(row_bytes) / 1e9;
    std::printf("prompt of %d   %9.1f tok/s  (%.1f to %.1f), first token after %.2f ms\n",
                setup_.n_prompt, prompt.median, prompt.low, prompt.high,
                setup_.n_prompt * 1e3 / prompt.median);
    std::printf("decode of %d    %9.1f tok/s  (%.1f to %.1f), %.2f GB/s, %.0f%% of the ceiling\n",
                setup_.n_new, decode.median, decode.low, decode.high, gb_per_s,
                100 * gb_per_s * 1e9 / ceiling);
    std::printf("a row's bytes take %.3f ms at the ceiling, a token %.2f times that\n", floor_ms,
                1e3 / decode.median / floor_ms);
    std::printf("prompt over decode: %.1f\n", prompt.median / decode.median);
    for (const double rate : setup_.rates) compare(plain, rate);
    print_costs();
  }

 private:
  static std::string costs_path() {
    return (std::filesystem::temp_directory_path() /
            ("bolt-bench-" + std::to_string(Clock::now().time_since_epoch().count())))
        .string();
  }

  double ceiling_of(std::span<const std::span<const std::byte>> parts) const {
    if (setup_.engine.device >= 0) return cuda_read_ceiling(setup_.engine.device);
    ThreadPool pool(engine_->n_threads());
    return read_ceiling(pool, parts);
  }

  Reply once(std::shared_ptr<const Script> script) {
    Request request;
    request.prompt_ids = prompt_;
    request.max_new = setup_.n_new;
    request.draft.source = script ? DraftOptions::Source::automatic : DraftOptions::Source::off;
    request.script = std::move(script);
    sequence_->reset();
    return engine_->generate(*sequence_, request, nullptr);
  }
  double decode_rate_of(const Reply& reply) const {
    return static_cast<double>(reply.ids.size() - 1) * 1e9 / static_cast<double>(reply.decode_ns);
  }

  // Drafted and ordinary by turns, so that both meet the same machine.
  void compare(const Reply& plain, double rate) {
    std::vector<double> ratios, passes;
    bool equal = true;
    for (int i = 0; i < setup_.n_repeats; ++i) {
      const auto script =
          std::make_shared<Script>(Script{plain.ids, rate, static_cast<std::uint64_t>(i)});
      const Reply ordinary = once({}), drafted = once(script);
      equal = equal && ordinary.ids == plain.ids && drafted.ids == plain.ids;
      ratios.push_back(decode_rate_of(drafted) / decode_rate_of(ordinary));
      passes.push_back(static_cast<double>(drafted.ids.size() - 1) /
                       static_cast<double>(drafted.counters.target));
    }
    const Spread ratio = spread_of(ratios);
    std::printf(
        "drafts right at %.1f: %5.2f times ordinary (%.2f to %.2f), %.2f tokens a pass, "
        "tokens %s\n",
        rate, ratio.median, ratio.low, ratio.high, spread_of(passes).median,
        equal ? "equal" : "DIFFER");
  }

  void print_costs() {
    std::ifstream file(costs_path_);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    if (text.empty()) return;
    const CostTable costs = CostTable::parse(costs_path_, text);
    std::printf("window of r rows over one row:");
    for (int r = 1; r <= 32; ++r) std::printf(" %.2f", costs.window(r) / costs.window(1));
    std::printf("\none row %.3f ms, head level %.3f ms\n", costs.window(1) / 1e6,
                costs.level(false) / 1e6);
  }

  const Setup setup_;
  std::unique_ptr<Package> package_;
  const std::string costs_path_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Sequence> sequence_;
  std::vector<int> prompt_;
};

}  // namespace
}  // namespace bolt

int main(int n_args, char** args) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each line as it is known, in a pipe, too
  try {
    bolt::Bench(bolt::parse(n_args, args)).run();
  } catch (const bolt::Error& error) {
    std::fprintf(stderr, "engine_bench: %s\n", error.what());
    return static_cast<int>(error.code);
  }
  return 0;
}
