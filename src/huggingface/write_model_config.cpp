#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "espalier/huggingface/model_config.hpp"
#include "espalier/model/layer_kinds.hpp"
#include "espalier/util/error.hpp"
#include "huggingface/architectures.hpp"

namespace espalier {
namespace {

using nlohmann::ordered_json;

/// Keys of the experts. OLMoE's norms of all heads have the width of the model.
void AddExpertKeys(const Deck::Model& m, std::vector<std::string>& keys) {
  const Deck::Model::Experts& e = m.experts;
  if (m.qk_norm == QkNorm::kFull && m.heads * m.head_dim != m.dim)
    keys.push_back(fmt::format("model.head_dim = {}", m.head_dim));
  keys.push_back(fmt::format("experts.count = {}", e.count));
  if (e.shared_ffn_dim > 0) keys.push_back(fmt::format("experts.shared_ffn_dim = {}", e.shared_ffn_dim));
  if (e.first_layer > 0) keys.push_back(fmt::format("experts.first_layer = {}", e.first_layer));
  if (e.every > 1) keys.push_back(fmt::format("experts.every = {}", e.every));
  if (e.scores != RouterScores::kSoftmax) keys.push_back(fmt::format("experts.scores = \"{}\"", DeckName(e.scores)));
  if (!e.normalize) keys.push_back("experts.normalize = false");
  if (e.scale != 1) keys.push_back(fmt::format("experts.scale = {}", e.scale));
  if (e.groups > 1) keys.push_back(fmt::format("experts.groups = {}", e.groups));
  if (e.groups > 1 && e.group_best != 2) keys.push_back(fmt::format("experts.group_best = {}", e.group_best));
  if (e.bias) keys.emplace_back("experts.bias = true");
  if (e.mlp_bias) keys.emplace_back("experts.mlp_bias = true");
  if (e.router_bias) keys.emplace_back("experts.router_bias = true");
  if (e.swiglu_limit > 0) keys.push_back(fmt::format("experts.swiglu_limit = {}", e.swiglu_limit));
}

/// The keys in which a model differs from LlamaForCausalLM without biases.
std::vector<std::string> SpecialKeys(const Deck::Model& m) {
  std::vector<std::string> keys;
  const auto flag = [&](const char* name, bool value) {
    if (value) keys.push_back(fmt::format("model.{} = true", name));
  };
  if (m.norm_placement != NormPlacement::kPre)
    keys.push_back(fmt::format("model.norm_placement = \"{}\"", DeckName(m.norm_placement)));
  if (m.qk_norm != QkNorm::kNone) keys.push_back(fmt::format("model.qk_norm = \"{}\"", DeckName(m.qk_norm)));
  flag("qkv_bias", m.qkv_bias);
  flag("o_bias", m.o_bias);
  flag("mlp_bias", m.mlp_bias);
  if (m.attention != AttentionKind::kHeads)
    keys.push_back(fmt::format("model.attention = \"{}\"", DeckName(m.attention)));
  if (m.v_dim != m.head_dim) keys.push_back(fmt::format("model.v_dim = {}", m.v_dim));
  if (m.score_factor != 1) keys.push_back(fmt::format("model.score_factor = {}", m.score_factor));
  flag("rope_adjacent", m.rope_adjacent);
  if (m.rope_dim != m.head_dim) keys.push_back(fmt::format("model.rope_dim = {}", m.rope_dim));
  if (m.sliding_window > 0) keys.push_back(fmt::format("model.sliding_window = {}", m.sliding_window));
  if (m.full_attention_layers > 0)
    keys.push_back(fmt::format("model.full_attention_layers = {}", m.full_attention_layers));
  flag("sinks", m.sinks);
  if (m.full_attention_every > 0)
    keys.push_back(fmt::format("model.full_attention_every = {}", m.full_attention_every));
  if (m.experts.count > 0) AddExpertKeys(m, keys);
  return keys;
}

/// Layers, from 0, without experts.
std::vector<int64_t> DenseLayers(const Deck::Model& m) {
  std::vector<int64_t> dense;
  for (int l = 1; l <= m.layers; ++l)
    if (!KindOf(m, l).experts) dense.push_back(l - 1);
  return dense;
}

/// The layers of GLM-4.5 and of DeepSeek's models, but for their experts.
bool HasPlainLayers(const Deck::Model& m) {
  return !m.o_bias && !m.mlp_bias && m.norm_placement == NormPlacement::kPre && m.qk_norm != QkNorm::kFull &&
         m.sliding_window == 0;
}
/// Whole shared experts, and others in all layers from one on.
bool HasSharedExperts(const Deck::Model& m) {
  const Deck::Model::Experts& e = m.experts;
  const bool shared = e.shared_ffn_dim > 0 && e.shared_ffn_dim % e.ffn_dim == 0 && !e.shared_gate;
  return e.every == 1 && shared && HasPlainLayers(m);
}
/// DeepSeek-V3's router and shared experts.
bool IsGlm(const Deck::Model& m) {
  const Deck::Model::Experts& e = m.experts;
  return e.scores == RouterScores::kSigmoid && e.bias && (e.groups == 1 || e.group_best == 2) && HasSharedExperts(m);
}

/// Something that multi-head latent attention alone has in Hugging Face's architectures.
bool IsLikeDeepSeek(const Deck::Model& m) {
  return m.attention == AttentionKind::kMla || m.v_dim != m.head_dim || m.score_factor != 1 || m.rope_adjacent;
}
/// DeepSeek-V3's router, no experts at all, or V2's router, with latent attention, whose scores a scaling of RoPE alone
/// multiplies.
std::string FindDeepSeek(const Deck::Model& m) {
  const Deck::Model::Experts& e = m.experts;
  const bool scaled = m.rope_scaling == RopeScaling::kYarn && m.rope_factor > 1;
  if (m.attention != AttentionKind::kMla || (m.score_factor != 1 && !scaled)) return "";
  if (e.count == 0) return HasPlainLayers(m) ? "DeepseekV3ForCausalLM" : "";
  if (!HasSharedExperts(m)) return "";
  if (IsGlm(m)) return "DeepseekV3ForCausalLM";
  const bool grouped = e.groups > 1 && e.group_best == 2;
  const bool router = e.scores == RouterScores::kSoftmax && !e.bias && !grouped && !e.normalize;
  return router && m.rope_adjacent ? "DeepseekV2ForCausalLM" : "";
}
bool IsQwen2Moe(const Deck::Model& m) {
  const Deck::Model::Experts& e = m.experts;
  return e.scores == RouterScores::kSoftmax && e.scale == 1 && e.groups == 1 && !e.bias && e.shared_ffn_dim > 0 &&
         e.shared_gate && m.qkv_bias && !m.o_bias && !m.mlp_bias && m.norm_placement == NormPlacement::kPre &&
         m.qk_norm == QkNorm::kNone && m.sliding_window == 0;
}

/// Sinks, and experts with biases and limits; layers may have windows in any order.
bool IsGptOss(const Deck::Model& m) {
  const Deck::Model::Experts& e = m.experts;
  return m.sinks && e.mlp_bias && e.router_bias && e.swiglu_limit > 0 && e.scores == RouterScores::kSoftmax &&
         e.normalize && e.scale == 1 && e.groups == 1 && !e.bias && e.shared_ffn_dim == 0 && DenseLayers(m).empty() &&
         m.qkv_bias == m.o_bias && !m.mlp_bias && m.norm_placement == NormPlacement::kPre &&
         m.qk_norm == QkNorm::kNone && m.rope_dim == m.head_dim;
}
/// Something that gpt-oss alone has.
bool IsLikeGptOss(const Deck::Model& m) {
  const Deck::Model::Experts& e = m.experts;
  const bool experts = e.count > 0 && (e.mlp_bias || e.router_bias || e.swiglu_limit > 0);
  return m.sinks || experts || (m.sliding_window > 0 && m.full_attention_every > 0);
}

std::string FindSparse(const Deck::Model& m) {
  if (IsGlm(m)) return "Glm4MoeForCausalLM";
  if (m.rope_dim != m.head_dim) return "";
  if (IsQwen2Moe(m)) return "Qwen2MoeForCausalLM";
  const Deck::Model::Experts& e = m.experts;
  const bool window = m.sliding_window > 0, biased = m.qkv_bias || m.o_bias;
  if (e.scores != RouterScores::kSoftmax || e.scale != 1 || e.shared_ffn_dim > 0 || m.mlp_bias) return "";
  if (e.groups > 1 || e.bias) return "";
  if (m.norm_placement != NormPlacement::kPre || m.qkv_bias != m.o_bias) return "";
  if (window && m.full_attention_layers > 0) return "";
  if (m.qk_norm == QkNorm::kHead) return "Qwen3MoeForCausalLM";
  if (!DenseLayers(m).empty()) return "";
  if (m.qk_norm == QkNorm::kNone) return e.normalize && !biased ? "MixtralForCausalLM" : "";
  return !window && m.heads * m.head_dim == m.dim ? "OlmoeForCausalLM" : "";
}

std::string FindRotary(const Deck::Model& m) {
  if (IsLikeGptOss(m)) return m.experts.count > 0 && IsGptOss(m) ? "GptOssForCausalLM" : "";
  if (IsLikeDeepSeek(m)) return FindDeepSeek(m);
  if (m.experts.count > 0) return FindSparse(m);
  if (m.rope_dim != m.head_dim) return "";
  const bool pre = m.norm_placement == NormPlacement::kPre, window = m.sliding_window > 0;
  const bool alike = m.qkv_bias == m.o_bias;  // one key for both
  if (!pre) return m.qk_norm == QkNorm::kFull && alike && !m.mlp_bias && !window ? "Olmo2ForCausalLM" : "";
  if (m.qk_norm == QkNorm::kHead) return alike && !m.mlp_bias ? "Qwen3ForCausalLM" : "";
  if (m.qk_norm == QkNorm::kFull) return "";
  if (alike && !window) return "LlamaForCausalLM";
  if (m.mlp_bias || m.o_bias) return "";
  if (m.qkv_bias) return "Qwen2ForCausalLM";
  return m.full_attention_layers == 0 ? "MistralForCausalLM" : "";
}

/// The value of mscale with the fewest digits whose YaRN factor is such that reading it gives the deck's again; the
/// nearest if none does so exactly. `scale` is what YarnScale makes of it.
double Mscale(const Deck::Model& m, double scale, const std::function<bool(double)>& is_exact) {
  const double exact = (scale - 1) / (0.1 * std::log(m.rope_factor));
  for (int digits = 1; digits < 17; ++digits)
    if (const double rounded = std::stod(fmt::format("{:.{}g}", exact, digits)); is_exact(rounded)) return rounded;
  return exact;
}

/// The factor of the scores of latent attention, and the share of it that cosines and sines keep.
void AddMscale(const Deck::Model& m, ordered_json& rope) {
  const auto scale = [&](double mscale) { return YarnScale(m.rope_factor, mscale); };
  const double all =
      Mscale(m, std::sqrt(m.score_factor), [&](double x) { return scale(x) * scale(x) == m.score_factor; });
  rope["mscale_all_dim"] = all;
  if (m.rope_attention_factor == 0) return;
  rope["mscale"] = Mscale(m, m.rope_attention_factor * scale(all),
                          [&](double x) { return scale(x) / scale(all) == m.rope_attention_factor; });
}

ordered_json RopeScalingJson(const Deck::Model& m) {
  if (m.rope_scaling == RopeScaling::kNone) return nullptr;
  ordered_json rope = {{"rope_type", DeckName(m.rope_scaling)}, {"factor", m.rope_factor}};
  if (m.rope_scaling != RopeScaling::kLinear) rope["original_max_position_embeddings"] = m.rope_original_seq_len;
  if (m.rope_scaling == RopeScaling::kLlama3) {
    rope["low_freq_factor"] = m.rope_low_freq_factor;
    rope["high_freq_factor"] = m.rope_high_freq_factor;
  }
  if (m.rope_scaling == RopeScaling::kYarn) {
    rope["beta_fast"] = m.rope_beta_fast;
    rope["beta_slow"] = m.rope_beta_slow;
    if (m.rope_attention_factor > 0) rope["attention_factor"] = m.rope_attention_factor;
    if (!m.rope_truncate) rope["truncate"] = false;
    if (m.score_factor != 1) AddMscale(m, rope);
  }
  return rope;
}

void AddWindows(const Deck::Model& m, const std::string& architecture, ordered_json& config) {
  if (architecture == "MistralForCausalLM") config["sliding_window"] = m.sliding_window;
  if (architecture == "MixtralForCausalLM")
    config["sliding_window"] = m.sliding_window > 0 ? ordered_json(m.sliding_window) : ordered_json(nullptr);
  if (architecture == "GptOssForCausalLM") {
    std::vector<std::string_view> types;
    for (int l = 1; l <= m.layers; ++l) types.push_back(KindOf(m, l).window ? "sliding_attention" : "full_attention");
    config["layer_types"] = types;
    config["sliding_window"] = m.sliding_window > 0 ? ordered_json(m.sliding_window) : ordered_json(nullptr);
  }
  if (architecture == "Qwen2MoeForCausalLM") config["use_sliding_window"] = false;
  if (architecture == "Qwen2MoeForCausalLM" || !architecture.starts_with("Qwen")) return;
  const bool window = m.sliding_window > 0;
  config["use_sliding_window"] = window;
  config["sliding_window"] = window ? ordered_json(m.sliding_window) : ordered_json(nullptr);
  config["max_window_layers"] = window ? m.full_attention_layers : m.layers;
}

void AddExperts(const Deck::Model& m, const std::string& architecture, ordered_json& config) {
  const Deck::Model::Experts& e = m.experts;
  const bool mixtral = architecture == "MixtralForCausalLM", qwen2 = architecture == "Qwen2MoeForCausalLM",
             deepseek = architecture.starts_with("Deepseek"), glm = architecture == "Glm4MoeForCausalLM",
             gpt_oss = architecture == "GptOssForCausalLM", qwen = qwen2 || architecture == "Qwen3MoeForCausalLM";
  config[mixtral || gpt_oss ? "num_local_experts" : glm || deepseek ? "n_routed_experts" : "num_experts"] = e.count;
  config["num_experts_per_tok"] = e.per_token;
  config[qwen || glm || deepseek ? "moe_intermediate_size" : "intermediate_size"] = e.ffn_dim;
  if (!mixtral && !gpt_oss) config["norm_topk_prob"] = e.normalize;
  if (gpt_oss) config["swiglu_limit"] = e.swiglu_limit;
  if (glm || deepseek) {
    config["n_shared_experts"] = e.shared_ffn_dim / e.ffn_dim;
    config["first_k_dense_replace"] = e.first_layer;
    config["routed_scaling_factor"] = e.scale;
    config["n_group"] = e.groups;
    config["topk_group"] = e.groups > 1 ? e.top_groups : 1;
    if (!glm) return;
    config["use_qk_norm"] = m.qk_norm == QkNorm::kHead;
    config["partial_rotary_factor"] = double(m.rope_dim) / double(m.head_dim);
    return;
  }
  config["output_router_logits"] = false;
  if (!qwen) return;
  if (qwen2) config["shared_expert_intermediate_size"] = e.shared_ffn_dim;
  // The listed layers are dense, although the step would make them sparse.
  const int64_t step = (e.first_layer + 1) % e.every == 0 ? e.every : 1;
  std::vector<int64_t> listed = DenseLayers(m);
  std::erase_if(listed, [&](int64_t layer) { return (layer + 1) % step != 0; });
  config["decoder_sparse_step"] = step;
  config["mlp_only_layers"] = listed;
}

void AddLatents(const Deck::Model& m, const std::string& architecture, ordered_json& config) {
  config["head_dim"] = m.rope_dim;  // as transformers has it
  config["q_lora_rank"] = m.q_rank > 0 ? ordered_json(m.q_rank) : ordered_json(nullptr);
  config["kv_lora_rank"] = m.kv_rank;
  if (m.experts.count == 0) config["first_k_dense_replace"] = m.layers;
  config["qk_nope_head_dim"] = m.head_dim - m.rope_dim;
  config["qk_rope_head_dim"] = m.rope_dim;
  config["v_head_dim"] = m.v_dim;
  if (architecture == "DeepseekV2ForCausalLM") {
    config["topk_method"] = m.experts.groups > 1 ? "group_limited_greedy" : "greedy";
    return;
  }
  config["rope_interleave"] = m.rope_adjacent;
}

const Rotary* RowOf(const std::string& architecture) {
  return std::ranges::find(kRotary, architecture, &Rotary::architecture);
}

ordered_json RotaryJson(const Deck::Model& m, const Deck::Dropout& dropout, const std::string& architecture) {
  ordered_json config = {{"hidden_size", m.dim},
                         {"intermediate_size", m.ffn_dim},
                         {"num_hidden_layers", m.layers},
                         {"num_attention_heads", m.heads},
                         {"num_key_value_heads", m.kv_heads},
                         {"head_dim", m.head_dim},
                         {"max_position_embeddings", m.seq_len},
                         {"hidden_act", "silu"},
                         {"rms_norm_eps", m.norm_eps},
                         {"rope_theta", m.rope_theta},
                         {"rope_scaling", RopeScalingJson(m)},
                         {"attention_dropout", dropout.attention}};
  // Where it is null, transformers gives gpt-oss YaRN.
  if (architecture == "GptOssForCausalLM" && m.rope_scaling == RopeScaling::kNone)
    config["rope_scaling"] = {{"rope_type", "default"}};
  const bool has_key = !architecture.starts_with("Qwen2") && !architecture.starts_with("Mi");
  if (has_key) config["attention_bias"] = m.qkv_bias;
  if (architecture == "LlamaForCausalLM") config["mlp_bias"] = m.mlp_bias;
  AddWindows(m, architecture, config);
  if (m.experts.count > 0) AddExperts(m, architecture, config);
  // A reader may assume some where config.json is silent.
  if (m.mtp_layers > 0 || RowOf(architecture)->further_layers > 0) config["num_nextn_predict_layers"] = m.mtp_layers;
  if (m.attention == AttentionKind::kMla) AddLatents(m, architecture, config);
  return config;
}

ordered_json Gpt2Json(const Deck::Model& m, const Deck::Dropout& dropout) {
  return {{"n_embd", m.dim},
          {"n_inner", m.ffn_dim},
          {"n_layer", m.layers},
          {"n_head", m.heads},
          {"n_positions", m.seq_len},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", m.norm_eps},
          {"attn_pdrop", dropout.attention},
          {"embd_pdrop", dropout.embedding},
          {"resid_pdrop", dropout.residual}};
}

}  // namespace

std::string ArchitectureOf(const Deck::Model& m) {
  if (m.family == Family::kGpt2) return "GPT2LMHeadModel";
  if (const std::string found = FindRotary(m); !found.empty()) return found;
  throw UserError(
      ExitStatus::kDeck,
      fmt::format("{}: no architecture of Hugging Face has these together (allowed: those of llama, mistral, "
                  "qwen2, qwen3, olmo2, mixtral, qwen2_moe, qwen3_moe, olmoe, glm4_moe, gpt_oss, deepseek_v2, "
                  "deepseek_v3; doc/huggingface.md)",
                  fmt::join(SpecialKeys(m), ", ")));
}

std::string ConfigJson(const Deck::Model& m, const Deck::Dropout& dropout, SafeDtype dtype) {
  const std::string architecture = ArchitectureOf(m);
  const std::string_view model_type = m.family == Family::kGpt2 ? "gpt2" : RowOf(architecture)->model_type;
  ordered_json config = {{"architectures", {architecture}}, {"model_type", model_type}};
  config.update(m.family == Family::kGpt2 ? Gpt2Json(m, dropout) : RotaryJson(m, dropout, architecture));
  config["vocab_size"] = m.vocab;
  config["initializer_range"] = m.init_std;
  config["tie_word_embeddings"] = m.tie_embeddings;
  // No token has a meaning of its own in a deck.
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) config[token] = nullptr;
  config["torch_dtype"] = dtype == SafeDtype::kBf16 ? "bfloat16" : "float32";
  return config.dump(2) + "\n";
}

std::string GenerationConfigJson(int64_t end_token) {
  ordered_json config = {{"_from_model_config", false}};
  if (end_token >= 0) config["eos_token_id"] = end_token;
  return config.dump(2) + "\n";
}

}  // namespace espalier
