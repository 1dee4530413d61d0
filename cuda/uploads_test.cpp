// Weights reach the device once, whoever shares them: the draft head computes with the model's own
// embedding and head.
#include "cuda/uploads.h"

#include <doctest/doctest.h>

#include <cstring>
#include <map>

#include "core/pack/graph_walk.h"
#include "core/pack/package.h"
#include "cuda/ops.h"

namespace bolt::cuda {
namespace {

Uploads uploads_of(const Graph& graph) {
  CudaOps ops(0, false);
  const Uploads before = uploads();
  (void)ops.place(graph);
  return {uploads().n - before.n, uploads().bytes - before.bytes};
}

}  // namespace

TEST_CASE("uploads: embedding, head and draft head share one upload") {
  const auto package =
      Package::open(BOLT_BINARY_DIR "/sample.bolt", {.n_threads = 1, .use_hash_cache = false});
  const Graph& graph = package->graph();
  REQUIRE(graph.draft.has_value());
  std::map<const void*, std::uint64_t> distinct;
  each_weight(graph, [&](const std::string&, const Weight& w) {
    distinct[w.data] = w.bytes;
    if (w.gains != nullptr) {
      distinct[w.gains] = static_cast<std::uint64_t>(w.n_matrices) * sizeof(float);
    }
  });
  std::uint64_t bytes = 0;
  for (const auto& [data, n] : distinct) bytes += n;
  const Uploads plain = uploads_of(graph);
  CHECK(plain.n == static_cast<int>(distinct.size()));
  CHECK(plain.bytes == bytes);

  // A draft vocabulary that is the head's own rows: nothing more to send.
  Graph shared = graph;
  shared.draft->vocab_head = graph.lm_head;
  CHECK(uploads_of(shared).n == plain.n);
  CHECK(uploads_of(shared).bytes == plain.bytes);

  // Control: a copy of the head at another address is one upload more, of its size.
  std::vector<std::byte> copy(graph.lm_head.bytes);
  std::memcpy(copy.data(), graph.lm_head.data, copy.size());
  Graph apart = graph;
  apart.draft->vocab_head = graph.lm_head;
  apart.draft->vocab_head.data = copy.data();
  CHECK(uploads_of(apart).n == plain.n + 1);
  CHECK(uploads_of(apart).bytes == plain.bytes + copy.size());
}

}  // namespace bolt::cuda
