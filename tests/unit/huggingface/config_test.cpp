// config.json of models with experts: what it says becomes keys of a deck and comes back, and the rest is refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint_testing.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/huggingface/model_config.hpp"
#include "espalier/util/error.hpp"
#include "source_tree.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Pair;
using Strings = std::vector<std::string>;

const json kCommon = {{"hidden_size", 24},        {"num_hidden_layers", 5},       {"num_attention_heads", 4},
                      {"num_key_value_heads", 2}, {"intermediate_size", 26},      {"vocab_size", 31},
                      {"num_experts_per_tok", 3}, {"router_aux_loss_coef", 0.02}, {"max_position_embeddings", 40}};

/// A config.json of a small model of this type.
json Config(const std::string& type, const json& own = json::object()) {
  json config = kCommon;
  config["model_type"] = type;
  config[type == "mixtral" ? "num_local_experts" : "num_experts"] = 7;
  if (type.ends_with("_moe")) config["moe_intermediate_size"] = 10;
  config.update(own);
  return config;
}

class ConfigOfExperts : public testing::Test {
 protected:
  ModelConfig Read(const std::string& config) const {
    std::ofstream(home_.path() + "/config.json") << config;
    return ReadModelConfig(home_.path());
  }
  std::map<std::string, std::string> Keys(const json& config) const {
    const ModelConfig read = Read(config.dump());
    return {read.keys.begin(), read.keys.end()};
  }
  /// Why it is refused, without the path.
  Strings Errors(const json& config) const {
    try {
      Read(config.dump());
      return {};
    } catch (const UserError& error) {
      EXPECT_EQ(error.status(), ExitStatus::kData);
      Strings messages;
      for (const std::string& text : error.messages()) messages.push_back(text.substr(text.find(".json: ") + 7));
      return messages;
    }
  }
  /// experts.first_layer and experts.every of a Qwen3-MoE with these layers.
  std::pair<std::string, std::string> Sparse(int layers, int step, const json& dense) const {
    const auto keys = Keys(Config(
        "qwen3_moe", {{"num_hidden_layers", layers}, {"decoder_sparse_step", step}, {"mlp_only_layers", dense}}));
    return {keys.at("experts.first_layer"), keys.at("experts.every")};
  }
  /// The deck of what an export of a deck says.
  Deck ThereAndBack(const Deck& deck) const {
    Strings overrides;
    for (const auto& [key, value] : Read(ConfigJson(deck.model, deck.dropout, SafeDtype::kF32)).keys)
      overrides.push_back(key + "=" + value);
    return SmallDeck(overrides);
  }

  TemporaryDirectory home_;
};

TEST_F(ConfigOfExperts, MixtralsExpertsHaveTheIntermediateSize) {
  EXPECT_EQ(Read(Config("mixtral").dump()).architecture, "MixtralForCausalLM");
  const auto keys = Keys(Config("mixtral", {{"sliding_window", 11}, {"router_jitter_noise", 0.0}}));
  EXPECT_THAT(
      keys, IsSupersetOf({Pair("experts.count", "7"), Pair("experts.per_token", "3"), Pair("experts.ffn_dim", "26"),
                          Pair("experts.shared_ffn_dim", "0"), Pair("experts.first_layer", "0"),
                          Pair("experts.every", "1"), Pair("experts.scores", "\"softmax\""),
                          Pair("experts.normalize", "true"), Pair("experts.scale", "1.0"), Pair("model.ffn_dim", "26"),
                          Pair("model.sliding_window", "11"), Pair("model.rope_theta", "1000000.0")}));
}

