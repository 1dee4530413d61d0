// Test support: small Hugging Face checkpoints of random weights, in every shape that tests need,
// and a writer of safetensors files that may also write wrong ones. No product links this.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/pack/model_facts.h"

namespace bolt::testing {

struct TestTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

struct TinySpec {
  std::string pattern = "M*E-";  // M mamba2, * attention, - mlp, E moe
  std::string draft_pattern;     // of the MTP head: "*E", "*-"; empty: none
  int d_model = 64, vocab_size = 300;
  int mamba_heads = 4, mamba_head_dim = 32, d_state = 32, n_ssm_groups = 2, conv_kernel = 4;
  int n_heads = 2, n_kv_heads = 1, head_dim = 64;
  int d_ff = 96;
  int n_experts = 4, top_k = 2, d_expert = 32, d_shared = 64, d_latent = 0;
  int n_router_groups = 1, top_k_groups = 1;
  std::string dtype = "BF16";        // of matrices and norms
  std::string vector_dtype = "F32";  // of A_log, D, dt_bias and the router's bias
  std::string prefix = "backbone.";  // or "model.", or with "language_model." before it
  bool stacked_experts = false, conv_bias = true, tied = false;
  int n_shards = 1;  // above 1: with an index
  std::uint64_t seed = 1;
  // Last words: replace members of config.json, as JSON texts; an empty text leaves a member out.
  std::vector<std::pair<std::string, std::string>> config;
};

// One of every class of shapes that the family's models come in.
struct TinyShape {
  const char* name;
  TinySpec spec;
};
std::vector<TinyShape> tiny_shapes();

ModelFacts tiny_facts(const TinySpec& spec);
std::vector<TestTensor> tiny_tensors(const TinySpec& spec);
std::string tiny_config_json(const TinySpec& spec);

// Writes a whole checkpoint into `folder`, which is made: config, generation config, tokenizer (a
// byte tokenizer), chat template, tensors.
void write_tiny_checkpoint(const std::string& folder, const TinySpec& spec);
// The same with these tensors instead of the spec's.
void write_tiny_checkpoint(const std::string& folder, const TinySpec& spec,
                           const std::vector<TestTensor>& tensors);

void write_safetensors(const std::string& path, const std::vector<TestTensor>& tensors);
// Any header text before any data: for files that are wrong.
void write_raw_safetensors(const std::string& path, const std::string& header,
                           const std::string& data);

// A fresh folder under the system's temporary one, removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Converts a tiny checkpoint into `package` (bf16 kept, or q8), for tests that need a package.
void make_tiny_package(const std::string& package, const TinySpec& spec, bool q8 = false);

}  // namespace bolt::testing
