// Routing and experts (§8): the choice against a sort written apart, the sums against linears of
// one expert at a time, every form and thread count, rows alone against rows among others, marks,
// and wrong twins.
#include <algorithm>
#include <numeric>

#include "core/base/bits.h"
#include "core/base/exact_math.h"
#include "core/ops/linear_kernels.h"
#include "core/ops/routing.h"
#include "core/ops/test_support.h"

using namespace bolt;

namespace {

// The contract's choice by a stable sort, and its weights.
enum class Twin { right, ties_to_higher, smaller_added_first, sum_by_id, bias_in_weights };
std::vector<Choice> choose(const Moe& moe, const float* logits, Twin twin = Twin::right) {
  const auto n = static_cast<std::size_t>(moe.n_experts);
  std::vector<float> scores(n), keys(n);
  for (std::size_t i = 0; i < n; ++i) {
    scores[i] = exact_sigmoid(logits[i]);
    keys[i] = scores[i] + moe.router_bias.as_f32()[i];
  }
  if (moe.n_router_groups > 1) {
    const std::size_t size = n / static_cast<std::size_t>(moe.n_router_groups);
    std::vector<std::pair<float, int>> groups;
    for (int g = 0; g < moe.n_router_groups; ++g) {
      std::vector<float> of(keys.begin() + g * static_cast<std::ptrdiff_t>(size),
                            keys.begin() + (g + 1) * static_cast<std::ptrdiff_t>(size));
      std::sort(of.rbegin(), of.rend());
      groups.push_back({size == 1 ? of[0] : of[0] + of[1], g});
    }
    std::stable_sort(groups.begin(), groups.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (std::size_t g = static_cast<std::size_t>(moe.top_k_groups); g < groups.size(); ++g) {
      for (std::size_t i = 0; i < size; ++i) {
        keys[static_cast<std::size_t>(groups[g].second) * size + i] = -INFINITY;
      }
    }
  }
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const float ka = keys[static_cast<std::size_t>(a)], kb = keys[static_cast<std::size_t>(b)];
    return ka != kb ? ka > kb : twin == Twin::ties_to_higher && a > b;
  });
  order.resize(static_cast<std::size_t>(moe.top_k));
  const auto weight_of = [&](int id) {
    const auto i = static_cast<std::size_t>(id);
    return twin == Twin::bias_in_weights ? keys[i] : scores[i];
  };
  auto summed = order;
  if (twin == Twin::sum_by_id) std::sort(summed.begin(), summed.end());
  if (twin == Twin::smaller_added_first) std::reverse(summed.begin(), summed.end());
  float sum = 0;
  for (int id : summed) sum += weight_of(id);
  std::vector<Choice> choices;
  for (int id : order) {
    float w = weight_of(id);
    if (moe.norm_top_k) w = w / (sum + 1e-20f);
    choices.push_back({id, w * moe.scaling_factor});
  }
  return choices;
}

bool same(const std::vector<Choice>& a, const std::vector<Choice>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].expert != b[i].expert || float_bits(a[i].weight) != float_bits(b[i].weight))
      return false;
  }
  return a.size() == b.size();
}

struct Router {
  int n_experts, top_k, n_groups, top_groups;
};
constexpr Router kRouters[] = {
    {8, 2, 1, 1}, {128, 6, 1, 1}, {64, 6, 8, 3}, {16, 3, 16, 4}, {512, 22, 1, 1}};

// A layer of experts with its bytes.
struct ExpertLayer {
  Moe moe;
  SyntheticWeight bias, up, down;

  ExpertLayer(Format format_up, Format format_down, Router router, int width, int d_expert) {
    moe.n_experts = router.n_experts, moe.top_k = router.top_k, moe.d_expert = d_expert;
    moe.n_router_groups = router.n_groups, moe.top_k_groups = router.top_groups;
    moe.scaling_factor = 2.5f;
    bias = plain_weight(even_floats(3, router.n_experts, 0.3f), 1, router.n_experts);
    up = synthetic_weight(format_up, router.n_experts, d_expert, width, 4, 0.2f);
    down = synthetic_weight(format_down, router.n_experts, width, d_expert, 5, 0.2f);
    moe.router_bias = bias.weight, moe.experts_up = up.weight, moe.experts_down = down.weight;
  }
};