TEST_F(ConfigOfExperts, QwensLayersMayBeDense) {
  const auto keys = Keys(Config("qwen3_moe", {{"head_dim", 8}, {"norm_topk_prob", true}, {"max_window_layers", 48}}));
  EXPECT_THAT(
      keys, IsSupersetOf({Pair("experts.count", "7"), Pair("experts.ffn_dim", "10"), Pair("experts.normalize", "true"),
                          Pair("model.ffn_dim", "26"), Pair("model.qk_norm", "\"head\""), Pair("model.head_dim", "8"),
                          Pair("model.sliding_window", "0")}));
  EXPECT_EQ(Keys(Config("qwen3_moe")).at("experts.normalize"), "false");
  // transformers 5 writes the other name.
  json renamed = Config("qwen3_moe", {{"num_local_experts", 9}});
  renamed.erase("num_experts");
  EXPECT_EQ(Keys(renamed).at("experts.count"), "9");
  using Text = std::pair<std::string, std::string>;
  EXPECT_EQ(Sparse(5, 1, nullptr), Text("0", "1"));
  EXPECT_EQ(Sparse(5, 2, json::array()), Text("1", "2"));
  EXPECT_EQ(Sparse(4, 3, json::array()), Text("2", "3"));
  EXPECT_EQ(Sparse(5, 1, {0, 1}), Text("2", "1"));
  EXPECT_EQ(Sparse(7, 2, {1}), Text("3", "2"));
  EXPECT_EQ(Sparse(7, 1, {0, 2, 3, 5, 6}), Text("1", "3"));
  EXPECT_EQ(Sparse(5, 1, {0, 1, 3, 4}), Text("2", "3"));
  EXPECT_EQ(Sparse(5, 1, {9, 17}), Text("0", "1"));
}

TEST_F(ConfigOfExperts, Qwen2HasASharedExpertWithAGate) {
  const json own = {{"shared_expert_intermediate_size", 30}, {"max_window_layers", 28}, {"sliding_window", 4096}};
  EXPECT_EQ(Read(Config("qwen2_moe", own).dump()).architecture, "Qwen2MoeForCausalLM");
  EXPECT_THAT(
      Keys(Config("qwen2_moe", own)),
      IsSupersetOf({Pair("experts.count", "7"), Pair("experts.ffn_dim", "10"), Pair("experts.shared_ffn_dim", "30"),
                    Pair("experts.shared_gate", "true"), Pair("experts.normalize", "false"),
                    Pair("model.qkv_bias", "true"), Pair("model.o_bias", "false"), Pair("model.sliding_window", "0")}));
  json window = own;
  window["use_sliding_window"] = true;
  EXPECT_THAT(Errors(Config("qwen2_moe", window)),
              ElementsAre("use_sliding_window = true: cannot be expressed (allowed: false)"));
  EXPECT_THAT(Errors(Config("qwen2_moe")), ElementsAre("shared_expert_intermediate_size: missing"));
}

TEST_F(ConfigOfExperts, GlmHasDeepSeeksRouter) {
  json config = Config("glm4_moe", {{"n_routed_experts", 12},
                                    {"n_shared_experts", 2},
                                    {"n_group", 4},
                                    {"topk_group", 2},
                                    {"routed_scaling_factor", 2.5},
                                    {"head_dim", 12},
                                    {"first_k_dense_replace", 1},
                                    {"use_qk_norm", true},
                                    {"attention_bias", true},
                                    {"num_nextn_predict_layers", 1}});
  config.erase("num_experts");
  EXPECT_EQ(Read(config.dump()).further_layers, 1);
  EXPECT_EQ(Read(Config("qwen3_moe").dump()).further_layers, 0);
  EXPECT_EQ(Read(Config("qwen3_moe", {{"num_nextn_predict_layers", 2}}).dump()).further_layers, 2);
  EXPECT_THAT(
      Keys(config),
      IsSupersetOf({Pair("experts.count", "12"), Pair("experts.ffn_dim", "10"), Pair("experts.shared_ffn_dim", "20"),
                    Pair("experts.shared_gate", "false"), Pair("experts.scores", "\"sigmoid\""),
                    Pair("experts.groups", "4"), Pair("experts.top_groups", "2"), Pair("experts.scale", "2.5"),
                    Pair("experts.bias", "true"), Pair("experts.first_layer", "1"), Pair("experts.normalize", "true"),
                    Pair("model.rope_dim", "6"), Pair("model.qk_norm", "\"head\""), Pair("model.qkv_bias", "true"),
                    Pair("model.o_bias", "false")}));
  config["partial_rotary_factor"] = 1.5;
  EXPECT_THAT(Errors(config),
              ElementsAre("partial_rotary_factor = 1.5: cannot be expressed (allowed: above 0, at most 1)"));
}

