#include "core/pack/config.h"

#include <doctest/doctest.h>

#include "core/base/json.h"
#include "core/base/output.h"
#include "core/base/testing/caught.h"
#include "core/pack/package_text.h"
#include "core/pack/testing/tiny_checkpoint.h"

namespace bolt {
namespace {

using testing::error_of;
using testing::TemporaryFolder;
using testing::TinySpec;

// config.json of a tiny model with some members replaced.
CheckpointConfig read_with(std::vector<std::pair<std::string, std::string>> members,
                           TinySpec spec = {}) {
  const TemporaryFolder folder;
  spec.config = std::move(members);
  write_file_atomically(folder / "config.json", tiny_config_json(spec));
  return read_config_file(folder / "config.json");
}
std::string refusal(std::vector<std::pair<std::string, std::string>> members, TinySpec spec = {}) {
  const std::string line = error_of([&] { read_with(std::move(members), spec); });
  const auto at = line.find("config.json");
  return at == std::string::npos ? line : line.substr(0, 2) + line.substr(at);
}

TEST_CASE("config: a plain one gives its sizes, and its own text reads back equal") {
  TinySpec spec;
  spec.draft_pattern = "*E";
  spec.d_latent = 48;
  const CheckpointConfig config = read_with({}, spec);
  CHECK(config.facts.pattern == "M*E-");
  CHECK(config.facts.draft_pattern == "*E");
  CHECK(config.draft_declared);
  CHECK(config.facts.mamba2.d_in_proj() == 128 + 128 + 2 * 2 * 32 + 4);
  CHECK(config.facts.mamba2.dt_max == 0.0f);
  CHECK(config.facts.moes.at(0).d_latent == 48);
  CHECK(config.facts.moes.at(0).scaling_factor == 2.5f);
  CHECK(config.facts.mlps.at(0).d_ff == 96);
  CHECK(config.model.bos_id == 1);
  CHECK(config.model.stop_ids == std::vector<int>{2});

  ModelConfig model = config.model;
  model.n_tokens = 300;
  model.chat_template = "none";
  const std::string text = config_json(config.facts, model);
  ModelFacts facts;
  ModelConfig again;
  parse_config_json("config.json", text, facts, again);
  CHECK(config_json(facts, again) == text);
  CHECK(graph_json(graph_skeleton(facts)) == graph_json(graph_skeleton(config.facts)));
}

TEST_CASE("config: every spelling of a field") {
  const auto facts = [](std::vector<std::pair<std::string, std::string>> m) {
    return read_with(std::move(m)).facts;
  };
  CHECK(facts({{"hybrid_override_pattern", ""},
               {"layers_block_type", R"(["mamba", "attention", "moe", "mlp"])"}})
            .pattern == "M*E-");
  CHECK(facts({{"hybrid_override_pattern", ""},
               {"layer_types", R"(["linear_attention", "full_attention", "moe", "mlp"])"}})
            .pattern == "M*E-");
  CHECK(facts({{"layers_block_type", R"(["mamba", "attention", "moe", "mlp"])"}}).pattern ==
        "M*E-");
  CHECK(facts({{"mtp_layers_block_type", R"(["attention", "moe"])"},
               {"num_nextn_predict_layers", "1"}})
            .draft_pattern == "*E");
  CHECK(facts({{"n_groups", ""}, {"mamba_n_groups", "4"}}).mamba2.n_ssm_groups == 4);
  CHECK(facts({{"n_groups", ""}, {"mamba_num_groups", "1"}}).mamba2.n_ssm_groups == 1);
  CHECK(facts({{"conv_kernel", ""}, {"mamba_d_conv", "3"}}).mamba2.conv_kernel == 3);
  CHECK(facts({{"ssm_state_size", ""}, {"mamba_state_dim", "16"}}).mamba2.d_state == 16);
  CHECK(facts({{"layer_norm_epsilon", ""}, {"rms_norm_eps", "1e-6"}}).norm_eps == 1e-6f);
  CHECK(facts({{"layer_norm_epsilon", ""}, {"norm_eps", "1e-6"}}).norm_eps == 1e-6f);
  CHECK(facts({{"head_dim", ""}, {"attention_head_dim", "80"}}).attention.head_dim == 80);
  CHECK(facts({{"n_routed_experts", ""}, {"num_local_experts", "8"}}).moes[0].n_experts == 8);
  CHECK(facts({{"num_key_value_heads", "null"}}).attention.n_kv_heads == 2);
  CHECK(facts({{"time_step_limit", ""}, {"mamba_dt_limit", "[0.0, 0.5]"}}).mamba2.dt_max == 0.5f);
  CHECK(facts({{"time_step_limit", "[0.0, 1e30]"}}).mamba2.dt_max == 1e30f);
  CHECK(facts({{"time_step_limit", ""}}).mamba2.dt_max == 0.0f);
  CHECK(facts({{"intermediate_size", "[40]"}}).mlps[0].d_ff == 40);
  CHECK(facts({{"num_hidden_layers", "null"}}).pattern == "M*E-");
  CHECK(facts({{"num_hidden_layers", "99"}}).pattern == "M*E-");  // stale, as some files have it
  CHECK(facts({{"moe_latent_size", "0"}}).moes[0].d_latent == 0);
  CHECK(facts({{"n_shared_experts", "2"}}).moes[0].d_shared == 128);
  CHECK(read_with({{"use_conv_bias", ""}, {"mamba_conv_bias", "false"}}).has_conv_bias == false);
}

TEST_CASE("config: the text model of a wrapper, with stop ids of both") {
  const TemporaryFolder folder;
  TinySpec spec;
  write_file_atomically(
      folder / "config.json",
      "{\"model_type\": \"nemotron_h_omni\", \"eos_token_id\": 11, \"llm_config\": " +
          tiny_config_json(spec) + "}");
  const CheckpointConfig config = read_config_file(folder / "config.json");
  CHECK(config.wrapped);
  CHECK(config.facts.pattern == "M*E-");
  CHECK(config.model.stop_ids == std::vector<int>{2, 11});
}

TEST_CASE("config: nemotron_h_puzzle's sizes, layer by layer") {
  TinySpec spec;
  spec.pattern = "EME";
  const auto facts =
      read_with({{"model_type", "\"nemotron_h_puzzle\""},
                 {"block_configs", R"([{"moe_intermediate_size": 16, "num_experts_per_tok": 1},
                                   {}, {"n_routed_experts": 6, "moe_intermediate_size": 40}])"}},
                spec)
          .facts;
  CHECK(facts.moes[0].d_expert == 16);
  CHECK(facts.moes[0].top_k == 1);
  CHECK(facts.moes[0].n_experts == 4);
  CHECK(facts.moes[1].d_expert == 40);
  CHECK(facts.moes[1].n_experts == 6);
  CHECK(refusal({{"block_configs", "[{}]"}}, spec) ==
        "3 config.json: field \"block_configs\" has 1 entries, expected 3, one a layer");
}

TEST_CASE("config: what bolt cannot run is refused by name") {
  CHECK(
      refusal({{"model_type", "\"llama\""}}) ==
      "3 config.json: field \"model_type\" is \"llama\", expected nemotron_h or nemotron_h_puzzle: "
      "bolt runs the Nemotron-H family only");
  for (const char* bias : {"use_bias", "mamba_proj_bias", "mlp_bias", "attention_bias"}) {
    CHECK(refusal({{bias, "true"}}) ==
          "3 config.json: field \"" + std::string(bias) +
              "\" is true, expected false; this bias is not supported");
    CHECK(refusal({{bias, "false"}}) == "nothing");
  }
  CHECK(refusal({{"sliding_window", "4096"}}).find("sliding windows are not supported") !=
        std::string::npos);
  CHECK(refusal({{"sliding_window", "null"}}) == "nothing");
  CHECK(refusal({{"mlp_hidden_act", "\"silu\""}}) ==
        "3 config.json: field \"mlp_hidden_act\" is \"silu\", expected \"relu2\"");
  CHECK(refusal({{"mamba_hidden_act", "\"gelu\""}}).find("expected \"silu\"") != std::string::npos);
  CHECK(refusal({{"num_nextn_predict_layers", "2"}}).find("--without-mtp") != std::string::npos);
  CHECK(refusal({{"mtp_hybrid_override_pattern", "\"M*\""}}).find("--without-mtp") !=
        std::string::npos);
  CHECK(
      refusal({{"hybrid_override_pattern", "\"MX\""}}) ==
      "3 config.json: field \"hybrid_override_pattern\": layer 1 is 'X', expected one of M * - E");
  CHECK(refusal({{"hybrid_override_pattern", ""}}).find("neither hybrid_override_pattern") !=
        std::string::npos);
  CHECK(refusal({{"layers_block_type", R"(["mamba"])"}}).find("says M, but") != std::string::npos);
  CHECK(refusal({{"layer_types", R"(["conv"])"}}).find("layer_types[0]") != std::string::npos);
  CHECK(refusal({{"rms_norm_eps", "1e-3"}}).find("\"layer_norm_epsilon\" says") !=
        std::string::npos);
}

TEST_CASE("config: numbers out of range are refused before they are used") {
  const std::pair<const char*, const char*> bad[] = {
      {"hidden_size", "0"},
      {"hidden_size", "-1"},
      {"hidden_size", "4294967360"},
      {"hidden_size", "1e30"},
      {"hidden_size", "64.5"},
      {"hidden_size", "\"64\""},
      {"vocab_size", "0"},
      {"vocab_size", "9223372036854775807"},
      {"num_attention_heads", "0"},
      {"num_attention_heads", "5000"},
      {"num_key_value_heads", "0"},
      {"num_key_value_heads", "3"},
      {"head_dim", "0"},
      {"mamba_num_heads", "0"},
      {"mamba_num_heads", "3"},
      {"mamba_head_dim", "0"},
      {"ssm_state_size", "0"},
      {"n_groups", "0"},
      {"n_groups", "3"},
      {"conv_kernel", "0"},
      {"conv_kernel", "1"},
      {"n_routed_experts", "0"},
      {"num_experts_per_tok", "0"},
      {"num_experts_per_tok", "5"},
      {"moe_intermediate_size", "0"},
      {"n_group", "0"},
      {"n_group", "3"},
      {"topk_group", "0"},
      {"topk_group", "2"},
      {"intermediate_size", "0"},
      {"intermediate_size", "[1, 2]"},
      {"intermediate_size", "[]"},
      {"layer_norm_epsilon", "0"},
      {"layer_norm_epsilon", "NaN"},
      {"layer_norm_epsilon", "-1e-5"},
      {"routed_scaling_factor", "Infinity"},
      {"time_step_limit", "[0.0]"},
      {"time_step_limit", "[-1.0, 1.0]"},
      {"time_step_limit", "[0.5, 0.1]"},
      {"time_step_limit", "[0.0, NaN]"},
      {"time_step_limit", "[0.0, 0.0]"},
      {"max_position_embeddings", "0"},
      {"moe_latent_size", "-1"},
      {"eos_token_id", "-2"},
      {"eos_token_id", "[2, \"x\"]"},
      {"bos_token_id", "1.5"},
      {"tie_word_embeddings", "1"},
  };
  for (const auto& [key, value] : bad) {
    INFO(std::string(key) << " " << std::string(value));
    CHECK(refusal({{key, value}}).starts_with("3 config.json"));
  }
  TinySpec many;
  many.pattern = std::string(5000, 'M');
  CHECK(refusal({}, many).find("5000, expected 1 to 4096") != std::string::npos);
  // Groups of one expert, and as many chosen as the chosen groups hold, are in range.
  CHECK(refusal({{"n_group", "4"}, {"topk_group", "2"}, {"num_experts_per_tok", "2"}}) ==
        "nothing");
  CHECK(refusal({{"n_group", "4"}, {"topk_group", "2"}, {"num_experts_per_tok", "3"}})
            .starts_with("3"));
}

TEST_CASE("config: null where a number must be is refused by its name") {
  CHECK(refusal({{"vocab_size", "null"}}) ==
        "3 config.json: field \"vocab_size\" is null, expected an integer");
  CHECK(refusal({{"hidden_size", "null"}}) ==
        "3 config.json: field \"hidden_size\" is null, expected an integer");
  CHECK(refusal({{"model_type", "null"}, {"architectures", ""}})
            .starts_with("3 config.json: field \"model_type\""));
  // Every member as null is either absent, as the family has it, or refused: never our own fault.
  const JsonDocument tiny =
      JsonDocument::parse("tiny", tiny_config_json(TinySpec{}), {.python_numbers = true});
  for (const auto& [name, value] : tiny.root().members()) {
    CAPTURE(std::string(name));
    const std::string line = refusal({{std::string(name), "null"}});
    CHECK((line == "nothing" || line.starts_with("3 config.json")));
  }
}

TEST_CASE("config: a layer letter that cannot be printed is escaped") {
  CHECK(refusal({{"hybrid_override_pattern", R"("M*E-\u0000")"}}) ==
        "3 config.json: field \"hybrid_override_pattern\": layer 4 is '\\u0000', expected one of "
        "M * - E");
}

TEST_CASE("config: what is no JSON is named as what it looks like") {
  const TemporaryFolder folder;
  const auto of = [&](const std::string& text) {
    write_file_atomically(folder / "config.json", text);
    return testing::caught([&] { read_config_file(folder / "config.json"); });
  };
  CHECK(of("<!DOCTYPE html><html>").says("looks like an HTML page"));
  CHECK(of("version https://git-lfs.github.com/spec/v1\n").says("looks like a git-lfs pointer"));
  CHECK(of("ggjt\x03").says("looks like an old ggml file"));
  CHECK(of("ggml").says("looks like an old ggml file"));
  CHECK(of("lmgg").says("looks like an old ggml file"));
  CHECK(of("nonsense").says("not valid JSON"));
}

}  // namespace
}  // namespace bolt
