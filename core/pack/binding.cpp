// Binding tensors to the graph's weights.
#include "core/pack/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/pack/graph_walk.h"
#include "core/pack/source_blocks.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

// Towers of the vision and audio wrappers, which text generation does not need.
constexpr std::string_view kOtherTowers[] = {"vision_model.", "mlp1.", "sound_encoder.",
                                             "sound_projection."};

// The name without the prefixes that say nothing: layers.3.norm.weight, mtp.layers.0.enorm.weight.
std::string_view plain_name(std::string_view name) {
  for (const std::string_view prefix : {"language_model.", "backbone.", "model."}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return name;
}

class Binder {
 public:
  Binder(const Checkpoint& checkpoint, const CheckpointConfig& config, bool without_mtp)
      : checkpoint_(checkpoint), config_(config), without_mtp_(without_mtp) {}

  BoundGraph run_drafter(const BlockDrafter& shaped, int vocab_size) {
    index_names();
    for (const char* part : {"lm_head.weight", "d2t", "t2d"}) {
      if (const Tensor* own = find(part)) {
        fail(
            fmt::format("tensor {}: drafters with a head or vocabulary of their own are not "
                        "supported",
                        own->name));
      }
    }
    bound_.graph.drafters = {shaped};
    bind_drafter(bound_.graph.drafters[0], vocab_size);
    refuse_leftovers();
    return std::move(bound_);
  }

  BoundGraph run() {
    index_names();
    ModelFacts& facts = bound_.facts;
    facts = config_.facts;
    if (without_mtp_ || !has_mtp_) {
      facts.draft_pattern.clear();
      facts.draft_mlps.clear();
      facts.draft_moes.clear();
    }
    bound_.graph = graph_skeleton(facts);
    Graph& graph = bound_.graph;
    bind(graph.embedding, "embedding", {"embeddings.weight", "embed_tokens.weight"});
    for (std::size_t i = 0; i < graph.layers.size(); ++i) {
      bind_layer(graph.layers[i], fmt::format("layers.{}.", i), fmt::format("layers.{}.", i));
    }
    bind(graph.final_norm, "final_norm", {"norm_f.weight"});
    bind_head();
    if (graph.draft) bind_draft(*graph.draft);
    refuse_leftovers();
    return std::move(bound_);
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(Exit::input, fmt::format("{}: {}", checkpoint_.path, problem));
  }

  void index_names() {
    for (const auto& [name, tensor] : checkpoint_.tensors) {
      const std::string_view plain = plain_name(name);
      const bool other =
          std::any_of(std::begin(kOtherTowers), std::end(kOtherTowers),
                      [full = std::string_view(name)](auto p) { return full.starts_with(p); });
      const bool mtp = plain.starts_with("mtp.") || tensor.alias.starts_with("mtp.");
      has_mtp_ = has_mtp_ || mtp;
      if (other || (mtp && without_mtp_)) {
        bound_.skipped.push_back(name);
        continue;
      }
      const auto [at, fresh] =
          by_name_.emplace(tensor.alias.empty() ? plain : plain_name(tensor.alias), &tensor);
      if (!fresh)
        fail(fmt::format("tensors {} and {} are the same part of the model", at->second->name,
                         name));
    }
    for (const std::string& name : checkpoint_.absent) bound_.skipped.push_back(name);
  }

  const Tensor* find(const std::string& plain) {
    const auto at = by_name_.find(plain);
    if (at == by_name_.end()) return nullptr;
    used_.insert(plain);
    return at->second;
  }

  // The format of a weight whose tensors have this dtype.
  Format format_of(const Tensor& tensor) const {
    const SourceEncoding* encoding = source_encoding(tensor.dtype);
    if (encoding) return encoding->format;
    fail(
        fmt::format("tensor {} is {}, expected BF16, F16 or F32 (or ModelOpt's U8 or "
                    "F8_E4M3, or a block format of GGUF)",
                    tensor.name, tensor.shape_text()));
  }

  // `shape` counts columns; ModelOpt's NVFP4 tensors have half as many bytes.
  void expect_shape(const Tensor& tensor, std::vector<std::int64_t> shape) const {
    if (tensor.dtype == "U8" && !shape.empty()) {
      if (shape.back() % 16 != 0) {
        fail(fmt::format("tensor {}: {} columns are no multiple of 16, which NVFP4 needs",
                         tensor.name, shape.back()));
      }
      shape.back() /= 2;
    }
    if (tensor.shape == shape) return;
    Tensor wanted;
    wanted.dtype = tensor.dtype;
    wanted.shape = std::move(shape);
    fail(fmt::format("tensor {} is {}, expected {}", tensor.name, tensor.shape_text(),
                     wanted.shape_text()));
  }

  void record(Weight& weight, const std::string& name, Transform transform,
              std::vector<const Tensor*> tensors) {
    // Vectors and the conv are kept as f32 whatever the checkpoint has; the rest keeps its format.
    const bool as_f32 = weight.format == Format::f32, router = name.ends_with(".router");
    for (const Tensor* tensor : tensors) {
      const Format format = format_of(*tensor);
      if ((as_f32 || router) && is_integer(format)) {
        fail(
            fmt::format("tensor {} is {}, expected BF16, F16 or F32: this weight is never "
                        "quantised",
                        tensor->name, tensor->dtype));
      }
      if (as_f32) continue;
      if (tensor == tensors.front()) weight.format = format;
      if (weight.format != format) {
        fail(fmt::format(
            "tensor {} is {}, but {} is {}; the matrices of a weight must share one dtype",
            tensor->name, tensor->dtype, tensors.front()->name, tensors.front()->dtype));
      }
    }
    // An embedding of codes lies in tiles, as the head does.
    if (is_integer(weight.format)) weight.layout = Layout::tiles;
    weight.bytes = weight_bytes(weight);
    Binding binding;
    binding.weight = name;
    binding.transform = transform;
    if (!tensors.empty()) binding.source = format_of(*tensors.front());
    binding.tensors = std::move(tensors);
    bound_.bindings.emplace(name, std::move(binding));
  }

  // The scales that stand beside a quantised weight's tensors; `bases` are the tensors' plain names
  // without ".weight".
  void record_scales(const Weight& weight, const std::string& ours,
                     const std::vector<std::string>& bases) {
    Binding& binding = bound_.bindings.at(ours);
    for (std::size_t i = 0; i < bases.size(); ++i) {
      const Tensor& tensor = *binding.tensors[i];
      for (const char* part : {".input_scale", ".k_scale", ".v_scale"}) {
        // Of activations, and of a cache of other codes than bolt's: nothing of the weights.
        if (const Tensor* other = find(bases[i] + part)) bound_.skipped.push_back(other->name);
      }
      if (tensor.dtype != "U8" && tensor.dtype != "F8_E4M3" && tensor.dtype != "NVFP4") continue;
      const Tensor* scale = find(bases[i] + ".weight_scale");
      const Tensor* scale_2 = find(bases[i] + ".weight_scale_2");
      if (tensor.dtype == "U8") {
        if (!scale || !scale_2) {
          fail(
              fmt::format("tensor {} is U8 without weight_scale and weight_scale_2; of checkpoints "
                          "with packed codes bolt reads ModelOpt's NVFP4",
                          tensor.name));
        }
        expect_dtype(*scale, "F8_E4M3", "the e4m3 scales of ModelOpt's NVFP4");
        expect_shape(*scale, {weight.n_rows, weight.n_cols / 16});
        binding.block_scales.push_back(scale);
        expect_scalar(*scale_2, 1);
        binding.scales.push_back(scale_2);
      } else if (tensor.dtype == "F8_E4M3") {
        if (!scale) {
          fail(fmt::format("tensor {} is F8_E4M3 without a weight_scale", tensor.name));
        }
        if (scale->dtype == "U8") {
          fail(
              fmt::format("tensor {} has U8 scales: MXFP8 is not supported; convert the BF16 "
                          "checkpoint with --quant q8",
                          tensor.name));
        }
        if (scale->n_elements() != 1) {
          fail(
              fmt::format("tensor {} has scales {}: FP8 with a scale for each tile or row is not "
                          "supported, only one a tensor",
                          tensor.name, scale->shape_text()));
        }
        expect_scalar(*scale, 1);
        binding.scales.push_back(scale);
      } else if (scale_2) {
        expect_scalar(*scale_2, weight.n_matrices);
        binding.scales.push_back(scale_2);
      }
    }
  }

  void expect_dtype(const Tensor& tensor, std::string_view dtype, const char* what) const {
    if (tensor.dtype == dtype) return;
    fail(fmt::format("tensor {} is {}, expected {}: {}", tensor.name, tensor.shape_text(), dtype,
                     what));
  }
  // n numbers of F32, in any shape.
  void expect_scalar(const Tensor& tensor, std::int64_t n) const {
    expect_dtype(tensor, "F32", "a scale");
    if (tensor.n_elements() == n) return;
    fail(fmt::format("tensor {} is {}, expected {} numbers", tensor.name, tensor.shape_text(), n));
  }

  // A weight of one tensor under the first of `names` that is there.
  void bind(Weight& weight, const std::string& ours, const std::vector<std::string>& names,
            Transform transform = Transform::copy) {
    const Tensor* tensor = nullptr;
    std::string base;
    for (const std::string& name : names) {
      if (tensor) break;
      tensor = find(name);
      base = name.substr(0, name.rfind(".weight"));
    }
    if (!tensor) fail_missing(names.front());
    const bool vector = weight.layout == Layout::plain && weight.n_rows == 1;
    if (vector) {
      expect_shape(*tensor, {weight.n_cols});
    } else {
      expect_shape(*tensor, {weight.n_rows, weight.n_cols});
    }
    record(weight, ours, transform, {tensor});
    record_scales(weight, ours, {base});
  }

  // A weight that is not there may be there in another exporter's form.
  [[noreturn]] void fail_missing(const std::string& name) const {
    struct Sign {
      const char* part;
      const char* exporter;
    };
    constexpr Sign kSigns[] = {
        {".weight_packed", "compressed-tensors (llm-compressor)"},
        {".qweight", "GPTQ or AWQ"},
        {".weight_scale_inv", "block-scaled FP8"},
        {".weight.absmax", "bitsandbytes"},
    };
    for (const Sign& sign : kSigns) {
      for (const auto& [found, tensor] : by_name_) {
        if (!std::string_view(found).ends_with(sign.part)) continue;
        fail(
            fmt::format("tensor {} is of {}; bolt reads ModelOpt's checkpoints (NVFP4, FP8), "
                        "GGUF, and bf16, f16 or f32",
                        tensor->name, sign.exporter));
      }
    }
    fail(fmt::format("tensor {} is missing", name));
  }

  void bind_conv(Weight& weight, const std::string& ours, const std::string& name) {
    const Tensor* tensor = find(name);
    if (!tensor) fail(fmt::format("tensor {} is missing", name));
    expect_shape(*tensor, {weight.n_rows, 1, weight.n_cols});
    record(weight, ours, Transform::copy, {tensor});
  }

  // Experts: one tensor each, or one that stacks them all.
  void bind_experts(Weight& weight, const std::string& ours, const std::string& mixer,
                    const char* part) {
    if (const Tensor* stacked = find(fmt::format("{}experts.{}", mixer, part))) {
      expect_shape(*stacked, {weight.n_matrices, weight.n_rows, weight.n_cols});
      if (stacked->dtype == "U8" || stacked->dtype == "F8_E4M3") {
        fail(fmt::format("tensor {} is {}: ModelOpt's checkpoints hold each expert by itself",
                         stacked->name, stacked->shape_text()));
      }
      record(weight, ours, Transform::copy, {stacked});
      record_scales(weight, ours, {fmt::format("{}experts.{}", mixer, part)});
      return;
    }
    std::vector<std::string> names;
    names.reserve(static_cast<std::size_t>(weight.n_matrices));
    for (int e = 0; e < weight.n_matrices; ++e) {
      names.push_back(fmt::format("{}experts.{}.{}.weight", mixer, e, part));
    }
    bind_each(weight, ours, names);
  }

  void bind_mixer(Mamba2& m, const std::string& ours, const std::string& p) {
    bind(m.in_proj, ours + "in_proj", {p + "in_proj.weight"});
    bind_conv(m.conv_w, ours + "conv_w", p + "conv1d.weight");
    if (config_.has_conv_bias || by_name_.contains(p + "conv1d.bias")) {
      bind(m.conv_b, ours + "conv_b", {p + "conv1d.bias"});
    } else {
      record(m.conv_b, ours + "conv_b", Transform::zeros, {});
    }
    // GGUF holds A = -exp(A_log) itself.
    if (by_name_.contains(p + "A")) {
      bind(m.A, ours + "A", {p + "A"});
    } else {
      bind(m.A, ours + "A", {p + "A_log"}, Transform::negated_exp);
    }
    bind(m.D, ours + "D", {p + "D"});
    bind(m.dt_bias, ours + "dt_bias", {p + "dt_bias"});
    bind(m.gate_norm, ours + "gate_norm", {p + "norm.weight"});
    bind(m.out_proj, ours + "out_proj", {p + "out_proj.weight"});
  }
  void bind_mixer(Attention& a, const std::string& ours, const std::string& p) {
    bind(a.q_proj, ours + "q_proj", {p + "q_proj.weight"});
    bind(a.k_proj, ours + "k_proj", {p + "k_proj.weight"});
    bind(a.v_proj, ours + "v_proj", {p + "v_proj.weight"});
    bind(a.o_proj, ours + "o_proj", {p + "o_proj.weight"});
  }
  void bind_mixer(Mlp& m, const std::string& ours, const std::string& p) {
    bind(m.up_proj, ours + "up_proj", {p + "up_proj.weight"});
    bind(m.down_proj, ours + "down_proj", {p + "down_proj.weight"});
  }
  void bind_mixer(Moe& m, const std::string& ours, const std::string& p) {
    bind(m.router, ours + "router", {p + "gate.weight"});
    bind(m.router_bias, ours + "router_bias", {p + "gate.e_score_correction_bias"});
    bind_experts(m.experts_up, ours + "experts_up", p, "up_proj");
    bind_experts(m.experts_down, ours + "experts_down", p, "down_proj");
    if (m.d_shared > 0) {
      bind(m.shared_up, ours + "shared_up", {p + "shared_experts.up_proj.weight"});
      bind(m.shared_down, ours + "shared_down", {p + "shared_experts.down_proj.weight"});
    }
    if (m.d_latent > 0) {
      bind(m.latent_down, ours + "latent_down", {p + "fc1_latent_proj.weight"});
      bind(m.latent_up, ours + "latent_up", {p + "fc2_latent_proj.weight"});
    }
  }

  void bind_layer(Layer& layer, const std::string& ours, const std::string& theirs) {
    bind(layer.norm, ours + "norm", {theirs + "norm.weight"});
    std::visit([&](auto& mixer) { bind_mixer(mixer, ours, theirs + "mixer."); }, layer.mixer);
  }

  // A tied head reads the embedding; a head that is stored all the same must be its equal.
  void bind_head() {
    Weight& head = bound_.graph.lm_head;
    if (!config_.facts.tied_embedding) {
      bind(head, "lm_head", {"lm_head.weight"});
      return;
    }
    const Tensor* embedding = bound_.bindings.at("embedding").tensors.front();
    if (const Tensor* stored = find("lm_head.weight")) {
      if (stored->dtype != embedding->dtype || stored->shape != embedding->shape ||
          digest(*stored) != digest(*embedding)) {
        fail(fmt::format("tensors {} and {} differ, but config.json says tie_word_embeddings",
                         stored->name, embedding->name));
      }
    }
    record(head, "lm_head", Transform::copy, {embedding});
    const Binding& of_embedding = bound_.bindings.at("embedding");
    bound_.bindings.at("lm_head").block_scales = of_embedding.block_scales;
    bound_.bindings.at("lm_head").scales = of_embedding.scales;
  }

  void bind_draft(DraftHead& draft) {
    const std::string first = "mtp.layers.0.";
    const std::string last = fmt::format("mtp.layers.{}.", draft.layers.size() - 1);
    bind(draft.enorm, "draft.enorm", {first + "enorm.weight"});
    bind(draft.hnorm, "draft.hnorm", {first + "hnorm.weight"});
    bind(draft.eh_proj, "draft.eh_proj", {first + "eh_proj.weight"});
    for (std::size_t i = 0; i < draft.layers.size(); ++i) {
      bind_layer(draft.layers[i], fmt::format("draft.layers.{}.", i),
                 fmt::format("mtp.layers.{}.", i));
    }
    bind(draft.final_norm, "draft.final_norm", {last + "final_layernorm.weight"});
  }

  // One tensor a matrix.
  void bind_each(Weight& weight, const std::string& ours, const std::vector<std::string>& names) {
    std::vector<const Tensor*> tensors;
    std::vector<std::string> bases;
    for (const std::string& name : names) {
      const Tensor* tensor = find(name);
      if (!tensor) fail_missing(name);
      if (weight.layout == Layout::plain) {
        expect_shape(*tensor, {weight.n_cols});
      } else {
        expect_shape(*tensor, {weight.n_rows, weight.n_cols});
      }
      tensors.push_back(tensor);
      bases.push_back(name.substr(0, name.rfind(".weight")));
    }
    record(weight, ours, Transform::copy, std::move(tensors));
    record_scales(weight, ours, bases);
  }

  void bind_drafter(BlockDrafter& d, int vocab_size) {
    const std::string at = std::string(kind_name(d.kind)) + ".";
    // The table's other rows are the target's.
    const Tensor* table = find("embed_tokens.weight");
    if (!table) fail("tensor embed_tokens.weight is missing: the mask's row is the drafter's own");
    expect_shape(*table, {vocab_size, d.mask_embedding.n_cols});
    record(d.mask_embedding, at + "mask_embedding", Transform::copy, {table});
    bound_.bindings.at(at + "mask_embedding").rows = {d.mask_id};
    bind(d.fc, at + "fc", {"fc.weight"});
    bind(d.hidden_norm, at + "hidden_norm", {"hidden_norm.weight"});
    std::vector<std::string> kv, k_norms;
    for (std::size_t i = 0; i < d.layers.size(); ++i) {
      const std::string ours = fmt::format("{}layers.{}.", at, i),
                        in = fmt::format("layers.{}.", i), attention = in + "self_attn.";
      BlockLayer& layer = d.layers[i];
      bind(layer.input_norm, ours + "input_norm", {in + "input_layernorm.weight"});
      bind(layer.q_proj, ours + "q_proj", {attention + "q_proj.weight"});
      bind(layer.q_norm, ours + "q_norm", {attention + "q_norm.weight"});
      if (d.has_sinks) bind(layer.sinks, ours + "sinks", {attention + "attention_sink_bias"});
      bind(layer.o_proj, ours + "o_proj", {attention + "o_proj.weight"});
      bind(layer.post_norm, ours + "post_norm", {in + "post_attention_layernorm.weight"});
      bind(layer.gate_proj, ours + "gate_proj", {in + "mlp.gate_proj.weight"});
      bind(layer.up_proj, ours + "up_proj", {in + "mlp.up_proj.weight"});
      bind(layer.down_proj, ours + "down_proj", {in + "mlp.down_proj.weight"});
      kv.push_back(attention + "k_proj.weight");
      kv.push_back(attention + "v_proj.weight");
      k_norms.push_back(attention + "k_norm.weight");
    }
    bind_each(d.kv_proj, at + "kv_proj", kv);
    bind_each(d.k_norm, at + "k_norm", k_norms);
    bind(d.final_norm, at + "final_norm", {"norm.weight"});
    if (d.markov_rank == 0) return;
    bind(d.markov_w1, at + "markov_w1", {"markov_head.markov_w1.weight"});
    bind(d.markov_w2, at + "markov_w2", {"markov_head.markov_w2.weight"});
  }

  void refuse_leftovers() const {
    std::size_t n = 0;
    const Tensor* first = nullptr;
    for (const auto& [name, tensor] : by_name_) {
      if (used_.contains(name)) continue;
      if (!first) first = tensor;
      ++n;
    }
    if (!first) return;
    fail(fmt::format("tensor {} {} is no part of the model that config.json describes{}",
                     first->name, first->shape_text(),
                     n > 1 ? fmt::format("; {} more are left over", n - 1) : ""));
  }

  std::string digest(const Tensor& tensor) const {
    const SourceFile& file = checkpoint_.files[static_cast<std::size_t>(tensor.file)];
    std::vector<std::byte> buffer(1 << 20);
    Sha256 sha;
    for (std::uint64_t at = 0; at < tensor.bytes; at += buffer.size()) {
      const std::size_t n = std::min<std::uint64_t>(buffer.size(), tensor.bytes - at);
      read_at(file.descriptor, file.path, tensor.offset + at, {buffer.data(), n});
      sha.update(buffer.data(), n);
    }
    return sha.hex();
  }

  const Checkpoint& checkpoint_;
  const CheckpointConfig& config_;
  const bool without_mtp_;
  bool has_mtp_ = false;
  std::map<std::string, const Tensor*, std::less<>> by_name_;  // by plain name
  std::set<std::string> used_;
  BoundGraph bound_;
};

}  // namespace

BoundGraph bind_checkpoint(const Checkpoint& checkpoint, const CheckpointConfig& config,
                           bool without_mtp) {
  return Binder(checkpoint, config, without_mtp).run();
}

BoundGraph bind_drafter(const Checkpoint& checkpoint, const BlockDrafter& shaped,
                        const Graph& target) {
  const CheckpointConfig none;
  return Binder(checkpoint, none, false).run_drafter(shaped, target.vocab_size);
}

}  // namespace bolt