/// The factor of scores that follows from DeepSeek-V2-Lite's mscale of 0.707.
const double kLiteFactor = std::pow(0.1 * 0.707 * std::log(40.0) + 1, 2);

/// The configuration of DeepSeek-V2-Lite.
json V2Lite() {
  return {{"model_type", "deepseek_v2"},
          {"attention_bias", false},
          {"aux_loss_alpha", 0.001},
          {"first_k_dense_replace", 1},
          {"hidden_size", 2048},
          {"intermediate_size", 10944},
          {"kv_lora_rank", 512},
          {"max_position_embeddings", 163840},
          {"moe_intermediate_size", 1408},
          {"moe_layer_freq", 1},
          {"n_group", 1},
          {"n_routed_experts", 64},
          {"n_shared_experts", 2},
          {"norm_topk_prob", false},
          {"num_attention_heads", 16},
          {"num_experts_per_tok", 6},
          {"num_hidden_layers", 27},
          {"num_key_value_heads", 16},
          {"q_lora_rank", nullptr},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling",
           {{"beta_fast", 32},
            {"beta_slow", 1},
            {"factor", 40},
            {"mscale", 0.707},
            {"mscale_all_dim", 0.707},
            {"original_max_position_embeddings", 4096},
            {"type", "yarn"}}},
          {"rope_theta", 10000},
          {"routed_scaling_factor", 1.0},
          {"scoring_func", "softmax"},
          {"seq_aux", true},
          {"topk_group", 1},
          {"topk_method", "greedy"},
          {"v_head_dim", 128},
          {"vocab_size", 102400}};
}

TEST_F(ConfigOfExperts, DeepSeekHasLatents) {
  json config = V2Lite();
  EXPECT_EQ(Read(config.dump()).architecture, "DeepseekV2ForCausalLM");
  EXPECT_THAT(Keys(config),
              IsSupersetOf({Pair("model.attention", "\"mla\""), Pair("model.q_rank", "0"), Pair("model.kv_rank", "512"),
                            Pair("model.head_dim", "192"), Pair("model.rope_dim", "64"), Pair("model.v_dim", "128"),
                            Pair("model.rope_adjacent", "true"), Pair("model.rope_attention_factor", "1.0"),
                            Pair("experts.scores", "\"softmax\""), Pair("experts.normalize", "false"),
                            Pair("experts.shared_ffn_dim", "2816"), Pair("experts.bias", "false"),
                            Pair("experts.groups", "1")}));
  EXPECT_EQ(Keys(config).at("model.score_factor"), fmt::format("{}", kLiteFactor));
  config.update({{"topk_method", "group_limited_greedy"}, {"n_group", 8}, {"topk_group", 3}});
  EXPECT_THAT(Keys(config), IsSupersetOf({Pair("experts.groups", "8"), Pair("experts.top_groups", "3"),
                                          Pair("experts.group_best", "1"), Pair("experts.bias", "false"),
                                          Pair("experts.scores", "\"softmax\"")}));
  config["topk_method"] = "noaux_tc";
  config["norm_topk_prob"] = config["attention_bias"] = true;
  config["num_key_value_heads"] = 4;
  EXPECT_THAT(Errors(config),
              testing::UnorderedElementsAre("num_key_value_heads = 4: cannot be expressed (allowed: 16)",
                                            "attention_bias = true: cannot be expressed (allowed: false)",
                                            "norm_topk_prob = true: cannot be expressed (allowed: false)",
                                            "topk_method = \"noaux_tc\": cannot be expressed (allowed: \"greedy\", "
                                            "\"group_limited_greedy\")"));
  // Where it is silent, the values of DeepSeek-V3.
  const json v3 = {{"model_type", "kimi_k2"},      {"hidden_size", 96},        {"intermediate_size", 26},
                   {"num_hidden_layers", 5},       {"num_attention_heads", 4}, {"max_position_embeddings", 40},
                   {"n_routed_experts", 16},       {"num_experts_per_tok", 8}, {"moe_intermediate_size", 10},
                   {"rope_interleave", false},     {"vocab_size", 31},         {"head_dim", 64},
                   {"num_nextn_predict_layers", 1}};
  EXPECT_EQ(Read(v3.dump()).architecture, "DeepseekV3ForCausalLM");
  EXPECT_EQ(Read(v3.dump()).further_layers, 1);
  EXPECT_THAT(Keys(v3), IsSupersetOf({Pair("model.q_rank", "1536"), Pair("model.head_dim", "192"),
                                      Pair("model.kv_heads", "4"), Pair("model.rope_adjacent", "false"),
                                      Pair("experts.scores", "\"sigmoid\""), Pair("experts.groups", "8"),
                                      Pair("experts.top_groups", "4"), Pair("experts.first_layer", "3"),
                                      Pair("experts.group_best", "2"), Pair("experts.scale", "2.5"),
                                      Pair("experts.shared_ffn_dim", "10"), Pair("experts.bias", "true")}));
  json other = v3;
  other.update({{"quantization_config", {{"quant_method", "fp8"}}}, {"scoring_func", "softmax"}, {"head_dim", 24}});
  EXPECT_THAT(Errors(other),
              ElementsAre("head_dim = 24: cannot be expressed (allowed: 64)",
                          "scoring_func = \"softmax\": cannot be expressed (allowed: \"sigmoid\")",
                          "quantization_config = {\"quant_method\":\"fp8\"}: cannot be expressed (allowed: none: make "
                          "bf16 of the weights first)"));
}

