// Writing the sample model in other formats.
#include "core/engine/testing/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/exact_math.h"
#include "core/base/file_map.h"
#include "core/base/json.h"
#include "core/base/output.h"
#include "core/pack/safetensors.h"
#include "core/pack/testing/tiny_checkpoint.h"
#include "core/text/tokenizer.h"

namespace bolt::testing {
namespace {

const std::string kSample = std::string(BOLT_SOURCE_DIR) + "/testdata/sample-model";

class Sample {
 public:
  Sample() : checkpoint_(open_checkpoint(kSample, false)) {}
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return checkpoint_.tensors; }
  std::string raw(const Tensor& tensor) const {
    std::string bytes(tensor.bytes, '\0');
    const SourceFile& file = checkpoint_.files[static_cast<std::size_t>(tensor.file)];
    read_at(file.descriptor, file.path, tensor.offset,
            std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
    return bytes;
  }
  std::vector<float> values(const Tensor& tensor) const {
    const std::string bytes = raw(tensor);
    std::vector<float> x(static_cast<std::size_t>(tensor.n_elements()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (tensor.dtype == "F32") {
        std::memcpy(&x[i], bytes.data() + 4 * i, 4);
      } else {
        std::uint16_t h = 0;
        std::memcpy(&h, bytes.data() + 2 * i, 2);
        x[i] = bf16_to_float(h);
      }
    }
    return x;
  }

 private:
  Checkpoint checkpoint_;
};

template <class T>
void put(std::string& to, T x) {
  to.append(reinterpret_cast<const char*>(&x), sizeof x);
}
void put_string(std::string& to, std::string_view text) {
  put(to, static_cast<std::uint64_t>(text.size()));
  to += text;
}

// ---- GGUF
struct GgufTensor {
  std::string name;
  std::vector<std::uint64_t> dims;  // innermost first
  std::uint32_t type = 0;
  std::string bytes;
};

class GgufWriter {
 public:
  void text(const std::string& key, std::string_view value) {
    start(key, 8);
    put_string(values_, value);
  }
  void u32(const std::string& key, std::uint32_t x) { start(key, 4), put(values_, x); }
  void f32(const std::string& key, float x) { start(key, 6), put(values_, x); }
  void boolean(const std::string& key, bool x) {
    start(key, 7), put(values_, static_cast<std::uint8_t>(x));
  }
  void i32s(const std::string& key, const std::vector<std::int32_t>& items) {
    start_array(key, 5, items.size());
    for (const std::int32_t x : items) put(values_, x);
  }
  void texts(const std::string& key, const std::vector<std::string>& items) {
    start_array(key, 8, items.size());
    for (const std::string& x : items) put_string(values_, x);
  }
  void tensor(GgufTensor tensor) { tensors_.push_back(std::move(tensor)); }

  void write(const std::string& path) const {
    std::string out = "GGUF";
    put(out, std::uint32_t{3});
    put(out, static_cast<std::uint64_t>(tensors_.size()));
    put(out, n_values_);
    out += values_;
    std::string data;
    for (const GgufTensor& t : tensors_) {
      put_string(out, t.name);
      put(out, static_cast<std::uint32_t>(t.dims.size()));
      for (const std::uint64_t d : t.dims) put(out, d);
      put(out, t.type);
      put(out, static_cast<std::uint64_t>(data.size()));
      data += t.bytes;
      data.resize((data.size() + 31) / 32 * 32);
    }
    out.resize((out.size() + 31) / 32 * 32);
    write_file_atomically(path, out + data);
  }

 private:
  void start(const std::string& key, std::uint32_t type) {
    put_string(values_, key);
    put(values_, type);
    ++n_values_;
  }
  void start_array(const std::string& key, std::uint32_t item, std::size_t n) {
    start(key, 9);
    put(values_, item);
    put(values_, static_cast<std::uint64_t>(n));
  }
  std::string values_;
  std::uint64_t n_values_ = 0;
  std::vector<GgufTensor> tensors_;
};

// The quantisers of llama.cpp's reference code, restated.
std::string blocks_of(const std::string& type, const std::vector<float>& x) {
  std::string out;
  if (type == "F32") {
    for (const float v : x) put(out, v);
    return out;
  }
  if (type == "BF16") {  // the sample's own numbers, which are bf16
    for (const float v : x) put(out, static_cast<std::uint16_t>(float_bits(v) >> 16));
    return out;
  }
  for (std::size_t at = 0; at < x.size(); at += 32) {
    float largest = 0.0f;  // by magnitude, with its sign
    for (std::size_t i = at; i < at + 32; ++i) {
      if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
    }
    const int levels = type == "Q8_0" ? 127 : type == "Q5_0" ? -16 : -8;
    const float d = (type == "Q8_0" ? std::fabs(largest) : largest) / static_cast<float>(levels);
    const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
    put(out, float_to_f16(d));
    if (type == "Q8_0") {
      for (std::size_t i = at; i < at + 32; ++i) {
        put(out, static_cast<std::int8_t>(std::lround(x[i] * inverse)));
      }
      continue;
    }
    const int most = type == "Q5_0" ? 31 : 15;
    int q[32];
    std::uint32_t fifth = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      q[i] =
          std::min(most, static_cast<int>(x[at + i] * inverse - static_cast<float>(levels) + 0.5f));
      fifth |= static_cast<std::uint32_t>(q[i] >> 4) << i;
    }
    if (type == "Q5_0") put(out, fifth);
    for (int i = 0; i < 16; ++i) {
      put(out, static_cast<std::uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4));
    }
  }
  return out;
}

std::uint32_t type_number(const std::string& type) {
  return type == "F32" ? 0 : type == "Q4_0" ? 2 : type == "Q5_0" ? 6 : type == "Q8_0" ? 8 : 30;
}

// Where a tensor of the sample goes: a name, and whether it is a linear.
struct Place {
  std::string name;
  bool linear = false;
};
Place gguf_place(const std::string& name) {
  static const std::map<std::string, Place> kGlobals = {
      {"backbone.embeddings.weight", {"token_embd.weight", true}},
      {"backbone.norm_f.weight", {"output_norm.weight", false}},
      {"lm_head.weight", {"output.weight", true}},
      {"mtp.layers.0.enorm.weight", {"blk.12.nextn.enorm.weight", false}},
      {"mtp.layers.0.hnorm.weight", {"blk.12.nextn.hnorm.weight", false}},
      {"mtp.layers.0.eh_proj.weight", {"blk.12.nextn.eh_proj.weight", true}},
      {"mtp.layers.0.norm.weight", {"blk.12.attn_norm.weight", false}},
      {"mtp.layers.1.norm.weight", {"blk.12.post_attention_norm.weight", false}},
      {"mtp.layers.1.final_layernorm.weight", {"blk.12.nextn.shared_head_norm.weight", false}},
  };
  static const std::map<std::string, Place> kTails = {
      {"norm.weight", {"attn_norm.weight", false}},
      {"mixer.in_proj.weight", {"ssm_in.weight", true}},
      {"mixer.conv1d.weight", {"ssm_conv1d.weight", false}},
      {"mixer.conv1d.bias", {"ssm_conv1d.bias", false}},
      {"mixer.dt_bias", {"ssm_dt.bias", false}},
      {"mixer.A_log", {"ssm_a", false}},
      {"mixer.D", {"ssm_d", false}},
      {"mixer.norm.weight", {"ssm_norm.weight", false}},
      {"mixer.out_proj.weight", {"ssm_out.weight", true}},
      {"mixer.q_proj.weight", {"attn_q.weight", true}},
      {"mixer.k_proj.weight", {"attn_k.weight", true}},
      {"mixer.v_proj.weight", {"attn_v.weight", true}},
      {"mixer.o_proj.weight", {"attn_output.weight", true}},
      {"mixer.gate.weight", {"ffn_gate_inp.weight", false}},
      {"mixer.gate.e_score_correction_bias", {"exp_probs_b.bias", false}},
      {"mixer.shared_experts.up_proj.weight", {"ffn_up_shexp.weight", true}},
      {"mixer.shared_experts.down_proj.weight", {"ffn_down_shexp.weight", true}},
      {"mixer.fc1_latent_proj.weight", {"ffn_latent_down.weight", true}},
      {"mixer.fc2_latent_proj.weight", {"ffn_latent_up.weight", true}},
  };
  const auto global = kGlobals.find(name);
  if (global != kGlobals.end()) return global->second;
  const bool mtp = name.starts_with("mtp.");
  const std::string rest = name.substr(mtp ? 11 : 16);  // mtp.layers. or backbone.layers.
  const std::size_t dot = rest.find('.');
  const auto tail = kTails.find(rest.substr(dot + 1));
  if (tail == kTails.end()) return {};
  const std::string block = mtp ? "12" : rest.substr(0, dot);
  return {fmt::format("blk.{}.{}", block, tail->second.name), tail->second.linear};
}

GgufTensor gguf_tensor(const std::string& name, std::vector<std::int64_t> shape,
                       const std::string& type, const std::vector<float>& x) {
  GgufTensor tensor;
  tensor.name = name;
  for (auto at = shape.rbegin(); at != shape.rend(); ++at) {
    tensor.dims.push_back(static_cast<std::uint64_t>(*at));
  }
  tensor.type = type_number(type);
  tensor.bytes = blocks_of(type, x);
  return tensor;
}

void add_experts(const Sample& sample, const std::string& type, GgufWriter& out) {
  for (const std::string layers : {"backbone.layers.", "mtp.layers."}) {
    for (int layer = 0; layer < 12; ++layer) {
      for (const std::string part : {"up", "down"}) {
        std::vector<float> all;
        std::vector<std::int64_t> shape;
        for (int e = 0;; ++e) {
          const auto at = sample.tensors().find(
              fmt::format("{}{}.mixer.experts.{}.{}_proj.weight", layers, layer, e, part));
          if (at == sample.tensors().end()) break;
          const auto x = sample.values(at->second);
          all.insert(all.end(), x.begin(), x.end());
          shape = {e + 1, at->second.shape[0], at->second.shape[1]};
        }
        if (all.empty()) continue;
        const std::string block = layers.starts_with("mtp") ? "12" : std::to_string(layer);
        out.tensor(
            gguf_tensor(fmt::format("blk.{}.ffn_{}_exps.weight", block, part), shape, type, all));
      }
    }
  }
}

void add_metadata(GgufWriter& out) {
  const std::string p = "nemotron_h_moe.";
  const std::string pattern = "MEM*EMEM*EME";
  out.text("general.architecture", "nemotron_h_moe");
  out.u32(p + "block_count", 13);
  out.u32(p + "nextn_predict_layers", 1);
  out.u32(p + "context_length", 8192);
  out.u32(p + "embedding_length", 256);
  out.u32(p + "vocab_size", 3200);
  std::vector<std::int32_t> ff, heads, kv;
  for (const char kind : pattern + "*") {
    ff.push_back(kind == 'E' ? 128 : 0);
    heads.push_back(kind == '*' ? 4 : 0);
    kv.push_back(kind == '*' ? 1 : 0);
  }
  ff.back() = 128;  // the MTP block is attention and experts in one
  out.i32s(p + "feed_forward_length", ff);
  out.i32s(p + "attention.head_count", heads);
  out.i32s(p + "attention.head_count_kv", kv);
  out.u32(p + "attention.key_length", 128);
  out.u32(p + "attention.value_length", 128);
  out.f32(p + "attention.layer_norm_rms_epsilon", 1e-5f);
  out.u32(p + "ssm.conv_kernel", 4);
  out.u32(p + "ssm.state_size", 64);
  out.u32(p + "ssm.group_count", 2);
  out.u32(p + "ssm.inner_size", 512);
  out.u32(p + "ssm.time_step_rank", 8);
  out.u32(p + "expert_count", 16);
  out.u32(p + "expert_used_count", 4);
  out.u32(p + "expert_shared_count", 1);
  out.u32(p + "expert_feed_forward_length", 128);
  out.u32(p + "expert_shared_feed_forward_length", 256);
  out.boolean(p + "expert_weights_norm", true);
  out.f32(p + "expert_weights_scale", 2.5f);
  out.u32(p + "moe_latent_size", 128);
}

void add_tokenizer(GgufWriter& out) {
  const JsonDocument document = JsonDocument::load(kSample + "/tokenizer.json");
  const JsonValue model = document.root().at("model");
  std::vector<std::string> tokens(3200), merges;
  std::vector<std::int32_t> types(3200, 1);
  for (const auto& [token, id] : model.at("vocab").members()) {
    tokens[static_cast<std::size_t>(id.integer())] = token;
  }
  for (const JsonValue& added : document.root().at("added_tokens").items()) {
    const auto id = static_cast<std::size_t>(added.at("id").integer());
    tokens[id] = added.at("content").string();
    types[id] = added.at("special").boolean() ? 3 : 4;
  }
  for (const JsonValue& merge : model.at("merges").items()) {
    const auto pair = merge.items();
    merges.push_back(std::string(pair[0].string()) + " " + std::string(pair[1].string()));
  }
  out.text("tokenizer.ggml.model", "gpt2");
  out.text("tokenizer.ggml.pre", "tekken");
  out.texts("tokenizer.ggml.tokens", tokens);
  out.i32s("tokenizer.ggml.token_type", types);
  out.texts("tokenizer.ggml.merges", merges);
  out.u32("tokenizer.ggml.bos_token_id", 1);
  out.u32("tokenizer.ggml.eos_token_id", 11);
  out.boolean("tokenizer.ggml.add_bos_token", false);
  out.text("tokenizer.chat_template", read_file(kSample + "/chat_template.jinja"));
}

// ---- ModelOpt
bool quantised_by_modelopt(const std::string& name, const Tensor& tensor) {
  return tensor.shape.size() == 2 && !name.starts_with("mtp.") && name.ends_with("_proj.weight");
}

// The code of the nearest of ascending numbers, the lower one where two are as near.
std::uint8_t nearest(double x, const std::vector<double>& numbers) {
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), x);
  if (above == numbers.begin()) return 0;
  const auto at = above == numbers.end() || x - above[-1] <= *above - x ? above - 1 : above;
  return static_cast<std::uint8_t>(at - numbers.begin());
}
double e4m3(int code) {
  return static_cast<double>(e4m3_to_float(static_cast<std::uint8_t>(code)));
}
const std::vector<double>& e4m3_numbers() {
  static const std::vector<double> numbers = [] {
    std::vector<double> all;
    for (int code = 0; code < 127; ++code) all.push_back(e4m3(code));
    return all;
  }();
  return numbers;
}

