// config.json of Hugging Face's models <-> [model], [experts] and [dropout] of a deck. Architectures: LlamaForCausalLM,
// MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Olmo2ForCausalLM, MixtralForCausalLM, Qwen2MoeForCausalLM,
// Qwen3MoeForCausalLM, OlmoeForCausalLM, Glm4MoeForCausalLM, GptOssForCausalLM, DeepseekV3ForCausalLM,
// DeepseekV2ForCausalLM, GPT2LMHeadModel.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/huggingface/safetensors.hpp"

namespace espalier {

/// The settings that a config.json contains.
struct ModelConfig {
  std::string architecture;  ///< "LlamaForCausalLM"
  /// Name and TOML value: all keys of [model] that the weights need, then [dropout] and, of a model with experts, all
  /// of [experts].
  std::vector<std::pair<std::string, std::string>> keys;
  std::vector<std::string> unused;  ///< keys of config.json without a meaning for training
  /// Layers that predict further tokens: the files may have their weights, as layers after those of the model.
  int64_t further_layers = 0;
};

/// Whether the deck gets the dropout with which Hugging Face's Trainer trains the model, or none.
enum class Dropout : uint8_t { kTake, kLeaveOut };

/// Reads `dir`/config.json. Throws UserError (kData) with every key that no deck can express: its value and what is
/// allowed.
ModelConfig ReadModelConfig(const std::string& dir, Dropout dropout = Dropout::kTake);

/// The architecture that has these keys. UserError (kDeck) that names the keys if there is none.
std::string ArchitectureOf(const Deck::Model& model);

/// config.json of the model, with weights of this element type.
std::string ConfigJson(const Deck::Model& model, const Deck::Dropout& dropout, SafeDtype dtype);

/// generation_config.json: generation stops at `end_token`, unless it is negative.
std::string GenerationConfigJson(int64_t end_token);

}  // namespace espalier
