// The table of architectures with rotary positions: what each has in its config.json, and what it always has.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace espalier {

/// Which layers have the window of the key sliding_window.
enum class Windows : uint8_t {
  kAll,
  kSwitched,    ///< all, if use_sliding_window is true
  kAfterFirst,  ///< those after the first max_window_layers, if use_sliding_window is true
  kNone,        ///< the key must be null
  kListed,      ///< those that layer_types lists; without it the first, third, ..
  kOff,         ///< use_sliding_window must be false
};

/// YaRN's factor for a value of mscale (Peng et al. 2023, eq. 22).
inline double YarnScale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

/// Where an architecture with experts has them in config.json.
struct ExpertKeys {
  std::string_view count, width;  ///< keys; without a `count` all layers are dense
  bool normalize = true;          ///< the weights of a token sum to 1; false: the key norm_topk_prob says whether
  bool sparse_layers = false;     ///< the keys decoder_sparse_step and mlp_only_layers
  std::string_view gated = {};    ///< key of the width of a shared expert with a gate
  bool deepseek = false;          ///< the router and the shared experts of DeepSeek-V3
  bool biased = false;            ///< biases of experts and router, and limits of gates
  bool softmax = false;           ///< of a deepseek: DeepSeek-V2's router, softmax without biases and groups
  int64_t shared = 1, first_layer = 1, groups = 1, top_groups = 1;  ///< of a deepseek, where config.json is silent
  double scale = 1;                                                 ///< the same
};

/// An architecture with rotary positions: its fixed properties and its own defaults.
struct Rotary {
  std::string_view model_type, architecture;
  int64_t kv_heads = 0, head_dim = 0;  ///< where config.json is silent; 0: as many as heads, dim / heads
  double norm_eps;
  bool qkv_bias = false, attention_bias = false, mlp_bias = false;  ///< always of q, k and v; the keys
                                                                    ///< attention_bias, mlp_bias
  Windows windows;
  std::string_view qk_norm, norm_placement;
  double rope_theta = 10000;
  ExpertKeys experts = {};
  double rotated = 1;               ///< share of a head that is rotated, where config.json is silent
  bool attention_bias_qkv = false;  ///< attention_bias is of q, k and v alone
  bool qk_norm_key = false;         ///< the norm of each head of q and k is there if use_qk_norm says so
  bool sinks = false;
  bool bias_by_default = false;  ///< attention_bias, where config.json is silent
  std::string_view rope = {};    ///< rope_parameters, where config.json is silent
  bool mla = false;              ///< multi-head latent attention
  int64_t further_layers = 0;    ///< layers for further tokens, where config.json is silent
};
inline constexpr Rotary kRotary[] = {
    {"llama", "LlamaForCausalLM", 0, 0, 1e-6, false, true, true, Windows::kAll, "none", "pre"},
    {"mistral", "MistralForCausalLM", 8, 0, 1e-6, false, false, false, Windows::kAll, "none", "pre"},
    {"qwen2", "Qwen2ForCausalLM", 32, 0, 1e-6, true, false, false, Windows::kAfterFirst, "none", "pre"},
    {"qwen3", "Qwen3ForCausalLM", 32, 128, 1e-6, false, true, false, Windows::kAfterFirst, "head", "pre"},
    // Exported as LlamaForCausalLM or MistralForCausalLM, which compute the same.
    {"phi3", "Phi3ForCausalLM", 0, 0, 1e-5, false, false, false, Windows::kAll, "none", "pre"},
    {"olmo2", "Olmo2ForCausalLM", 0, 0, 1e-5, false, true, false, Windows::kAll, "full", "post"},
    {"mixtral",
     "MixtralForCausalLM",
     8,
     0,
     1e-5,
     false,
     false,
     false,
     Windows::kAll,
     "none",
     "pre",
     1e6,
     {.count = "num_local_experts", .width = "intermediate_size"}},
    {"qwen3_moe",
     "Qwen3MoeForCausalLM",
     4,
     0,
     1e-6,
     false,
     true,
     false,
     Windows::kSwitched,
     "head",
     "pre",
     10000,
     {.count = "num_experts", .width = "moe_intermediate_size", .normalize = false, .sparse_layers = true}},
    {"olmoe",
     "OlmoeForCausalLM",
     0,
     0,
     1e-5,
     false,
     true,
     false,
     Windows::kNone,
     "full",
     "pre",
     10000,
     {.count = "num_experts", .width = "intermediate_size", .normalize = false}},
    {"qwen2_moe",
     "Qwen2MoeForCausalLM",
     16,
     0,
     1e-6,
     true,
     false,
     false,
     Windows::kOff,
     "none",
     "pre",
     10000,
     {.count = "num_experts",
      .width = "moe_intermediate_size",
      .normalize = false,
      .sparse_layers = true,
      .gated = "shared_expert_intermediate_size"}},
    {.model_type = "glm4_moe",
     .architecture = "Glm4MoeForCausalLM",
     .kv_heads = 8,
     .norm_eps = 1e-5,
     .attention_bias = true,
     .windows = Windows::kNone,
     .qk_norm = "head",
     .norm_placement = "pre",
     .experts = {.count = "n_routed_experts", .width = "moe_intermediate_size", .deepseek = true},
     .rotated = 0.5,
     .attention_bias_qkv = true,
     .qk_norm_key = true,
     .further_layers = 1},
    {"gpt_oss",
     "GptOssForCausalLM",
     8,
     64,
     1e-5,
     false,
     true,
     false,
     Windows::kListed,
     "none",
     "pre",
     150000,
     {.count = "num_local_experts", .width = "intermediate_size", .biased = true},
     1,
     false,
     false,
     true,
     true,
     R"({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
         "original_max_position_embeddings": 4096})"},
    {.model_type = "deepseek_v3",
     .architecture = "DeepseekV3ForCausalLM",
     .norm_eps = 1e-6,
     .windows = Windows::kNone,
     .qk_norm = "none",
     .norm_placement = "pre",
     .experts = {.count = "n_routed_experts",
                 .width = "moe_intermediate_size",
                 .deepseek = true,
                 .first_layer = 3,
                 .groups = 8,
                 .top_groups = 4,
                 .scale = 2.5},
     .mla = true,
     .further_layers = 1},
    {.model_type = "deepseek_v2",
     .architecture = "DeepseekV2ForCausalLM",
     .norm_eps = 1e-6,
     .windows = Windows::kNone,
     .qk_norm = "none",
     .norm_placement = "pre",
     .experts = {.count = "n_routed_experts",
                 .width = "moe_intermediate_size",
                 .normalize = false,
                 .deepseek = true,
                 .softmax = true,
                 .shared = 2,
                 .first_layer = 0},
     .mla = true},
};

}  // namespace espalier