void add_nvfp4(const std::string& base, const Tensor& tensor, const std::vector<float>& x,
               std::vector<TestTensor>& to) {
  const std::vector<double> e2m1 = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  float amax = 0.0f;
  for (const float v : x) amax = std::max(amax, std::fabs(v));
  const float scale_2 = amax / 2688.0f;
  std::string codes, scales;
  std::vector<std::uint8_t> nibbles(x.size());
  for (std::size_t at = 0; at < x.size(); at += 16) {
    float largest = 0.0f;
    for (std::size_t i = at; i < at + 16; ++i) largest = std::max(largest, std::fabs(x[i]));
    const std::uint8_t scale =
        nearest(static_cast<double>(largest / 6.0f / scale_2), e4m3_numbers());
    scales += static_cast<char>(scale);
    const double s = e4m3(scale) * static_cast<double>(scale_2);
    for (std::size_t i = at; i < at + 16; ++i) {
      const double v = s > 0.0 ? static_cast<double>(std::fabs(x[i])) / s : 0.0;
      nibbles[i] = nearest(v, e2m1);
      if (x[i] < 0.0f) nibbles[i] |= 8;  // -0 too
    }
  }
  for (std::size_t i = 0; i < nibbles.size(); i += 2) {
    codes += static_cast<char>(nibbles[i] | nibbles[i + 1] << 4);
  }
  std::string global;
  put(global, scale_2);
  to.push_back({base + ".weight", "U8", {tensor.shape[0], tensor.shape[1] / 2}, codes});
  to.push_back(
      {base + ".weight_scale", "F8_E4M3", {tensor.shape[0], tensor.shape[1] / 16}, scales});
  to.push_back({base + ".weight_scale_2", "F32", {}, global});
}

