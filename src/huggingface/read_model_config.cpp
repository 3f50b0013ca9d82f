#include <algorithm>
#include <cmath>
#include <set>

#include "espalier/deck/print.hpp"
#include "espalier/huggingface/model_config.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"
#include "huggingface/architectures.hpp"
#include "huggingface/config_reader.hpp"

namespace espalier {
namespace {

using nlohmann::json;

constexpr FileKind kConfigFile = {"config.json", 1 << 20, "is this a Hugging Face folder?"};

/// No deck has as many.
constexpr int64_t kManyLayers = 1 << 16;

/// Keys of all models that say how to use a model, or how it was made.
const std::vector<std::string> kWithoutMeaning = {"_name_or_path",
                                                  "architectures",
                                                  "attn_implementation",
                                                  "_attn_implementation",
                                                  "auto_map",
                                                  "bos_token_id",
                                                  "chunk_size_feed_forward",
                                                  "dtype",
                                                  "eos_token_id",
                                                  "gradient_checkpointing",
                                                  "id2label",
                                                  "is_decoder",
                                                  "is_encoder_decoder",
                                                  "label2id",
                                                  "n_ctx",
                                                  "output_attentions",
                                                  "output_hidden_states",
                                                  "output_scores",
                                                  "pad_token_id",
                                                  "pretraining_tp",
                                                  "problem_type",
                                                  "return_dict",
                                                  "task_specific_params",
                                                  "tokenizer_class",
                                                  "torch_dtype",
                                                  "transformers_version",
                                                  "use_bfloat16",
                                                  "use_cache"};

/// A number as TOML: a float, whatever its value.
std::string Float(double x) {
  std::string text = fmt::format("{}", x);
  return text.find_first_of(".en") == text.npos ? text + ".0" : text;
}

class Translator {
 public:
  Translator(ConfigReader& reader, Dropout dropout) : r_(reader), dropout_(dropout) {}

  void Rotaries(const Rotary& a) {
    Set("family", "\"llama\"");
    const int64_t dim = Integer("dim", "hidden_size"), heads = r_.Integer("num_attention_heads");
    const int64_t layers = Integer("layers", "num_hidden_layers");
    Integer("ffn_dim", "intermediate_size");
    Integer("vocab", "vocab_size");
    length_ = Integer("seq_len", "max_position_embeddings");
    Set("heads", heads);
    Set("kv_heads", r_.IntegerOr("num_key_value_heads", a.kv_heads > 0 ? a.kv_heads : heads));
    const int64_t head_dim =
        a.mla ? LatentAttention(a, heads) : r_.IntegerOr("head_dim", a.head_dim > 0 ? a.head_dim : dim / heads);
    Set("head_dim", head_dim);
    Set("norm_eps", Float(r_.NumberOr("rms_norm_eps", a.norm_eps)));
    Set("norm_placement", TomlString(a.norm_placement));
    const bool norm = !a.qk_norm_key || r_.FlagOr("use_qk_norm", false);
    Set("qk_norm", TomlString(norm ? a.qk_norm : "none"));
    const bool biases = a.attention_bias && r_.FlagOr("attention_bias", a.bias_by_default);
    Set("qkv_bias", a.qkv_bias || biases);
    Set("o_bias", biases && !a.attention_bias_qkv);
    Set("mlp_bias", a.mlp_bias && r_.FlagOr("mlp_bias", false));
    Set("sinks", a.sinks);
    if (a.windows == Windows::kListed)
      ListedWindows(layers);
    else
      Window(a);
    const double rotated = Rope(a, r_.NumberOr("partial_rotary_factor", a.rotated));
    if (!(rotated > 0 && rotated <= 1) || (a.rotated == 1 && rotated != 1))
      r_.Refuse("partial_rotary_factor", rotated, a.rotated == 1 ? "1.0" : "above 0, at most 1");
    if (!a.mla) Set("rope_dim", static_cast<int64_t>(double(head_dim) * rotated));
    Set("tie_embeddings", r_.FlagOr("tie_word_embeddings", false));
    Set("init_std", Float(r_.NumberOr("initializer_range", 0.02)));
    r_.Expect("hidden_act", {"silu", "swish"});
    Rate("attention", "attention_dropout", 0);
    if (!a.experts.count.empty() && !IsDense(a, layers)) Experts(a.experts, layers);
    if (a.model_type == "qwen2_moe") r_.Expect("qkv_bias", {true});
    further_layers_ = r_.IntegerOr("num_nextn_predict_layers", r_.IntegerOr("num_mtp_layers", a.further_layers, 0), 0);
    if (a.experts.biased) GptOss();
    if (a.mla) DeepSeek(a);
    if (a.model_type == "phi3") Phi3();
    if (a.model_type != "olmoe") return;
    r_.Expect("clip_qkv", {nullptr});
    r_.Expect("head_dim", {dim / heads});
  }

