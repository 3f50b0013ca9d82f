// Relations between the keys of the model and of its dropout.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "relations.hpp"
#include "text.hpp"

namespace espalier {
namespace {

/// model.head_dim has its default value: dim / heads, or 1 if that is no integer.
bool HeadDimIsDerived(const Deck::Model& m) { return m.head_dim == (m.dim % m.heads == 0 ? m.dim / m.heads : 1); }

/// Rotary positions rotate pairs of a head's elements.
std::string HeadsDivideDim(const Deck& deck) {
  const auto& m = deck.model;
  const bool pairs = m.family == Family::kLlama;
  const auto suits = [&](int64_t heads) { return m.dim % heads == 0 && (!pairs || m.dim / heads % 2 == 0); };
  if (!HeadDimIsDerived(m) || suits(m.heads)) return "";
  std::vector<int64_t> good = Divisors(m.dim);
  std::erase_if(good, [&](int64_t heads) { return !suits(heads); });
  const std::string allowed = good.empty() ? "model.dim must be even" : "allowed: " + ListNumbers(good);
  const std::string remedy = pairs ? "; or set model.head_dim" : "";
  if (m.dim % m.heads != 0) return fmt::format("must divide model.dim = {} ({}{})", m.dim, allowed, remedy);
  return fmt::format("must leave an even head size, not model.dim / heads = {} / {} = {} ({}{})", m.dim, m.heads,
                     m.dim / m.heads, allowed, remedy);
}

std::string HeadDimIsEven(const Deck& deck) {
  const auto& m = deck.model;
  if (m.family != Family::kLlama || m.head_dim % 2 == 0 || HeadDimIsDerived(m)) return "";
  return fmt::format("must be even, since RoPE rotates pairs (allowed: such as {} or {})", m.head_dim - 1,
                     m.head_dim + 1);
}

std::string RopeDimIsInTheHead(const Deck& deck) {
  const auto& m = deck.model;
  if (m.family == Family::kLlama && m.attention == AttentionKind::kMla) {
    if (m.rope_dim < m.head_dim && m.rope_dim % 2 == 0) return "";
    return fmt::format(
        "must be even and below model.head_dim = {}, of which each key has columns of its own and rope_dim that are "
        "rotated (DeepSeek-V3: 64 of 192)",
        m.head_dim);
  }
  if (m.family != Family::kLlama || m.rope_dim == m.head_dim || (m.rope_dim < m.head_dim && m.rope_dim % 2 == 0))
    return "";
  return fmt::format("must be even and at most model.head_dim = {} (allowed: such as {})", m.head_dim,
                     std::max<int64_t>(2, m.head_dim / 4 * 2));
}

/// The keys of llama that gpt2 has no counterpart of.
std::string Gpt2HasFixedForm(const Deck& deck) {
  const auto& m = deck.model;
  if (m.family != Family::kGpt2) return "";
  std::vector<std::string> wrong;
  if (m.dim % m.heads == 0 && m.head_dim != m.dim / m.heads)
    wrong.push_back(fmt::format("model.head_dim = {} (allowed: dim / heads = {})", m.head_dim, m.dim / m.heads));
  if (m.norm_placement != NormPlacement::kPre)
    wrong.push_back(fmt::format("model.norm_placement = \"{}\" (allowed: \"pre\")", DeckName(m.norm_placement)));
  if (m.attention != AttentionKind::kHeads)
    wrong.push_back(fmt::format("model.attention = \"{}\" (allowed: \"heads\")", DeckName(m.attention)));
  if (m.v_dim != m.head_dim) wrong.push_back(fmt::format("model.v_dim = {} (allowed: {})", m.v_dim, m.head_dim));
  if (m.qk_norm != QkNorm::kNone)
    wrong.push_back(fmt::format("model.qk_norm = \"{}\" (allowed: \"none\")", DeckName(m.qk_norm)));
  if (m.sinks) wrong.emplace_back("model.sinks = true (allowed: false)");
  return wrong.empty() ? "" : fmt::format("does not have {}; leave it out", fmt::join(wrong, ", nor "));
}

/// Places of dropout that only GPT-2 has.
std::string DropsOnlyInGpt2(const Deck& deck, double rate) {
  if (rate == 0 || deck.model.family == Family::kGpt2) return "";
  return fmt::format(
      "is only for model.family = \"gpt2\": \"{}\" has dropout of attention's probabilities alone (allowed: 0; or "
      "dropout.attention)",
      DeckName(deck.model.family));
}
std::string EmbeddingDropoutIsOfGpt2(const Deck& deck) { return DropsOnlyInGpt2(deck, deck.dropout.embedding); }
std::string ResidualDropoutIsOfGpt2(const Deck& deck) { return DropsOnlyInGpt2(deck, deck.dropout.residual); }

std::string RopeFactorStretches(const Deck& deck) {
  const auto& m = deck.model;
  if (m.rope_scaling == RopeScaling::kNone || m.rope_factor >= 1) return "";
  return fmt::format("must be at least 1 for model.rope_scaling = \"{}\": positions are stretched, not compressed",
                     DeckName(m.rope_scaling));
}

std::string ScalingKnowsTheOldLength(const Deck& deck) {
  const auto& m = deck.model;
  const bool needs = m.rope_scaling == RopeScaling::kLlama3 || m.rope_scaling == RopeScaling::kYarn;
  if (!needs || m.rope_original_seq_len > 0) return "";
  return fmt::format("must be the sequence length before scaling for model.rope_scaling = \"{}\" (allowed: >= 1)",
                     DeckName(m.rope_scaling));
}

std::string Llama3FactorsAscend(const Deck& deck) {
  const auto& m = deck.model;
  if (m.rope_scaling != RopeScaling::kLlama3 || m.rope_low_freq_factor < m.rope_high_freq_factor) return "";
  return fmt::format("must be above model.rope_low_freq_factor = {} (Llama 3.1 has 4 and 1)", m.rope_low_freq_factor);
}

std::string YarnBetasAscend(const Deck& deck) {
  const auto& m = deck.model;
  if (m.rope_scaling != RopeScaling::kYarn || m.rope_beta_slow < m.rope_beta_fast) return "";
  return fmt::format("must be above model.rope_beta_slow = {} (the paper has 32 and 1)", m.rope_beta_slow);
}

std::string YarnHasABase(const Deck& deck) {
  const auto& m = deck.model;
  return m.rope_scaling == RopeScaling::kYarn && m.rope_theta <= 1 ? "must be above 1 for model.rope_scaling = \"yarn\""
                                                                   : "";
}

std::string KvHeadsDivideHeads(const Deck& deck) {
  const auto& m = deck.model;
  if (m.heads % m.kv_heads == 0) return "";
  return fmt::format("must divide model.heads = {} (allowed: {})", m.heads, ListNumbers(Divisors(m.heads)));
}

std::string Gpt2HasNoGroups(const Deck& deck) {
  const auto& m = deck.model;
  if (m.family != Family::kGpt2 || m.kv_heads == m.heads) return "";
  return fmt::format("has no grouped heads: model.kv_heads must be model.heads = {}, not {} (leave it out)", m.heads,
                     m.kv_heads);
}

/// Keys that multi-head latent attention needs, or has no place for.
std::string MlaIsWhole(const Deck& deck) {
  const auto& m = deck.model;
  if (m.attention != AttentionKind::kMla || m.family != Family::kLlama) return "";
  std::vector<std::string> wrong;
  if (m.kv_rank == 0) wrong.emplace_back("model.kv_rank >= 1 (DeepSeek-V3: 512)");
  if (m.kv_heads != m.heads)
    wrong.push_back(fmt::format("model.kv_heads = model.heads = {}, not {}", m.heads, m.kv_heads));
  if (m.qk_norm != QkNorm::kNone)
    wrong.push_back(
        fmt::format("model.qk_norm = \"none\", not \"{}\": it normalises the latents", DeckName(m.qk_norm)));
  if (m.qkv_bias) wrong.emplace_back("model.qkv_bias = false");
  return wrong.empty() ? "" : fmt::format("needs {}", fmt::join(wrong, ", and "));
}

std::string ExpertsHaveAWidth(const Deck& deck) {
  const auto& e = deck.model.experts;
  return e.count == 0 || e.ffn_dim > 0 ? "" : fmt::format("must be at least 1 with experts.count = {}", e.count);
}

std::string TokensHaveEnoughExperts(const Deck& deck) {
  const auto& e = deck.model.experts;
  if (e.count == 0 || e.per_token <= e.count) return "";
  return fmt::format("must be at most experts.count = {} (allowed: 1 to {})", e.count, e.count);
}

std::string ExpertsStartInTheModel(const Deck& deck) {
  const auto& m = deck.model;
  if (m.experts.count == 0 || m.experts.first_layer < m.layers) return "";
  return fmt::format("must be below model.layers = {} with experts.count = {} (allowed: 0 to {})", m.layers,
                     m.experts.count, m.layers - 1);
}

std::string FurtherTokensAreOfLlama(const Deck& deck) {
  const auto& m = deck.model;
  if (m.mtp_layers == 0) return "";
  if (m.family == Family::kGpt2) return "must be 0 for model.family = \"gpt2\"";
  if (m.mtp_layers < m.seq_len) return "";
  return fmt::format("must be below model.seq_len = {}: layer k predicts the token k + 1 places ahead", m.seq_len);
}

std::string GroupsDivideExperts(const Deck& deck) {
  const auto& e = deck.model.experts;
  if (e.count % e.groups == 0) return "";
  return fmt::format("must divide experts.count = {} (allowed: {})", e.count, ListNumbers(Divisors(e.count)));
}

std::string TopGroupsHaveEnoughExperts(const Deck& deck) {
  const auto& e = deck.model.experts;
  if (e.count == 0 || e.groups == 1 || e.count % e.groups != 0 || e.per_token > e.count) return "";
  const int64_t each = e.count / e.groups, least = (e.per_token + each - 1) / each;
  if (least <= e.top_groups && e.top_groups <= e.groups) return "";
  return fmt::format("must be {} to {}: experts.per_token = {} of experts.groups = {} groups of {} experts", least,
                     e.groups, e.per_token, e.groups, each);
}

/// Experts are SwiGLU networks, and have keys of their own.
std::string ExpertsAreOfLlama(const Deck& deck) {
  const auto& m = deck.model;
  if (m.experts.count == 0) return "";
  if (m.family == Family::kGpt2) return "must be 0 for model.family = \"gpt2\", whose layers are dense";
  return m.mlp_bias ? "must be 0 with model.mlp_bias = true: experts have experts.mlp_bias" : "";
}

}  // namespace

const std::vector<Relation>& ModelRelations() {
  static const std::vector<Relation> relations = {
      {{"model.heads", "model.dim", "model.head_dim", "model.family"}, HeadsDivideDim},
      {{"model.head_dim", "model.family", "model.dim", "model.heads"}, HeadDimIsEven},
      {{"model.rope_dim", "model.family", "model.head_dim", "model.attention"}, RopeDimIsInTheHead},
      {{"model.attention", "model.family", "model.kv_rank", "model.kv_heads", "model.heads", "model.qk_norm",
        "model.qkv_bias"},
       MlaIsWhole},
      {{"model.family", "model.head_dim", "model.norm_placement", "model.qk_norm", "model.sinks", "model.attention",
        "model.v_dim"},
       Gpt2HasFixedForm},
      {{"dropout.embedding", "model.family"}, EmbeddingDropoutIsOfGpt2},
      {{"dropout.residual", "model.family"}, ResidualDropoutIsOfGpt2},
      {{"experts.count", "model.family", "model.mlp_bias"}, ExpertsAreOfLlama},
      {{"experts.ffn_dim", "experts.count"}, ExpertsHaveAWidth},
      {{"experts.per_token", "experts.count"}, TokensHaveEnoughExperts},
      {{"experts.groups", "experts.count"}, GroupsDivideExperts},
      {{"experts.top_groups", "experts.groups", "experts.count", "experts.per_token"}, TopGroupsHaveEnoughExperts},
      {{"experts.first_layer", "experts.count", "model.layers"}, ExpertsStartInTheModel},
      {{"model.mtp_layers", "model.family", "model.seq_len"}, FurtherTokensAreOfLlama},
      {{"model.rope_factor", "model.rope_scaling"}, RopeFactorStretches},
      {{"model.rope_original_seq_len", "model.rope_scaling"}, ScalingKnowsTheOldLength},
      {{"model.rope_high_freq_factor", "model.rope_low_freq_factor", "model.rope_scaling"}, Llama3FactorsAscend},
      {{"model.rope_beta_fast", "model.rope_beta_slow", "model.rope_scaling"}, YarnBetasAscend},
      {{"model.rope_theta", "model.rope_scaling"}, YarnHasABase},
      {{"model.kv_heads", "model.heads"}, KvHeadsDivideHeads},
      {{"model.family", "model.kv_heads", "model.heads"}, Gpt2HasNoGroups},
  };
  return relations;
}

}  // namespace espalier
