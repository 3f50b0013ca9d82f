// config.json of Hugging Face's models <-> [model] of a deck. Architectures: LlamaForCausalLM, MistralForCausalLM,
// Qwen2ForCausalLM, Qwen3ForCausalLM, Olmo2ForCausalLM, GPT2LMHeadModel.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/huggingface/safetensors.hpp"

namespace espalier {

/// What a config.json says.
struct ModelConfig {
  std::string architecture;                               ///< "LlamaForCausalLM"
  std::vector<std::pair<std::string, std::string>> keys;  ///< of [model], all that the weights need: name, TOML value
  std::vector<std::string> unused;                        ///< keys of config.json without a meaning for training
};

/// What to make of dropout, which decks do not have.
enum class Dropout : uint8_t { kRefuse, kLeaveOut };

/// Reads `dir`/config.json. UserError (kData) with every key that no deck can express: its value and what is allowed.
ModelConfig ReadModelConfig(const std::string& dir, Dropout dropout = Dropout::kRefuse);

/// The architecture that has these keys. UserError (kDeck) that names the keys if there is none.
std::string ArchitectureOf(const Deck::Model& model);

/// config.json of the model, with weights of this element type.
std::string ConfigJson(const Deck::Model& model, SafeDtype dtype);

/// generation_config.json: generation stops at `end_token`, unless it is negative.
std::string GenerationConfigJson(int64_t end_token);

}  // namespace espalier
