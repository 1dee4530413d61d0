// Random tiny models of every shape against a float64 reference that shares no code with the
// engine: logits of every position, and the draft head's chain.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/engine/ops_model.h"
#include "core/engine/testing/reference.h"
#include "core/ops/host.h"
#include "core/pack/package.h"
#include "core/pack/testing/tiny_checkpoint.h"

namespace bolt {
namespace {

using testing::Matrix;
using testing::Reference;
using testing::ReferenceShape;
using testing::TinySpec;

std::vector<double> values_of(const testing::TestTensor& tensor) {
  std::vector<double> values;
  const auto* bytes = reinterpret_cast<const unsigned char*>(tensor.bytes.data());
  const std::size_t width = tensor.dtype == "F32" ? 4 : 2;
  for (std::size_t i = 0; i < tensor.bytes.size(); i += width) {
    std::uint32_t u = 0;
    for (std::size_t b = 0; b < width; ++b) u |= std::uint32_t{bytes[i + b]} << (8 * b);
    const auto half = static_cast<std::uint16_t>(u);
    const float x = tensor.dtype == "F32"    ? bits_float(u)
                    : tensor.dtype == "BF16" ? bf16_to_float(half)
                                             : f16_to_float(half);
    values.push_back(static_cast<double>(x));
  }
  return values;
}

Reference reference_of(const TinySpec& spec) {
  ReferenceShape s;
  s.pattern = spec.pattern;
  s.draft_pattern = spec.draft_pattern;
  s.d_model = spec.d_model;
  s.vocab_size = spec.vocab_size;
  s.n_mamba_heads = spec.mamba_heads;
  s.mamba_head_dim = spec.mamba_head_dim;
  s.d_state = spec.d_state;
  s.n_ssm_groups = spec.n_ssm_groups;
  s.conv_kernel = spec.conv_kernel;
  s.n_heads = spec.n_heads;
  s.n_kv_heads = spec.n_kv_heads;
  s.head_dim = spec.head_dim;
  s.n_experts = spec.n_experts;
  s.top_k = spec.top_k;
  s.n_router_groups = spec.n_router_groups;
  s.top_k_groups = spec.top_k_groups;
  s.d_latent = spec.d_latent;
  s.d_shared = spec.d_shared;
  const ModelFacts facts = testing::tiny_facts(spec);
  if (!facts.moes.empty()) {
    s.norm_top_k = facts.moes[0].norm_top_k;
    s.scaling_factor = static_cast<double>(facts.moes[0].scaling_factor);
  }
  s.norm_eps = static_cast<double>(facts.norm_eps);
  auto tensors = std::make_shared<std::map<std::string, std::vector<double>>>();
  for (const testing::TestTensor& tensor : testing::tiny_tensors(spec)) {
    (*tensors)[tensor.name] = values_of(tensor);
  }
  return Reference(s, [tensors](const std::string& name) {
    const auto found = tensors->find(name);
    require(found != tensors->end(), name.c_str());
    return found->second;
  });
}

double largest(std::span<const double> x) {
  double most = 0.0;
  for (const double v : x) most = std::max(most, std::fabs(v));
  return most;
}

// The largest difference of any position's logits, over the largest logit; and of the chain.
struct Difference {
  double logits = 0.0;
  int n_wrong_drafts = 0, n_drafts = 0;
};

Difference compare(const TinySpec& spec, int n_ids, int chunk, KvKind kv) {
  const testing::TemporaryFolder folder;
  testing::make_tiny_package(folder / "tiny.bolt", spec);
  const auto package =
      Package::open(folder / "tiny.bolt", {.n_threads = 1, .use_hash_cache = false});
  HostOps ops(1, resolve_isa(Isa::automatic));
  ModelSizes sizes;
  sizes.kv = kv;
  sizes.context = 512;
  sizes.n_vocab = spec.vocab_size;
  OpsModel model(ops, package->graph(), sizes);
  const int slot = model.open_slot();

  std::vector<int> ids;
  for (int i = 0; i < n_ids; ++i) ids.push_back((i * i * 7 + 11 * i + 3) % spec.vocab_size);
  const Reference reference = reference_of(spec);
  const Matrix hidden = reference.hidden(ids);
  const Matrix expected = reference.logits(hidden);

  Difference out;
  std::vector<float> row(static_cast<std::size_t>(spec.vocab_size));
  int next = -1;
  for (int first = 0; first < n_ids; first += chunk) {
    const int n = std::min(chunk, n_ids - first);
    Window window;
    window.slot = slot;
    window.ids =
        std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
    window.sure = true;
    window.n_sampled = n;
    window.feed_head = !spec.draft_pattern.empty();
    std::vector<WindowResult> results;
    model.run({&window, 1}, results);
    for (int r = 0; r < n; ++r) {
      model.read_logits(0, r, row);
      const std::vector<double>& want = expected[static_cast<std::size_t>(first + r)];
      const double scale = std::max(1.0, largest(want));
      for (std::size_t i = 0; i < row.size(); ++i) {
        out.logits = std::max(out.logits, std::fabs(static_cast<double>(row[i]) - want[i]) / scale);
      }
    }
    next = results[0].sampled.back().id;
    model.commit(slot, n);
  }
  if (spec.draft_pattern.empty()) return out;

  // The chain: hidden rows of the target for what is known, its own output beyond.
  DraftAsk ask;
  ask.slot = slot;
  ask.next_id = next;
  ask.max_levels = 5;
  std::vector<std::vector<Draft>> chains;
  model.draft({&ask, 1}, chains);
  std::vector<int> following(ids.begin() + 1, ids.end());
  following.push_back(next);
  Matrix inputs = hidden;
  for (const Draft& draft : chains[0]) {
    const Matrix outputs = reference.head(inputs, following);
    const Matrix logits = reference.logits({outputs.back()});
    const auto best = std::max_element(logits[0].begin(), logits[0].end()) - logits[0].begin();
    out.n_wrong_drafts += draft.id != best;
    ++out.n_drafts;
    inputs.push_back(outputs.back());
    following.push_back(draft.id);
  }
  return out;
}

TEST_CASE("model: every shape agrees with the float64 reference") {
  for (const testing::TinyShape& shape : testing::tiny_shapes()) {
    CAPTURE(shape.name);
    const Difference difference = compare(shape.spec, 45, 32, KvKind::f32);
    CHECK(difference.logits < 1e-4);
    CHECK(difference.n_wrong_drafts == 0);
    if (!shape.spec.draft_pattern.empty()) CHECK(difference.n_drafts == 5);
  }
  // Past a tile of 128 keys, and with the integer cache.
  CHECK(compare(testing::tiny_shapes()[0].spec, 150, 32, KvKind::f32).logits < 1e-4);
  CHECK(compare(testing::tiny_shapes()[0].spec, 150, 17, KvKind::i16).logits < 5e-3);
}

TEST_CASE("model: the comparison sees a wrong model") {
  // The engine runs one seed's weights, the reference another's.
  TinySpec spec;
  const Reference right = reference_of(spec);
  spec.seed = 2;
  const Reference wrong = reference_of(spec);
  const std::vector<int> ids = {1, 2, 3, 4};
  const Matrix a = right.logits(right.hidden(ids)), b = wrong.logits(wrong.hidden(ids));
  double worst = 0.0;
  for (std::size_t i = 0; i < a[3].size(); ++i)
    worst = std::max(worst, std::fabs(a[3][i] - b[3][i]));
  CHECK(worst / std::max(1.0, largest(a[3])) > 1e-2);
}

}  // namespace
}  // namespace bolt