TEST_F(ConfigOfExperts, GptOssHasSinksAndBiases) {
  json config = Config("gpt_oss", {{"num_local_experts", 7}, {"quantization_config", {{"quant_method", "mxfp4"}}}});
  config.erase("num_experts");
  EXPECT_EQ(Read(config.dump()).architecture, "GptOssForCausalLM");
  EXPECT_THAT(Keys(config),
              IsSupersetOf({Pair("model.sinks", "true"), Pair("model.qkv_bias", "true"), Pair("model.o_bias", "true"),
                            Pair("model.head_dim", "64"), Pair("model.sliding_window", "128"),
                            Pair("model.full_attention_layers", "0"), Pair("model.full_attention_every", "2"),
                            Pair("model.rope_theta", "150000.0"), Pair("model.rope_scaling", "\"yarn\""),
                            Pair("model.rope_factor", "32.0"), Pair("model.rope_truncate", "false"),
                            Pair("experts.mlp_bias", "true"), Pair("experts.router_bias", "true"),
                            Pair("experts.swiglu_limit", "7.0"), Pair("experts.scores", "\"softmax\""),
                            Pair("experts.normalize", "true"), Pair("experts.bias", "false")}));
  const auto windows = [&](const std::string& layers) {
    config["layer_types"] = json::array();
    for (char layer : layers) config["layer_types"].push_back(layer == 'w' ? "sliding_attention" : "full_attention");
    const auto keys = Keys(config);
    return fmt::format("{} {} {}", keys.at("model.sliding_window"), keys.at("model.full_attention_layers"),
                       keys.at("model.full_attention_every"));
  };
  EXPECT_EQ(windows("wwwww"), "128 0 0");
  EXPECT_EQ(windows("fffff"), "0 0 0");
  EXPECT_EQ(windows("ffwww"), "128 2 0");
  EXPECT_EQ(windows("wwfww"), "128 0 3");
  EXPECT_EQ(windows("fwwfw"), "128 1 4");
  EXPECT_EQ(windows("wfwfw"), "128 0 2");
  config["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention",
                           "sliding_attention"};
  config["swiglu_alpha"] = 1.5;
  config["quantization_config"] = {{"quant_method", "fp8"}};
  EXPECT_THAT(Errors(config),
              ElementsAre(HasSubstr("of the first layers and of each n-th one"),
                          "swiglu_alpha = 1.5: cannot be expressed (allowed: 1.702)",
                          "quantization_config = {\"quant_method\":\"fp8\"}: cannot be expressed (allowed: "
                          "quant_method \"mxfp4\")"));
}

