// Models of tests/oracle on one rank: their decks and weights.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/executor/cpu_executor.hpp"
#include "espalier/program/compile.hpp"
#include "kernels_testing.hpp"
#include "source_tree.hpp"
#include "test_decks.hpp"

namespace espalier {

inline const std::string kOracle = InTree("tests/oracle/");

inline uint64_t Fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

/// The formula at the head of the oracle's files.
inline float OracleWeight(const StoredPart& stored, int64_t i) {
  const uint64_t bits = (Fnv1a64(stored.name) + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u) >> 40;
  const double w = 0.4 * (static_cast<double>(bits) / 16777216.0 - 0.5);
  return static_cast<float>(stored.shape.size() == 1 && stored.name.ends_with(".weight") ? 1 + w : w);
}

/// Element i of a parameter as an element of the stored tensor.
inline int64_t StoredElement(const StoredPart& stored, const Shape& extents, int64_t i) {
  int64_t element = 0, stride = 1;
  for (size_t d = extents.size(); d-- > 0; stride *= stored.shape[d]) {
    element += (stored.start[d] + i % extents[d]) * stride;
    i /= extents[d];
  }
  return element;
}

/// A program on one rank with the oracle's weights.
class OneRank {
 public:
  OneRank(const Deck& deck, Executor::KernelFinder kernels)
      : compilation_(Compile(deck, 1, Purpose::kTrain)),
        program_(MakeProgram(compilation_, {})),
        arena_(program_.arena_bytes),
        executor_(program_, {}, arena_, nullptr, kernels) {
    for (size_t p = 0; p < compilation_.parameters.size(); ++p) {
      const Tensor w = executor_.At("parameters/" + compilation_.parameters[p]);
      const StoredPart& stored = compilation_.stored[p];
      for (int64_t i = 0; i < Volume(w.shape); ++i)
        w.As<float>()[i] = OracleWeight(stored, StoredElement(stored, w.shape, i));
    }
    if (compilation_.graph->FindOrNone("positions") < 0) return;  // the test fills the positions of documents
    int32_t* positions = executor_.At("positions").As<int32_t>();
    for (int64_t p = 0; p < deck.model.seq_len; ++p) positions[p] = static_cast<int32_t>(p);
  }

  /// A whole stored tensor from the values `prefix`<parameter>`suffix`; absent parts are 0.
  std::vector<double> Stored(const std::string& prefix, const std::string& name, const std::string& suffix = "") const {
    std::vector<double> whole;
    for (size_t p = 0; p < compilation_.parameters.size(); ++p) {
      const StoredPart& stored = compilation_.stored[p];
      if (stored.name != name) continue;
      whole.resize(static_cast<size_t>(Volume(stored.shape)));
      const std::string value = prefix + compilation_.parameters[p] + suffix;
      if (compilation_.graph->FindOrNone(value) < 0) continue;
      const Tensor part = executor_.At(value);
      for (int64_t i = 0; i < Volume(part.shape); ++i)
        whole[static_cast<size_t>(StoredElement(stored, part.shape, i))] = part.As<float>()[i];
    }
    return whole;
  }

  void Fill(const std::string& name, int microbatch, const std::vector<int32_t>& tokens) {
    std::copy(tokens.begin(), tokens.end(), executor_.At(name, microbatch).As<int32_t>());
  }
  void Step(int64_t step, double lr) {
    executor_.SetScalar("lr", static_cast<float>(lr));
    executor_.SetScalar("step", static_cast<float>(step));
    if (compilation_.deck.optimizer.name == OptimizerName::kMuon)
      executor_.SetScalar("muon_lr", static_cast<float>(MuonLearningRate(compilation_.deck, step)));
    executor_.RunStep();
  }
  const Executor& executor() const { return executor_; }
  /// False for a parameter that no gradient trains.
  bool IsTrained(const std::string& name) const {
    const int state = compilation_.graph->FindOrNone("parameters/" + name);
    return state < 0 || compilation_.graph->value(state).trained;
  }
  const Compilation& compilation() const { return compilation_; }

