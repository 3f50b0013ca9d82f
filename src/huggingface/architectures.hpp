// The table of architectures with rotary positions: what each has in its config.json, and what it always has.
#pragma once

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

/// Where an architecture with experts has them in config.json.
struct ExpertKeys {
  std::string_view count, width;  ///< keys; without a `count` all layers are dense
  bool normalize = true;          ///< the weights of a token sum to 1; false: the key norm_topk_prob says whether
  bool sparse_layers = false;     ///< the keys decoder_sparse_step and mlp_only_layers
  std::string_view gated = {};    ///< key of the width of a shared expert with a gate
  bool deepseek = false;          ///< the router and the shared experts of DeepSeek-V3
  bool biased = false;            ///< biases of experts and router, and limits of gates
};

/// What is fixed, or has another default, in each of the architectures with rotary positions.
struct Rotary {
  std::string_view model_type, architecture;
  int64_t kv_heads, head_dim;  ///< where config.json is silent; 0: as many as heads, dim / heads
  double norm_eps;
  bool qkv_bias, attention_bias, mlp_bias;  ///< always biases of q, k and v; the key attention_bias, mlp_bias
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
};
inline constexpr Rotary kRotary[] = {
    {"llama", "LlamaForCausalLM", 0, 0, 1e-6, false, true, true, Windows::kAll, "none", "pre"},
    {"mistral", "MistralForCausalLM", 8, 0, 1e-6, false, false, false, Windows::kAll, "none", "pre"},
    {"qwen2", "Qwen2ForCausalLM", 32, 0, 1e-6, true, false, false, Windows::kAfterFirst, "none", "pre"},
    {"qwen3", "Qwen3ForCausalLM", 32, 128, 1e-6, false, true, false, Windows::kAfterFirst, "head", "pre"},
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
    {"glm4_moe",
     "Glm4MoeForCausalLM",
     8,
     0,
     1e-5,
     false,
     true,
     false,
     Windows::kNone,
     "head",
     "pre",
     10000,
     {.count = "n_routed_experts", .width = "moe_intermediate_size", .normalize = true, .deepseek = true},
     0.5,
     true,
     true},
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
};

}  // namespace espalier