void add_fp8(const std::string& base, const Tensor& tensor, const std::vector<float>& x,
             std::vector<TestTensor>& to) {
  float amax = 0.0f;
  for (const float v : x) amax = std::max(amax, std::fabs(v));
  const float scale = amax / 448.0f;
  std::string codes, global, input;
  for (const float v : x) {
    const std::uint8_t code = nearest(static_cast<double>(std::fabs(v) / scale), e4m3_numbers());
    codes += static_cast<char>(v < 0.0f ? code | 0x80 : code);
  }
  put(global, scale), put(input, 0.01f);
  to.push_back({base + ".weight", "F8_E4M3", tensor.shape, codes});
  to.push_back({base + ".weight_scale", "F32", {}, global});
  to.push_back({base + ".input_scale", "F32", {}, input});
}

}  // namespace

void write_sample_gguf(const std::string& path, const std::string& type, bool foreign_exp) {
  const Sample sample;
  GgufWriter out;
  add_metadata(out);
  add_tokenizer(out);
  for (const auto& [name, tensor] : sample.tensors()) {
    if (name.find(".experts.") != std::string::npos) continue;
    const Place place = gguf_place(name);
    require(!place.name.empty(), "every tensor of the sample has a place");
    std::vector<float> x = sample.values(tensor);
    std::vector<std::int64_t> shape = tensor.shape;
    if (name.ends_with("A_log")) {
      for (float& v : x) v = foreign_exp ? -std::exp(v) : -exact_exp(v);
    }
    if (name.ends_with("A_log") || name.ends_with("mixer.D")) shape.push_back(1);
    if (name.ends_with("conv1d.weight")) shape.erase(shape.begin() + 1);
    if (name.ends_with("mixer.norm.weight")) shape = {2, shape[0] / 2};
    out.tensor(gguf_tensor(place.name, shape, place.linear ? type : "F32", x));
  }
  add_experts(sample, type, out);
  out.write(path);
}

void write_sample_modelopt(const std::string& folder, bool fp8) {
  std::filesystem::create_directories(folder);
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "chat_template.jinja"}) {
    std::filesystem::copy_file(kSample + "/" + name, folder + "/" + name);
  }
  write_file_atomically(
      folder + "/hf_quant_config.json",
      fmt::format(R"({{"producer": {{"name": "modelopt"}}, "quantization": {{"quant_algo": "{}",
                      "exclude_modules": ["lm_head", "mtp*", "*gate*"]}}}})",
                  fp8 ? "FP8" : "NVFP4"));
  const Sample sample;
  std::vector<TestTensor> tensors;
  for (const auto& [name, tensor] : sample.tensors()) {
    if (!quantised_by_modelopt(name, tensor)) {
      tensors.push_back({name, tensor.dtype, tensor.shape, sample.raw(tensor)});
      continue;
    }
    const std::string base = name.substr(0, name.size() - 7);
    const auto x = sample.values(tensor);
    fp8 ? add_fp8(base, tensor, x, tensors) : add_nvfp4(base, tensor, x, tensors);
  }
  write_safetensors(folder + "/model.safetensors", tensors);
}

}  // namespace bolt::testing