 private:
  Compilation compilation_;
  Program program_;
  HostArena arena_;
  CpuExecutor executor_;
};

struct Variant {
  std::string name, model;  ///< `model`: the one of tests/oracle/gradients.py
  Executor::KernelFinder kernels;
  bool tied;
};

/// Keys in which a model of tests/oracle/gradients.py differs from its llama.
inline std::vector<std::string> OwnKeys(const std::string& model) {
  if (model == "gpt2") return {"family=gpt2", "kv_heads=4"};
  if (model == "llama31")
    return {"head_dim=10",
            "qkv_bias=true",
            "o_bias=true",
            "mlp_bias=true",
            "rope_scaling=llama3",
            "rope_factor=3",
            "rope_original_seq_len=40",
            "rope_low_freq_factor=0.5",
            "rope_high_freq_factor=3"};
  if (model == "qwen2")
    return {"qkv_bias=true",    "rope_scaling=yarn", "rope_factor=4", "rope_original_seq_len=60",
            "rope_beta_fast=4", "rope_beta_slow=0.5"};
  if (model == "qwen3") return {"head_dim=8", "qk_norm=head", "rope_scaling=linear", "rope_factor=2.5"};
  if (model == "olmo2") return {"norm_placement=post", "qk_norm=full"};
  if (model == "mixtral") return {"sliding_window=5"};
  if (model == "qwen3_moe") return {"head_dim=8", "qk_norm=head"};
  if (model == "qwen2_moe") return {"qkv_bias=true"};
  if (model == "glm4_moe") return {"head_dim=8", "rope_dim=4", "qk_norm=head", "qkv_bias=true"};
  if (model == "olmoe") return {"qk_norm=full"};
  if (model == "gpt_oss")
    return {"head_dim=8",       "qkv_bias=true",          "o_bias=true",         "sinks=true",
            "sliding_window=4", "full_attention_every=2", "rope_scaling=yarn",   "rope_factor=4",
            "rope_beta_fast=4", "rope_beta_slow=0.5",     "rope_truncate=false", "rope_original_seq_len=60"};
  if (model == "deepseek_v3")
    return {"attention=mla",
            "kv_heads=4",
            "head_dim=10",
            "rope_dim=4",
            "v_dim=7",
            "q_rank=11",
            "kv_rank=9",
            "rope_adjacent=true",
            "rope_scaling=yarn",
            "rope_factor=4",
            "rope_original_seq_len=60",
            "rope_beta_fast=4",
            "rope_beta_slow=0.5",
            "score_factor=1.44",
            "rope_attention_factor=1"};
  if (model == "deepseek_v2")
    return {"attention=mla", "kv_heads=4", "head_dim=8", "rope_dim=6", "v_dim=9", "kv_rank=10", "rope_adjacent=true"};
  return {};
}

/// The same of [experts].
inline std::vector<std::string> ExpertKeysOf(const std::string& model) {
  if (model == "mixtral") return {"count=5", "per_token=2", "ffn_dim=13"};
  if (model == "qwen3_moe") return {"count=6", "per_token=3", "ffn_dim=11", "first_layer=1", "every=2"};
  if (model == "qwen2_moe")
    return {"count=6", "per_token=3", "ffn_dim=11", "normalize=false", "shared_ffn_dim=14", "shared_gate=true"};
  if (model == "glm4_moe")
    return {"count=8",   "per_token=3", "ffn_dim=11",   "shared_ffn_dim=22", "scores=sigmoid",
            "scale=2.5", "groups=4",    "top_groups=2", "bias=true",         "first_layer=1"};
  if (model == "deepseek_v3")
    return {"count=8",   "per_token=3", "ffn_dim=11",   "shared_ffn_dim=11", "scores=sigmoid",
            "scale=2.5", "groups=4",    "top_groups=2", "bias=true",         "first_layer=1"};
  if (model == "deepseek_v2")
    return {"count=6", "per_token=3", "ffn_dim=11", "shared_ffn_dim=22", "normalize=false", "scale=1.5"};
  if (model == "olmoe") return {"count=7", "per_token=3", "ffn_dim=10", "normalize=false"};
  if (model == "gpt_oss")
    return {"count=5", "per_token=2", "ffn_dim=13", "mlp_bias=true", "router_bias=true", "swiglu_limit=0.3"};
  return {};
}

inline Deck OracleDeck(const Variant& v) {
  std::vector<std::string> keys = {
      "model.layers=2", "model.dim=24",    "model.kv_heads=2",    "model.ffn_dim=40",
      "model.vocab=37", "model.seq_len=9", "model.norm_eps=1e-5", "model.rope_theta=10000",
      "batch.global=2", "batch.micro=2",   "data.format=tokens",  fmt::format("model.tie_embeddings={}", v.tied)};
  for (const std::string& key : OwnKeys(v.model)) keys.push_back("model." + key);
  for (const std::string& key : ExpertKeysOf(v.model)) keys.push_back("experts." + key);
  return SmallDeck(keys);
}

}  // namespace espalier