TEST_F(ConfigOfExperts, OlmoesNormsAreOfAllHeads) {
  const auto keys = Keys(Config("olmoe", {{"norm_topk_prob", false}, {"clip_qkv", nullptr}}));
  EXPECT_THAT(
      keys, IsSupersetOf({Pair("experts.count", "7"), Pair("experts.ffn_dim", "26"), Pair("experts.normalize", "false"),
                          Pair("model.qk_norm", "\"full\""), Pair("model.norm_placement", "\"pre\""),
                          Pair("model.head_dim", "6"), Pair("model.rope_theta", "10000.0")}));
}

TEST_F(ConfigOfExperts, OthersAreRefused) {
  EXPECT_THAT(Errors(Config("olmoe", {{"clip_qkv", 8.0}, {"head_dim", 8}, {"sliding_window", 9}})),
              testing::UnorderedElementsAre("clip_qkv = 8.0: cannot be expressed (allowed: null)",
                                            "head_dim = 8: cannot be expressed (allowed: 6)",
                                            "sliding_window = 9: cannot be expressed (allowed: null)"));
  EXPECT_THAT(Errors(Config("mixtral", {{"router_jitter_noise", 0.1}, {"output_router_logits", true}})),
              ElementsAre("router_jitter_noise = 0.1: cannot be expressed (allowed: 0.0)",
                          "output_router_logits = true: cannot be expressed (allowed: false, or "
                          "router_aux_loss_coef = 0)"));
  EXPECT_THAT(Errors(Config("mixtral", {{"router_aux_loss_coef", 0}, {"output_router_logits", true}})), ElementsAre());
  EXPECT_THAT(Errors(Config("mixtral", {{"num_experts", 3}})), ElementsAre(HasSubstr("num_experts = 3: unknown key")));
  EXPECT_THAT(Errors(Config("qwen3_moe", {{"decoder_sparse_step", 6}})),
              ElementsAre("decoder_sparse_step = 6: cannot be expressed (allowed: a step that leaves layers with "
                          "experts)"));
  for (const json& dense : {json{1}, json{0, 3}, json{3, 4}})
    EXPECT_THAT(Errors(Config("qwen3_moe", {{"mlp_only_layers", dense}})),
                ElementsAre(HasSubstr(dense.dump() + ": cannot be expressed (allowed: layers such that each n-th one")))
        << dense;
  EXPECT_THAT(Errors(Config("qwen3_moe", {{"mlp_only_layers", {0.5}}})), ElementsAre(HasSubstr("a list of layers")));
  EXPECT_THAT(
      Errors(Config("qwen3_moe", {{"use_sliding_window", true}, {"sliding_window", 9}, {"max_window_layers", 2}})),
      ElementsAre("max_window_layers = 2: cannot be expressed (allowed: 0)"));
  json incomplete = Config("olmoe");
  incomplete.erase("num_experts");
  incomplete.erase("num_experts_per_tok");
  EXPECT_THAT(Errors(incomplete), ElementsAre("num_experts: missing", "num_experts_per_tok: missing"));
}

TEST_F(ConfigOfExperts, ManyLayersTakeNoTime) {
  EXPECT_EQ(Sparse(INT32_MAX, 1, json::array()).first, "0");
  EXPECT_THAT(Errors(Config("qwen3_moe", {{"num_hidden_layers", INT32_MAX}, {"decoder_sparse_step", INT32_MAX}})),
              ElementsAre(HasSubstr("decoder_sparse_step")));
}