struct Result {
  std::vector<float> y;
  std::vector<std::uint8_t> marked;
};
Result run(HostOps& ops, const ExpertLayer& layer, const float* logits, const float* x,
           int n_rows) {
  const int width = layer.moe.experts_up.n_cols;
  TestBatch batch(n_rows);
  Result result;
  result.y.resize(static_cast<std::size_t>(n_rows * width));
  auto operand = ops.operand(n_rows, width);
  ops.quantize({x, n_rows, width}, is_integer(layer.moe.experts_up.format), *operand);
  ops.experts(batch.batch, layer.moe, {logits, n_rows, layer.moe.n_experts}, *operand,
              {result.y.data(), n_rows, width});
  result.marked = batch.marked;
  return result;
}

}  // namespace

TEST_CASE("routing: the choice and its weights are a stable sort's") {
  for (const Router& router : kRouters) {
    for (bool norm : {true, false}) {
      Moe moe;
      moe.n_experts = router.n_experts, moe.top_k = router.top_k;
      moe.n_router_groups = router.n_groups, moe.top_k_groups = router.top_groups;
      moe.norm_top_k = norm, moe.scaling_factor = 1.7f;
      const SyntheticWeight bias =
          plain_weight(even_floats(1, router.n_experts, 0.2f), 1, router.n_experts);
      const SyntheticWeight none = plain_weight(
          std::vector<float>(static_cast<std::size_t>(router.n_experts)), 1, router.n_experts);
      for (std::uint64_t row = 0; row < 50; ++row) {
        auto logits = even_floats(100 + row, router.n_experts, 4.0f);
        if (row % 2) {  // few values, so ties
          for (float& v : logits) v = std::floor(v);
        }
        moe.router_bias = row % 2 ? none.weight : bias.weight;
        std::vector<Choice> got(static_cast<std::size_t>(router.top_k));
        CHECK(route(moe, logits.data(), got.data()));
        CHECK(same(got, choose(moe, logits.data())));
      }
    }
  }
}

TEST_CASE("routing: wrong twins are caught") {
  Moe moe;
  moe.n_experts = 64, moe.top_k = 6;
  const SyntheticWeight bias = plain_weight(even_floats(1, 64, 0.2f), 1, 64);
  moe.router_bias = bias.weight;
  for (Twin twin :
       {Twin::ties_to_higher, Twin::smaller_added_first, Twin::sum_by_id, Twin::bias_in_weights}) {
    bool caught = false;
    for (std::uint64_t row = 0; row < 20 && !caught; ++row) {
      auto logits = even_floats(200 + row, 64, 4.0f);
      const SyntheticWeight none = plain_weight(std::vector<float>(64), 1, 64);
      if (twin == Twin::ties_to_higher) {
        for (float& v : logits) v = std::floor(v);
        moe.router_bias = none.weight;
      }
      std::vector<Choice> got(6);
      route(moe, logits.data(), got.data());
      caught = !same(got, choose(moe, logits.data(), twin));
      moe.router_bias = bias.weight;
    }
    CHECK_MESSAGE(caught, static_cast<int>(twin));
  }
}