  /// Keys of multi-head latent attention; returns the width of a head of queries and keys.
  int64_t LatentAttention(const Rotary& a, int64_t heads) {
    const bool v2 = a.model_type == "deepseek_v2";
    const int64_t nope = r_.IntegerOr("qk_nope_head_dim", 128), rope = r_.IntegerOr("qk_rope_head_dim", 64);
    Set("attention", TomlString(DeckName(AttentionKind::kMla)));
    // null says that queries have no latent.
    Set("q_rank", r_.IntegerOr("q_lora_rank", r_.Contains("q_lora_rank") ? 0 : 1536));
    Set("kv_rank", r_.IntegerOr("kv_lora_rank", 512));
    Set("v_dim", r_.IntegerOr("v_head_dim", 128));
    Set("rope_dim", rope);
    Set("rope_adjacent", v2 || r_.FlagOr("rope_interleave", true));
    r_.Expect("num_key_value_heads", {heads});
    r_.Expect("attention_bias", {false});
    // Later versions of transformers write both.
    r_.Expect("head_dim", {rope});
    r_.Expect("qk_head_dim", {nope + rope});
    return nope + rope;
  }

  /// Further keys in config.json of DeepSeek's models.
  void DeepSeek(const Rotary& a) {
    r_.Expect("scoring_func", {DeckName(a.experts.softmax ? RouterScores::kSoftmax : RouterScores::kSigmoid)});
    if (!a.experts.softmax) r_.Expect("topk_method", {"noaux_tc"});
    r_.Expect("moe_layer_freq", {1});
    if (a.experts.softmax) r_.Expect("mlp_bias", {false});
    if (const json* quantization = r_.Find("quantization_config"))
      r_.Refuse("quantization_config", *quantization, "none: make bf16 of the weights first");
    r_.Unused({"aux_loss_alpha", "ep_size", "seq_aux"});
  }

  /// Further keys in config.json of Phi-3 and Phi-4.
  void Phi3() {
    r_.Expect("attention_bias", {false});
    r_.Expect("embd_pdrop", {0.0});  // versions of transformers differ in whether they heed it
    Rate("residual", "resid_pdrop", 0);
    r_.Unused({"original_max_position_embeddings"});  // of scalings that are refused
  }

  /// Further keys in config.json of gpt-oss.
  void GptOss() {
    r_.Expect("swiglu_alpha", {1.702});
    r_.Unused({"experts_per_token", "initial_context_length"});
    const json* quantization = r_.Find("quantization_config");
    if (quantization == nullptr) return;
    const json method = quantization->is_object() ? quantization->value("quant_method", json()) : json();
    if (method != "mxfp4") r_.Refuse("quantization_config", *quantization, "quant_method \"mxfp4\"");
  }