TEST_F(ConfigOfExperts, AnExportSaysWhatTheDeckSays) {
  const Strings experts = {"experts.count=7", "experts.per_token=3", "experts.ffn_dim=10"};
  const std::vector<std::pair<std::string, Strings>> models = {
      {"MixtralForCausalLM", {"model.ffn_dim=10", "model.head_dim=10", "model.sliding_window=9"}},
      {"MixtralForCausalLM", {"model.ffn_dim=10", "model.rope_theta=1e6", "model.tie_embeddings=true"}},
      {"Qwen3MoeForCausalLM", {"model.qk_norm=head", "model.head_dim=8", "experts.normalize=false"}},
      {"Qwen3MoeForCausalLM", {"model.qk_norm=head", "experts.first_layer=1", "experts.every=2"}},
      {"Qwen3MoeForCausalLM", {"model.qk_norm=head", "experts.first_layer=1", "experts.every=3"}},
      {"Qwen3MoeForCausalLM", {"model.qk_norm=head", "experts.first_layer=2", "model.sliding_window=7"}},
      {"Qwen3MoeForCausalLM", {"model.qk_norm=head", "model.layers=9", "experts.first_layer=5", "experts.every=2"}},
      {"OlmoeForCausalLM", {"model.ffn_dim=10", "model.qk_norm=full", "experts.normalize=false"}},
      {"OlmoeForCausalLM", {"model.ffn_dim=10", "model.qk_norm=full", "dropout.attention=0.25"}},
      {"Qwen2MoeForCausalLM",
       {"model.qkv_bias=true", "experts.shared_ffn_dim=6", "experts.shared_gate=true", "experts.normalize=false",
        "experts.first_layer=1"}},
      {"Glm4MoeForCausalLM",
       {"model.head_dim=8", "model.rope_dim=4", "model.qkv_bias=true", "model.qk_norm=head", "experts.scores=sigmoid",
        "experts.bias=true", "experts.shared_ffn_dim=20", "experts.scale=2.5", "experts.first_layer=2"}},
      {"Glm4MoeForCausalLM",
       {"experts.count=12", "experts.scores=sigmoid", "experts.bias=true", "experts.shared_ffn_dim=10",
        "experts.groups=4", "experts.top_groups=2", "experts.normalize=false"}},
      {"DeepseekV3ForCausalLM",
       {"model.attention=mla", "model.kv_heads=4", "model.head_dim=14", "model.rope_dim=6", "model.v_dim=9",
        "model.q_rank=11", "model.kv_rank=13", "experts.scores=sigmoid", "experts.bias=true",
        "experts.shared_ffn_dim=20", "experts.scale=2.5", "experts.first_layer=1"}},
      {"DeepseekV2ForCausalLM",
       {"model.attention=mla", "model.kv_heads=4", "model.head_dim=14", "model.rope_dim=6", "model.v_dim=9",
        "model.kv_rank=13", "model.rope_adjacent=true", "experts.normalize=false", "experts.shared_ffn_dim=10",
        "model.rope_scaling=yarn", "model.rope_factor=40", "model.rope_original_seq_len=40",
        "model.rope_attention_factor=1", fmt::format("model.score_factor={}", kLiteFactor)}},
      {"DeepseekV2ForCausalLM",
       {"model.attention=mla", "model.kv_heads=4", "model.head_dim=14", "model.rope_dim=6", "model.v_dim=9",
        "model.kv_rank=13", "model.rope_adjacent=true", "experts.normalize=false", "experts.shared_ffn_dim=10",
        "experts.count=12", "experts.groups=4", "experts.top_groups=2", "experts.group_best=1"}},
      {"GptOssForCausalLM",
       {"model.ffn_dim=10", "model.sinks=true", "experts.mlp_bias=true", "experts.router_bias=true",
        "experts.swiglu_limit=7"}},
      {"GptOssForCausalLM",
       {"model.ffn_dim=10", "model.sinks=true", "experts.mlp_bias=true", "experts.router_bias=true",
        "experts.swiglu_limit=2.5", "model.head_dim=6", "model.qkv_bias=true", "model.o_bias=true",
        "model.sliding_window=5", "model.full_attention_layers=1", "model.full_attention_every=3",
        "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_seq_len=40",
        "model.rope_truncate=false"}}};
  const Strings dense = {"model.attention=mla", "model.kv_heads=4", "model.head_dim=14", "model.rope_dim=6",
                         "model.v_dim=9",       "model.q_rank=11",  "model.kv_rank=13"};
  EXPECT_EQ(ArchitectureOf(SmallDeck(dense).model), "DeepseekV3ForCausalLM");
  for (const DeckKey& key : DeckSchema())
    EXPECT_EQ(ToToml(Get(ThereAndBack(SmallDeck(dense)), key)), ToToml(Get(SmallDeck(dense), key))) << key.FullName();
  for (const auto& [architecture, own] : models) {
    Strings overrides = experts;
    overrides.insert(overrides.end(), own.begin(), own.end());
    const Deck deck = SmallDeck(overrides);
    EXPECT_EQ(ArchitectureOf(deck.model), architecture);
    const Deck back = ThereAndBack(deck);
    for (const DeckKey& key : DeckSchema())
      EXPECT_EQ(ToToml(Get(back, key)), ToToml(Get(deck, key))) << architecture << " " << key.FullName();
  }
}