TEST_CASE("experts: the sum is that of linears, one expert at a time, in the order of the choice") {
  for (Format format : {Format::q8, Format::nvfp4, Format::bf16}) {
    HostOps ops(1, Isa::scalar);
    const int width = 70, d_expert = 75;
    const ExpertLayer layer(format, format, {8, 3, 1, 1}, width, d_expert);
    const auto x = even_floats(6, width), logits = even_floats(7, 8, 2.0f);
    const Result got = run(ops, layer, logits.data(), x.data(), 1);
    const auto choices = choose(layer.moe, logits.data());
    const auto linear = [&](const Weight& all, int expert, const std::vector<float>& in,
                            Epilogue epilogue) {
      Weight one = all;
      one.n_matrices = 1;
      one.data = all.matrix(expert);
      one.bytes = all.matrix_bytes();
      if (one.gains != nullptr) one.gains += expert;
      TestBatch batch(1);
      std::vector<float> out(static_cast<std::size_t>(one.n_rows));
      auto operand = ops.operand(1, one.n_cols);
      ops.quantize({in.data(), 1, one.n_cols}, is_integer(format), *operand);
      ops.linear(batch.batch, *operand, one, epilogue, {out.data(), 1, one.n_rows});
      return out;
    };
    std::vector<float> want(static_cast<std::size_t>(width)), backwards = want;
    for (int i = 0; i < 3; ++i) {
      for (auto* sum : {&want, &backwards}) {
        const Choice& choice = choices[static_cast<std::size_t>(sum == &want ? i : 2 - i)];
        const auto hidden = linear(layer.moe.experts_up, choice.expert, x, Epilogue::relu2);
        const auto out = linear(layer.moe.experts_down, choice.expert, hidden, Epilogue::store);
        for (std::size_t k = 0; k < out.size(); ++k) {
          (*sum)[k] = std::fma(choice.weight, out[k], (*sum)[k]);
        }
      }
    }
    CHECK(same_bits(got.y, want));
    CHECK_FALSE(same_bits(got.y, backwards));  // planted: another order is seen
  }
}

TEST_CASE("experts: every form and thread count, alone and among others, gives the same bits") {
  struct Case {
    Format up, down;
    Router router;
    int width, d_expert;
  };
  const Case cases[] = {{Format::q8, Format::q8, {16, 3, 4, 2}, 96, 64},
                        {Format::nvfp4, Format::nvfp4, {8, 2, 1, 1}, 70, 45},
                        {Format::bf16, Format::q8, {8, 2, 1, 1}, 64, 33},
                        {Format::q8, Format::f32, {8, 8, 1, 1}, 40, 50},
                        {Format::f16, Format::f16, {4, 1, 1, 1}, 33, 31}};
  HostOps reference(1, Isa::scalar);
  for (const Case& c : cases) {
    const ExpertLayer layer(c.up, c.down, c.router, c.width, c.d_expert);
    const int n_rows = 150;
    const auto x = planted_floats(8, n_rows * c.width);
    const auto logits = even_floats(9, n_rows * c.router.n_experts, 3.0f);
    const Result all = run(reference, layer, logits.data(), x.data(), n_rows);
    for (Isa isa : isas_here()) {
      for (int n_threads : {1, 2, 3}) {
        HostOps ops(n_threads, isa);
        const Result some = run(ops, layer, logits.data(), x.data(), n_rows);
        CHECK_MESSAGE(same_bits(some.y, all.y), std::string(isa_name(isa)), " ", n_threads);
        CHECK(some.marked == all.marked);
      }
      HostOps ops(2, isa);
      for (int n = 1; n <= 32; n += n < 9 ? 1 : 7) {
        const int first = n * 3;
        const Result few =
            run(ops, layer, &logits[static_cast<std::size_t>(first * c.router.n_experts)],
                &x[static_cast<std::size_t>(first * c.width)], n);
        CHECK_MESSAGE(same_bits(few.y.data(), &all.y[static_cast<std::size_t>(first * c.width)],
                                few.y.size()),
                      std::string(isa_name(isa)), " ", n, " rows");
      }
    }
  }
}

TEST_CASE("experts: rows that are not finite are marked, alone, and the same everywhere") {
  const ExpertLayer layer(Format::q8, Format::q8, {8, 2, 1, 1}, 64, 64);
  auto x = even_floats(10, 5 * 64);
  auto logits = even_floats(11, 5 * 8, 3.0f);
  x[64 + 7] = bits_float(0x7fc00000u);
  logits[2 * 8 + 1] = bits_float(0xffc00000u);
  for (int i = 0; i < 64; ++i) x[static_cast<std::size_t>(3 * 64 + i)] = 1e30f;  // relu2 overflows
  std::vector<Result> results;
  for (Isa isa : isas_here()) {
    HostOps ops(2, isa);
    results.push_back(run(ops, layer, logits.data(), x.data(), 5));
    CHECK(results.back().marked == std::vector<std::uint8_t>{0, 1, 1, 1, 0});
    CHECK(same_bits(results[0].y, results.back().y));
  }
}
