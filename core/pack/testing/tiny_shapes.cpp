#include "core/pack/testing/tiny_checkpoint.h"

namespace bolt::testing {

std::vector<TinyShape> tiny_shapes() {
  std::vector<TinyShape> all;
  const auto add = [&](const char* name, auto&& change) {
    TinySpec spec;
    spec.draft_pattern = "*E";
    change(spec);
    all.push_back({name, spec});
  };
  add("plain", [](TinySpec&) {});
  add("latent experts", [](TinySpec& s) { s.d_latent = 48; });
  add("no shared expert", [](TinySpec& s) { s.d_shared = 0; });
  add("router groups", [](TinySpec& s) {
    s.n_experts = 16;
    s.n_router_groups = 4;
    s.top_k_groups = 2;
    s.top_k = 3;
  });
  add("groups of one expert", [](TinySpec& s) {
    s.n_experts = 8;
    s.n_router_groups = 8;
    s.top_k_groups = 4;
  });
  add("dense", [](TinySpec& s) {
    s.pattern = "M-M*-M-";
    s.draft_pattern = "*-";
  });
  add("heads of 80", [](TinySpec& s) {
    s.head_dim = 80;
    s.mamba_head_dim = 80;
  });
  add("heads of 128", [](TinySpec& s) {
    s.head_dim = 128;
    s.n_heads = 4;
    s.n_kv_heads = 2;
    s.mamba_head_dim = 64;
  });
  add("odd sizes", [](TinySpec& s) {
    s.d_model = 72;
    s.d_ff = 100;
    s.d_expert = 20;
    s.d_shared = 44;
    s.d_latent = 36;
    s.vocab_size = 333;
  });
  add("state 128, one group", [](TinySpec& s) {
    s.d_state = 128;
    s.n_ssm_groups = 1;
  });
  add("state 256, eight groups", [](TinySpec& s) {
    s.d_state = 256;
    s.mamba_heads = 8;
    s.mamba_head_dim = 16;
    s.n_ssm_groups = 8;
  });
  add("every layer twice, no head", [](TinySpec& s) {
    s.pattern = "MEM*E-M*-E";
    s.draft_pattern = "";
  });
  add("head of two attention layers", [](TinySpec& s) { s.draft_pattern = "*E*-"; });
  add("float16", [](TinySpec& s) { s.dtype = "F16"; });
  add("float32", [](TinySpec& s) { s.dtype = "F32"; });
  return all;
}

}  // namespace bolt::testing
