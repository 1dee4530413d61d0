// ops_bench: speed of the linears against the memory's read rate, measured in the same run.
//
//   ops_bench [--threads N] [--megabytes M] [--isa NAME] [--format NAME] [--rows R,R,...]
//
// Weights fill M megabytes (default 1024), so that no cache holds them; medians of five with the
// least and the most. "x one row" is the rate of rows against the rate at one row.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/ops/bench/read_ceiling.h"
#include "core/ops/host.h"
#include "core/ops/linear_kernels.h"
#include "core/ops/synthetic.h"
#include "core/pack/tiles.h"

using namespace bolt;

namespace {

constexpr int kRepeats = 5;
constexpr int kN = 10304, kK = 2688;  // an in_proj of a 30B model

struct Options {
  int n_threads = usable_cores();
  std::uint64_t megabytes = 1024;
  std::string isa, format;
  std::vector<int> rows = {1, 2, 4, 8, 16, 32, 512};
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--threads") options.n_threads = std::stoi(value);
    if (name == "--megabytes") options.megabytes = std::stoull(value);
    if (name == "--isa") options.isa = value;
    if (name == "--format") options.format = value;
    if (name == "--rows") {
      options.rows.clear();
      for (std::size_t at = 0; at < value.size(); at = value.find(',', at) + 1) {
        options.rows.push_back(std::stoi(value.substr(at)));
        if (value.find(',', at) == std::string::npos) break;
      }
    }
  }
  return options;
}

struct Spread {
  double least, median, most;
};
// Seconds of `work`, after one run to warm up.
Spread seconds(const std::function<void()>& work) {
  std::vector<double> took;
  for (int i = 0; i <= kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> span = std::chrono::steady_clock::now() - start;
    if (i > 0) took.push_back(span.count());
  }
  std::sort(took.begin(), took.end());
  return {took.front(), took[kRepeats / 2], took.back()};
}

// Microseconds of a parallel region with next to no work, workers awake.
double region_us(ThreadPool& pool) {
  constexpr int kRegions = 20000;
  std::atomic<int> count{0};
  const auto work = [&](int begin, int end, int) { count += end - begin; };
  const Spread took = seconds([&] {
    for (int i = 0; i < kRegions; ++i) pool.parallel_for(pool.n_threads(), 1, std::ref(work));
  });
  return took.median / kRegions * 1e6;
}

void measure(HostOps& ops, Format format, const char* name, const Options& options, double ceiling,
             std::byte* pool) {
  const SyntheticWeight made = synthetic_weight(format, 1, kN, kK, 1, 0.01f);
  const std::uint64_t bytes = made.weight.bytes;
  const int n_copies = static_cast<int>((options.megabytes << 20) / bytes);
  for (int copy = 0; copy < n_copies; ++copy) {
    std::memcpy(pool + static_cast<std::uint64_t>(copy) * bytes, made.weight.data, bytes);
  }
  double one_row = 0;
  for (int n_rows : options.rows) {
    const std::vector<float> x = even_floats(2, n_rows * kK);
    std::vector<float> y(static_cast<std::size_t>(n_rows) * kN);
    std::vector<std::uint8_t> marked(static_cast<std::size_t>(n_rows));
    Batch batch;
    batch.n_rows = n_rows;
    batch.marked = marked;
    const auto operand = ops.operand(n_rows, kK);
    const int slow = ops.isa() == Isa::scalar ? 16 : 1;
    const int used = std::max(1, n_copies / std::max(1, n_rows * slow / 16));
    const Spread took = seconds([&] {
      for (int copy = 0; copy < used; ++copy) {
        Weight w = made.weight;
        w.data = pool + static_cast<std::uint64_t>(copy) * bytes;
        ops.quantize({x.data(), n_rows, kK}, is_integer(format), *operand);
        ops.linear(batch, *operand, w, Epilogue::store, {y.data(), n_rows, kN});
      }
    });
    const double volume = static_cast<double>(bytes) * used / 1e9;
    const double rate = n_rows * volume / took.median;
    if (n_rows == options.rows.front()) one_row = rate / n_rows;
    fmt::print(
        "{:6} {:7} {:4}  {:9.3f} ms  {:6.2f} GB/s [{:.2f} to {:.2f}]  {:3.0f}% of reads  "
        "{:7.1f} GMAC/s  {:5.2f} x one row\n",
        name, isa_name(ops.isa()), n_rows, took.median * 1e3 / used, volume / took.median,
        volume / took.most, volume / took.least, 100 * volume / took.median / ceiling,
        static_cast<double>(kN) * kK * n_rows * used / took.median / 1e9, rate / one_row);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const std::uint64_t bytes = options.megabytes << 20;
  HostOps memory(options.n_threads, Isa::scalar);
  auto* pool = static_cast<std::byte*>(memory.allocate(bytes, "the benchmark's weights"));
  std::memset(pool, 1, bytes);
  const std::span<const std::byte> whole(pool, bytes);
  const double ceiling = read_ceiling(memory.pool(), {&whole, 1}) / 1e9;
  fmt::print("{} threads, {} x {} weights, read ceiling {:.1f} GB/s\n", options.n_threads, kN, kK,
             ceiling);
  fmt::print("a parallel region of these threads takes {:.2f} us\n", region_us(memory.pool()));
  constexpr struct {
    Format format;
    const char* name;
  } kFormats[] = {
      {Format::q8, "q8"},         {Format::nvfp4, "nvfp4"},   {Format::bf16, "bf16"},
      {Format::f16, "f16"},       {Format::f32, "f32"},       {Format::fp8, "fp8"},
      {Format::q4_0, "q4_0"},     {Format::q4_1, "q4_1"},     {Format::q5_0, "q5_0"},
      {Format::q5_1, "q5_1"},     {Format::q2_k, "q2_k"},     {Format::q3_k, "q3_k"},
      {Format::q4_k, "q4_k"},     {Format::q5_k, "q5_k"},     {Format::q6_k, "q6_k"},
      {Format::iq4_nl, "iq4_nl"}, {Format::iq4_xs, "iq4_xs"}, {Format::iq2_xxs, "iq2_xxs"},
      {Format::mxfp4, "mxfp4"}};
  for (Isa isa : {Isa::avx512, Isa::avx2, Isa::scalar}) {
    if (!cpu_has(isa) || (!options.isa.empty() && options.isa != isa_name(isa))) continue;
    HostOps ops(options.n_threads, isa);
    for (const auto& f : kFormats) {
      if (!options.format.empty() && options.format != f.name) continue;
      measure(ops, f.format, f.name, options, ceiling, pool);
    }
  }
  return 0;
}