  void Gpt2() {
    Set("family", "\"gpt2\"");
    const int64_t dim = Integer("dim", "n_embd");
    Integer("layers", "n_layer");
    Integer("heads", "n_head");
    Integer("vocab", "vocab_size");
    Integer("seq_len", "n_positions");
    Set("ffn_dim", r_.IntegerOr("n_inner", 4 * dim));
    Set("norm_eps", Float(r_.NumberOr("layer_norm_epsilon", 1e-5)));
    Set("tie_embeddings", r_.FlagOr("tie_word_embeddings", true));
    Set("init_std", Float(r_.NumberOr("initializer_range", 0.02)));
    r_.Expect("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
    r_.Expect("add_cross_attention", {false});
    r_.Expect("reorder_and_upcast_attn", {false, true});  // the same in exact arithmetic
    r_.Expect("scale_attn_by_inverse_layer_idx", {false});
    r_.Expect("scale_attn_weights", {true});
    constexpr double kGpt2Rate = 0.1;  // where config.json is silent
    Rate("embedding", "embd_pdrop", kGpt2Rate);
    Rate("residual", "resid_pdrop", kGpt2Rate);
    Rate("attention", "attn_pdrop", kGpt2Rate);
    r_.Unused(
        {"summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"});
  }

  std::vector<std::pair<std::string, std::string>> Take() { return std::move(keys_); }
  int64_t further_layers() const { return further_layers_; }

 private:
  void Set(const std::string& name, std::string value) { keys_.emplace_back("model." + name, std::move(value)); }
  void Set(const std::string& name, const char* value) { Set(name, std::string(value)); }
  void Set(const std::string& name, int64_t value) { Set(name, std::to_string(value)); }
  void Set(const std::string& name, bool value) { Set(name, std::string(value ? "true" : "false")); }
  int64_t Integer(const std::string& name, const std::string& key) {
    const int64_t value = r_.Integer(key);
    Set(name, value);
    return value;
  }

  /// A DeepSeek model all of whose layers are dense: its keys of experts have no meaning.
  bool IsDense(const Rotary& a, int64_t layers) {
    const bool dense = a.mla && r_.IntegerOr("first_k_dense_replace", a.experts.first_layer, 0) >= layers;
    if (dense)
      r_.Unused({std::string(a.experts.count), std::string(a.experts.width), "n_group", "n_shared_experts",
                 "norm_topk_prob", "num_experts_per_tok", "num_local_experts", "output_router_logits",
                 "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise", "topk_group", "topk_method"});
    return dense;
  }

  /// Keys of [experts], all of them: a run that starts from the weights compares each with its own.
  void Experts(const ExpertKeys& a, int64_t layers) {
    const auto set = [&](const char* name, auto value) {
      keys_.emplace_back(fmt::format("experts.{}", name), fmt::format("{}", value));
    };
    const std::string count(a.count), other = count == "num_local_experts" ? "num_experts" : "num_local_experts";
    // transformers knows both names, and has written both for the same architecture.
    set("count", r_.Integer(r_.Find(count) == nullptr && r_.Find(other) != nullptr ? other : count));
    set("per_token", r_.Integer("num_experts_per_tok"));
    set("ffn_dim", r_.Integer(std::string(a.width)));
    const int64_t width = r_.IntegerOr(std::string(a.width), 1);
    set("shared_ffn_dim", !a.gated.empty() ? r_.Integer(std::string(a.gated))
                          : a.deepseek     ? width * r_.IntegerOr("n_shared_experts", a.shared)
                                           : 0);
    set("shared_gate", !a.gated.empty());
    const bool biased = a.deepseek && !a.softmax, best = a.softmax && GroupsByTheirBest(), groups = biased || best;
    set("groups", groups ? r_.IntegerOr("n_group", a.groups) : 1);
    set("top_groups", groups ? r_.IntegerOr("topk_group", a.top_groups) : 1);
    set("group_best", best ? 1 : 2);
    if (a.softmax && !best) r_.Unused({"n_group", "topk_group"});  // of another topk_method
    set("bias", biased);
    set("mlp_bias", a.biased);
    set("router_bias", a.biased);
    set("swiglu_limit", Float(a.biased ? r_.NumberOr("swiglu_limit", 7) : 0));
    const auto [first, every] = a.sparse_layers ? SparseLayers(layers)
                                : a.deepseek
                                    ? std::pair(r_.IntegerOr("first_k_dense_replace", a.first_layer, 0), int64_t{1})
                                    : std::pair<int64_t, int64_t>(0, 1);
    set("first_layer", first);
    set("every", every);
    set("scores", TomlString(DeckName(biased ? RouterScores::kSigmoid : RouterScores::kSoftmax)));
    const bool has_key = !a.normalize || a.deepseek;
    set("normalize", has_key ? r_.FlagOr("norm_topk_prob", a.normalize) : true);
    // With it, versions of DeepSeek-V2's code differ in whether they scale.
    if (a.softmax) r_.Expect("norm_topk_prob", {false});
    set("scale", Float(a.deepseek ? r_.NumberOr("routed_scaling_factor", a.scale) : 1));
    r_.Expect("router_jitter_noise", {0.0});
    AuxiliaryLoss();
  }

  /// DeepSeek-V2's choice of experts: from groups, which their highest scores rank, or from all.
  bool GroupsByTheirBest() {
    r_.Expect("topk_method", {"greedy", "group_limited_greedy"});
    return r_.TextOr("topk_method", "greedy") == "group_limited_greedy";
  }

  /// Hugging Face adds the loss that balances experts only if the model returns the router's logits.
  void AuxiliaryLoss() {
    const bool logits = r_.FlagOr("output_router_logits", false);
    if (logits && r_.NumberOr("router_aux_loss_coef", 1) != 0)
      return r_.Refuse("output_router_logits", true, "false, or router_aux_loss_coef = 0");
    r_.Unused({"output_router_logits", "router_aux_loss_coef"});
  }

  /// experts.first_layer and experts.every. Layer i, from 0, has experts if it is not in mlp_only_layers and i + 1 is a
  /// multiple of decoder_sparse_step.
  std::pair<int64_t, int64_t> SparseLayers(int64_t layers) {
    const int64_t step = r_.IntegerOr("decoder_sparse_step", 1);
    const json* listed = r_.Find("mlp_only_layers");
    const json dense = listed != nullptr ? *listed : json::array();
    const auto whole = [](const json& layer) { return layer.is_number_integer(); };
    if (!dense.is_array() || !std::ranges::all_of(dense, whole))
      return r_.Refuse("mlp_only_layers", dense, "a list of layers"), std::pair<int64_t, int64_t>(0, 1);
    const std::set<int64_t> without(dense.begin(), dense.end());
    std::vector<int64_t> sparse;
    for (int64_t i = step - 1; i < std::min(layers, kManyLayers); i += step)
      if (!without.contains(i)) sparse.push_back(i);
    if (sparse.empty()) {
      r_.Refuse("decoder_sparse_step", step, "a step that leaves layers with experts");
      return {0, 1};
    }
    const int64_t first = sparse[0], every = sparse.size() > 1 ? sparse[1] - first : std::max(step, layers - first);
    std::vector<int64_t> regular;
    for (int64_t i = first; i < std::min(layers, kManyLayers); i += every) regular.push_back(i);
    if (sparse != regular)
      r_.Refuse("mlp_only_layers", dense, "layers such that each n-th one has experts, from the first that has them");
    return {first, every};
  }

  void Window(const Rotary& a) {
    if (a.windows == Windows::kNone) r_.Expect("sliding_window", {nullptr});
    if (a.windows == Windows::kOff) r_.Expect("use_sliding_window", {false});
    if (a.windows == Windows::kOff) r_.Unused({"sliding_window", "max_window_layers"});
    const int64_t layers = r_.IntegerOr("num_hidden_layers", 1);
    int64_t window = a.windows == Windows::kOff ? 0 : r_.IntegerOr("sliding_window", 0, 0), full = 0;
    if (a.windows == Windows::kAfterFirst) full = std::min(layers, r_.IntegerOr("max_window_layers", 28, 0));
    const bool switched = a.windows == Windows::kSwitched || a.windows == Windows::kAfterFirst;
    if (switched && (!r_.FlagOr("use_sliding_window", false) || full == layers)) window = 0;
    // Versions of transformers differ in whether qwen3_moe heeds it.
    if (a.windows == Windows::kSwitched && window > 0) r_.Expect("max_window_layers", {0});
    if (a.windows == Windows::kSwitched) r_.Unused({"max_window_layers"});
    if (window == 0) full = 0;
    SetWindows(window, full, 0);
    if (const json* types = r_.Find("layer_types")) CheckLayerTypes(*types, layers, window, full);
  }
  void SetWindows(int64_t window, int64_t full_layers, int64_t full_every) {
    Set("sliding_window", window);
    Set("full_attention_layers", full_layers);
    Set("full_attention_every", full_every);
  }
  /// The first layers without a window, and each so many-th one, as layer_types has them.
  void ListedWindows(int64_t layers) {
    const int64_t window = r_.IntegerOr("sliding_window", 128, 0);
    const json* listed = r_.Find("layer_types");
    const auto list = [&](int64_t full_layers, int64_t full_every) {
      json types = json::array();
      for (int64_t l = 1; l <= std::min(layers, kManyLayers); ++l)
        types.push_back(l <= full_layers || (full_every > 0 && l % full_every == 0) ? "full_attention"
                                                                                    : "sliding_attention");
      return types;
    };
    const json types = listed != nullptr ? *listed : list(0, 2);
    if (window == 0 || types == list(layers, 0)) return SetWindows(0, 0, 0);
    int64_t first = 0;  // layers before the first with a window
    while (types.is_array() && first < std::ssize(types) && types[static_cast<size_t>(first)] == "full_attention")
      ++first;
    for (int64_t every = 0; every <= std::min(layers, kManyLayers); ++every)
      for (const int64_t full : {int64_t{0}, first})
        if (every != 1 && types == list(full, every)) return SetWindows(window, full, every);
    SetWindows(window, 0, 0);
    r_.Refuse("layer_types", types,
              "\"sliding_attention\", but \"full_attention\" of the first layers and of each n-th one");
  }
  void CheckLayerTypes(const json& types, int64_t layers, int64_t window, int64_t full) {
    json expected = json::array();
    for (int64_t l = 0; l < layers; ++l)
      expected.push_back(window > 0 && l >= full ? "sliding_attention" : "full_attention");
    if (types != expected)
      r_.Refuse("layer_types", types, "full_attention, then sliding_attention as the window has it");
  }

  /// A rate of dropout; 0 is the deck's default.
  void Rate(const std::string& name, const std::string& key, double otherwise) {
    if (dropout_ == Dropout::kLeaveOut) return r_.Unused({key});
    const double rate = r_.NumberOr(key, otherwise);
    if (!(0 <= rate && rate < 1)) r_.Refuse(key, rate, "at least 0 and below 1");
    if (rate != 0) keys_.emplace_back("dropout." + name, Float(rate));
  }

  /// rope_parameters (transformers 5), or rope_theta and rope_scaling.
  /// Returns the share of a head that is rotated, which is `rotated` unless rope_parameters say something else.
  double Rope(const Rotary& a, double rotated) {
    const json* scaling = r_.Find("rope_scaling");
    const json* parameters = r_.Find("rope_parameters");
    const double theta = r_.NumberOr("rope_theta", a.rope_theta);
    const json silent = json::parse(a.rope.empty() ? "null" : a.rope);
    const json* rope = parameters != nullptr ? parameters : scaling;
    if (rope == nullptr && silent.is_object()) rope = &silent;
    if (rope == nullptr || !rope->is_object()) {
      if (rope != nullptr) r_.Refuse(parameters != nullptr ? "rope_parameters" : "rope_scaling", *rope, "an object");
      Set("rope_theta", Float(theta));
      return rotated;
    }
    ConfigReader inner(r_.place() + (parameters != nullptr ? ": rope_parameters" : ": rope_scaling"), *rope);
    Set("rope_theta", Float(inner.NumberOr("rope_theta", theta)));
    rotated = inner.NumberOr("partial_rotary_factor", rotated);
    Scaling(inner, a.mla);
    inner.RefuseOthers();
    for (std::string& error : inner.errors()) r_.errors().push_back(std::move(error));
    return rotated;
  }

  void Scaling(ConfigReader& s, bool mla) {
    std::string type = s.TextOr("type", "default");
    type = s.TextOr("rope_type", type);
    if (type == "default") return s.Unused({"factor", "original_max_position_embeddings"});
    if (type != "linear" && type != "llama3" && type != "yarn")
      return s.Refuse("rope_type", type, "\"default\", \"linear\", \"llama3\", \"yarn\"");
    Set("rope_scaling", TomlString(type));
    const int64_t original = s.IntegerOr("original_max_position_embeddings", length_);
    const double factor =
        type == "yarn" ? s.NumberOr("factor", double(length_) / double(original)) : s.Number("factor");
    Set("rope_factor", Float(factor));
    if (type != "linear") Set("rope_original_seq_len", original);
    if (type == "llama3") {
      Set("rope_low_freq_factor", Float(s.Number("low_freq_factor")));
      Set("rope_high_freq_factor", Float(s.Number("high_freq_factor")));
    }
    if (type == "yarn") Yarn(s, factor, mla);
  }

  /// Latent attention also multiplies its scores, by the square of what mscale_all_dim makes.
  void Yarn(ConfigReader& s, double factor, bool mla) {
    Set("rope_beta_fast", Float(s.NumberOr("beta_fast", 32)));
    Set("rope_beta_slow", Float(s.NumberOr("beta_slow", 1)));
    Set("rope_truncate", s.FlagOr("truncate", true));
    const double mscale = s.NumberOr("mscale", 0), all = s.NumberOr("mscale_all_dim", 0);
    const double of_all = YarnScale(factor, all);
    const double otherwise = mscale != 0 && all != 0 ? YarnScale(factor, mscale) / of_all : 0;
    if (mla) Set("score_factor", Float(of_all * of_all));
    Set("rope_attention_factor", Float(s.NumberOr("attention_factor", otherwise)));
  }

  ConfigReader& r_;
  const Dropout dropout_;
  int64_t length_ = 1, further_layers_ = 0;
  std::vector<std::pair<std::string, std::string>> keys_;
};

json ParseConfig(const std::string& path) {
  try {
    json config = json::parse(ReadFile(path, kConfigFile));
    if (!config.is_object()) throw UserError(ExitStatus::kData, fmt::format("{}: an object is expected", path));
    return config;
  } catch (const json::exception& error) {
    throw UserError(ExitStatus::kData, fmt::format("{}: {}", path, error.what()));
  }
}

[[noreturn]] void RefuseModelType(const std::string& path, const std::string& type) {
  std::string allowed;
  for (const Rotary& a : kRotary) allowed += fmt::format("\"{}\", ", a.model_type);
  throw UserError(ExitStatus::kData, fmt::format("{}: model_type = \"{}\": another architecture (allowed: {}\"gpt2\")",
                                                 path, type, allowed));
}

}  // namespace

ModelConfig ReadModelConfig(const std::string& dir, Dropout dropout) {
  const std::string path = dir + "/config.json";
  ConfigReader reader(path, ParseConfig(path));
  std::string type = reader.TextOr("model_type", "");
  if (type == "kimi_k2") type = "deepseek_v3";  // the name alone is another
  Translator translator(reader, dropout);
  ModelConfig config;
  const auto rotary = std::ranges::find(kRotary, type, &Rotary::model_type);
  if (rotary != std::end(kRotary)) {
    config.architecture = rotary->architecture;
    translator.Rotaries(*rotary);
  } else if (type == "gpt2") {
    config.architecture = "GPT2LMHeadModel";
    translator.Gpt2();
  } else {
    RefuseModelType(path, type);
  }
  reader.Unused(kWithoutMeaning);
  reader.RefuseOthers();
  if (!reader.errors().empty()) throw UserError(ExitStatus::kData, reader.errors());
  config.keys = translator.Take();
  config.unused = reader.unused();
  config.further_layers = translator.further_layers();
  return config;
}

}  // namespace espalier