TEST_F(ConfigOfExperts, ArchitecturesThatDoNotExistAreNamed) {
  const auto why = [](const std::string& own) -> std::string {
    Strings overrides = {"experts.count=7", "experts.per_token=3", "experts.ffn_dim=10"};
    for (size_t begin = 0; begin < own.size();) {
      const size_t end = std::min(own.find(' ', begin), own.size());
      overrides.push_back(own.substr(begin, end - begin));
      begin = end + 1;
    }
    try {
      return ArchitectureOf(SmallDeck(overrides).model);
    } catch (const UserError& error) {
      EXPECT_EQ(error.status(), ExitStatus::kDeck);
      return error.what();
    }
  };
  EXPECT_THAT(
      why("experts.scores=sigmoid"),
      HasSubstr(
          "experts.count = 7, experts.scores = \"sigmoid\": no architecture of Hugging Face has these "
          "together (allowed: those of llama, mistral, qwen2, qwen3, olmo2, mixtral, qwen2_moe, qwen3_moe, olmoe, "
          "glm4_moe, gpt_oss, deepseek_v2, deepseek_v3;"));
  EXPECT_THAT(why("model.rope_adjacent=true"), HasSubstr("model.rope_adjacent = true, experts.count = 7: no arch"));
  EXPECT_THAT(why("model.attention=mla model.kv_heads=4 model.head_dim=14 model.rope_dim=6 model.kv_rank=13 "
                  "experts.shared_ffn_dim=10 experts.normalize=false model.rope_adjacent=true model.score_factor=1.5"),
              HasSubstr("model.attention = \"mla\", model.score_factor = 1.5, model.rope_adjacent = true"));
  EXPECT_THAT(why("experts.count=12 experts.scores=sigmoid experts.bias=true experts.shared_ffn_dim=10 "
                  "experts.groups=4 experts.top_groups=2 experts.group_best=1"),
              HasSubstr("experts.groups = 4, experts.group_best = 1, experts.bias = true: no arch"));
  EXPECT_THAT(why("experts.mlp_bias=true"), HasSubstr("experts.mlp_bias = true: no arch"));
  EXPECT_THAT(
      why("model.sinks=true experts.router_bias=true experts.swiglu_limit=7"),
      HasSubstr("model.sinks = true, experts.count = 7, experts.router_bias = true, experts.swiglu_limit = 7: "));
  EXPECT_THAT(why("model.sliding_window=9 model.full_attention_every=2"),
              HasSubstr("model.full_attention_every = 2, experts.count = 7: no arch"));
  EXPECT_THAT(why("experts.shared_ffn_dim=6"), HasSubstr("experts.shared_ffn_dim = 6: no arch"));
  EXPECT_THAT(why("experts.scale=2.5"), HasSubstr("experts.scale = 2.5: no arch"));
  EXPECT_THAT(why("experts.normalize=false"), HasSubstr("experts.normalize = false: no arch"));
  EXPECT_THAT(why("experts.first_layer=1 experts.every=2"),
              HasSubstr("experts.first_layer = 1, experts.every = 2: no arch"));
  EXPECT_THAT(why("model.qk_norm=full model.head_dim=8"),
              HasSubstr("model.qk_norm = \"full\", model.head_dim = 8, experts.count = 7: no arch"));
  EXPECT_THAT(why("model.qkv_bias=true"), HasSubstr("model.qkv_bias = true, experts.count = 7: no arch"));
  EXPECT_THAT(why("model.norm_placement=post model.qk_norm=full"), HasSubstr("model.norm_placement = \"post\""));
}

/// The configuration of gpt-oss-20b; "initial_context_length" and "experts_per_token" say again what other keys say.
json GptOss() {
  return {{"model_type", "gpt_oss"},
          {"attention_bias", true},
          {"experts_per_token", 4},
          {"head_dim", 64},
          {"hidden_act", "silu"},
          {"hidden_size", 2880},
          {"initial_context_length", 4096},
          {"intermediate_size", 2880},
          {"max_position_embeddings", 131072},
          {"num_attention_heads", 64},
          {"num_experts_per_tok", 4},
          {"num_hidden_layers", 24},
          {"num_key_value_heads", 8},
          {"num_local_experts", 32},
          {"quantization_config", {{"quant_method", "mxfp4"}}},
          {"rms_norm_eps", 1e-5},
          {"rope_scaling",
           {{"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"factor", 32.0},
            {"original_max_position_embeddings", 4096},
            {"rope_type", "yarn"},
            {"truncate", false}}},
          {"rope_theta", 150000},
          {"router_aux_loss_coef", 0.9},
          {"sliding_window", 128},
          {"swiglu_limit", 7.0},
          {"vocab_size", 201088}};
}

// The decks of inputs say what the published config.json says, but for the length of sequences.
TEST_F(ConfigOfExperts, DecksAreThePublishedModels) {
  const json qwen = {{"model_type", "qwen2_moe"}, {"norm_topk_prob", false}, {"rms_norm_eps", 1e-6},
                     {"rope_theta", 1e6},         {"vocab_size", 151936},    {"use_sliding_window", false},
                     {"decoder_sparse_step", 1}};
  json small = qwen, large = qwen;
  small.update({{"hidden_size", 2048},
                {"intermediate_size", 5632},
                {"max_position_embeddings", 8192},
                {"moe_intermediate_size", 1408},
                {"num_attention_heads", 16},
                {"num_experts", 60},
                {"num_experts_per_tok", 4},
                {"num_hidden_layers", 24},
                {"num_key_value_heads", 16},
                {"shared_expert_intermediate_size", 5632}});
  large.update({{"hidden_size", 3584},
                {"intermediate_size", 18944},
                {"max_position_embeddings", 131072},
                {"moe_intermediate_size", 2560},
                {"num_attention_heads", 28},
                {"num_experts", 64},
                {"num_experts_per_tok", 8},
                {"num_hidden_layers", 28},
                {"num_key_value_heads", 4},
                {"shared_expert_intermediate_size", 20480}});
  const json air = {{"model_type", "glm4_moe"},
                    {"attention_bias", true},
                    {"first_k_dense_replace", 1},
                    {"head_dim", 128},
                    {"hidden_size", 4096},
                    {"intermediate_size", 10944},
                    {"max_position_embeddings", 131072},
                    {"moe_intermediate_size", 1408},
                    {"n_group", 1},
                    {"n_routed_experts", 128},
                    {"n_shared_experts", 1},
                    {"norm_topk_prob", true},
                    {"num_attention_heads", 96},
                    {"num_experts_per_tok", 8},
                    {"num_hidden_layers", 46},
                    {"num_key_value_heads", 8},
                    {"num_nextn_predict_layers", 1},
                    {"partial_rotary_factor", 0.5},
                    {"rms_norm_eps", 1e-5},
                    {"rope_theta", 1000000},
                    {"routed_scaling_factor", 1.0},
                    {"topk_group", 1},
                    {"use_qk_norm", false},
                    {"vocab_size", 151552}};
  const json oss = GptOss();
  json large_oss = oss;
  large_oss.update({{"num_hidden_layers", 36}, {"num_local_experts", 128}});
  const std::map<std::string, json> published = {{"gpt-oss/20b", oss},
                                                 {"gpt-oss/120b", large_oss},
                                                 {"qwen/qwen1.5-moe-a2.7b", small},
                                                 {"qwen/qwen2-57b-a14b", large},
                                                 {"glm/glm-4.5-air", air}};
  for (const auto& [name, config] : published) {
    const Deck deck = LoadDeck(InTree("inputs/" + name + ".toml")).deck;
    Strings overrides;
    for (const auto& [key, value] : Read(config.dump()).keys) overrides.push_back(key + "=" + value);
    Deck imported = SmallDeck(overrides);
    imported.model.seq_len = deck.model.seq_len;
    EXPECT_EQ(json::parse(ConfigJson(imported.model, imported.dropout, SafeDtype::kBf16)),
              json::parse(ConfigJson(deck.model, deck.dropout, SafeDtype::kBf16)))
        << name;
  }
}

}  // namespace
}  // namespace espalier
