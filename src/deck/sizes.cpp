// Limits on the size of a deck, checked before anything is computed from it. Every count of elements, bytes, ops,
// instructions and ranks that the program computes later is at most one of these bounds, so no int64 overflows and
// every compilation ends. The checks use doubles, which do not wrap. The limits are far above real use; doc/deck.md
// states them.
#include <fmt/core.h>

#include <algorithm>

#include "relations.hpp"
#include "text.hpp"

namespace espalier {
namespace {

struct Factor {
  std::string_view key;
  int64_t value;
};

/// "(lower model.dim = 4096, ...)": the factors that are worth lowering, largest first.
std::string Lower(std::vector<Factor> factors) {
  std::erase_if(factors, [](const Factor& f) { return f.value <= 1; });
  std::ranges::stable_sort(factors, std::greater(), &Factor::value);
  std::string text;
  for (const Factor& f : factors) text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", f.key, f.value);
  return fmt::format("(lower {})", text);
}

/// Microbatches of `sequences` sequences; 1 while dp_shard is open, since the number is unknown then.
double MicrobatchesOf(const Deck& deck, double sequences) {
  const Deck::Parallel& p = deck.parallel;
  if (p.dp_shard < 1) return 1;
  return std::max(1.0, sequences / (double(deck.batch.micro) * p.dp_replicate * p.dp_shard));
}
/// Microbatches per step.
double Microbatches(const Deck& deck) { return MicrobatchesOf(deck, double(deck.batch.global)); }

/// model.head_dim if dim does not determine it, otherwise 1.
int64_t OwnHeadDim(const Deck::Model& m) { return m.heads * m.head_dim == m.dim ? 1 : m.head_dim; }

/// Features of all heads, of keys or of values, and of the latents.
double HeadsWidth(const Deck::Model& m) {
  const double latents = m.attention == AttentionKind::kMla ? double(m.q_rank) + double(m.kv_rank) : 0;
  return double(m.heads) * double(std::max(m.head_dim, m.v_dim)) + latents;
}

/// The inner width of a layer: dense, shared, and of `experts` experts (all of them, or as many as serve a token).
double FeedForwardWidth(const Deck::Model& m, int64_t experts) {
  return double(m.ffn_dim) + double(m.experts.shared_ffn_dim) +
         (m.experts.count > 0 ? double(experts) * double(m.experts.ffn_dim) : 0);
}

std::string_view NameOfAllLayers(const Deck::Model& m) {
  return m.mtp_layers == 0 ? "model.layers" : "(model.layers + model.mtp_layers)";
}

/// At least the number of parameters.
double Parameters(const Deck::Model& m) {
  const double dim = double(m.dim);
  const double heads = HeadsWidth(m), latents = heads * (double(m.q_rank) + double(m.kv_rank));
  const double width = FeedForwardWidth(m, m.experts.count), router = double(m.experts.count);
  return double(m.AllLayers()) * (dim * (4 * heads + 3 * width + router + 16) + 2 * latents + 8 * heads + 2 * width) +
         double(m.mtp_layers) * 2 * dim * dim + dim * (2 * double(m.vocab) + double(m.seq_len) + 4);
}

/// Every parameter with its gradient, moments and copies, and its transfers in a step.
double ParameterBytes(const Deck& deck) { return Parameters(deck.model) * (64 + 16 * Microbatches(deck)); }

/// Activations of all microbatches and layers, their gradients, and one head's scores.
double ActivationBytes(const Deck& deck) {
  const Deck::Model& m = deck.model;
  const double tokens = std::max(double(deck.batch.global), double(deck.batch.micro)) * double(m.seq_len);
  const double width = std::max(double(m.dim), HeadsWidth(m));
  const auto& e = m.experts;
  const double rows = e.count > 0 ? double(e.per_token) * double(m.dim) + double(e.count) : 0;  // of experts, router
  const double layer = 32 * width + 8 * (FeedForwardWidth(m, e.per_token) + rows) + 8 * double(m.heads);
  const double scores = double(m.seq_len) * double(m.seq_len) * double(m.heads);
  return 8 * (tokens * (double(m.AllLayers() + 1) * layer + 8 * (1 + double(m.mtp_layers)) * double(m.vocab)) + scores);
}

std::string ParametersFit(const Deck& deck) {
  const double bytes = ParameterBytes(deck);
  if (bytes <= kMaxStepBytes) return "";
  const Deck::Model& m = deck.model;
  return fmt::format(
      "{:.2g} parameters take up to {:.2g} bytes in a step, all ranks together; the limit is 2^58 = {:.2g} {}",
      Parameters(m), bytes, kMaxStepBytes,
      Lower({{"model.dim", m.dim},
             {"model.head_dim", OwnHeadDim(m)},
             {"model.ffn_dim", m.ffn_dim},
             {"experts.count", m.experts.count},
             {"experts.ffn_dim", m.experts.ffn_dim},
             {"model.vocab", m.vocab},
             {"model.seq_len", m.seq_len},
             {"model.layers", m.layers},
             {"batch.global", Microbatches(deck) > 1 ? deck.batch.global : 1}}));
}

std::string ActivationsFit(const Deck& deck) {
  const double bytes = ActivationBytes(deck);
  if (bytes <= kMaxStepBytes) return "";
  const Deck::Model& m = deck.model;
  return fmt::format(
      "the activations of a step take up to {:.2g} bytes, all ranks together; the limit is 2^58 = {:.2g} {}", bytes,
      kMaxStepBytes,
      Lower({{"model.seq_len", m.seq_len},
             {"batch.global", deck.batch.global},
             {"batch.micro", deck.batch.micro},
             {"model.dim", m.dim},
             {"model.head_dim", OwnHeadDim(m)},
             {"model.ffn_dim", m.ffn_dim},
             {"experts.per_token", m.experts.per_token},
             {"experts.ffn_dim", m.experts.ffn_dim},
             {"model.vocab", m.vocab},
             {"model.layers", m.layers},
             {"model.heads", m.heads}}));
}

std::string TokensAreCountable(const Deck& deck) {
  const double tokens = double(deck.run.steps) * double(deck.batch.global) * double(deck.model.seq_len);
  if (tokens <= kMaxTokens) return "";
  return fmt::format(
      "makes {:.2g} tokens in all; the limit is 2^62 = {:.2g} {}", tokens, kMaxTokens,
      Lower(
          {{"run.steps", deck.run.steps}, {"batch.global", deck.batch.global}, {"model.seq_len", deck.model.seq_len}}));
}

/// The number of instructions grows with the microbatches times layers; in a ring each hop counts as another layer.
std::string ProgramsAreShort(const Deck& deck) {
  const Deck::Parallel& p = deck.parallel;
  const int64_t hops = p.context == ContextMode::kRing ? p.cp : 1;
  const double passes = double(deck.model.AllLayers()) * Microbatches(deck) * double(hops);
  if (passes <= kMaxPasses) return "";
  return fmt::format(
      "a step takes {:.0f} microbatches through {} layers{}: {:.3g} passes, and the limit is {} (raise batch.micro or "
      "the data-parallel degrees, or lower batch.global{})",
      Microbatches(deck), deck.model.AllLayers(), hops > 1 ? fmt::format(" in {} hops", hops) : "", passes, kMaxPasses,
      hops > 1 ? ", or take another parallel.context" : "");
}

/// A run keeps the programs of all sizes.
std::string RampSizesAreFew(const Deck& deck) {
  const Deck::Batch& b = deck.batch;
  if (b.ramp_start == 0 || b.ramp_start >= b.global) return "";
  const int64_t sizes = (b.global - b.ramp_start) / b.ramp_step + 1;
  const double mean = (double(b.ramp_start) + double(b.global)) / 2;
  const double passes = double(deck.model.AllLayers()) * MicrobatchesOf(deck, mean) * double(sizes);
  if (sizes <= kMaxRampSizes && passes <= double(kMaxRampPasses)) return "";
  return fmt::format(
      "makes steps of {} sizes, each with programs of its own, which take {:.3g} microbatches through {} layers "
      "together; the limits are {} sizes and {} passes of a microbatch through a layer (raise batch.ramp_step)",
      sizes, passes / double(deck.model.AllLayers()), deck.model.AllLayers(), kMaxRampSizes, kMaxRampPasses);
}

/// Each stage searches the whole model's ops for its own.
std::string StagesAreFew(const Deck& deck) {
  const double passes = double(deck.model.AllLayers()) * double(deck.parallel.pp);
  if (passes <= kMaxPasses) return "";
  return fmt::format("parallel.pp * {} = {} * {} = {:.0f}; the limit is {}", NameOfAllLayers(deck.model),
                     deck.parallel.pp, deck.model.AllLayers(), passes, kMaxPasses);
}

/// Each layer's collectives are planned with all of their members.
std::string GroupsAreSmall(const Deck& deck) {
  const Deck::Parallel& p = deck.parallel;
  const int64_t members = Product({p.dp_replicate, std::max(1, p.dp_shard), p.cp, p.tp});
  const double pairs = double(deck.model.AllLayers()) * double(members);
  if (pairs <= kMaxPeers) return "";
  return fmt::format("{} * dp_replicate * dp_shard * cp * tp = {} * {} = {:.0f}; the limit is {} {}",
                     NameOfAllLayers(deck.model), deck.model.AllLayers(), members, pairs, kMaxPeers,
                     Lower({{"parallel.dp_replicate", p.dp_replicate},
                            {"parallel.dp_shard", p.dp_shard},
                            {"parallel.cp", p.cp},
                            {"parallel.tp", p.tp},
                            {"model.layers", deck.model.layers}}));
}

std::string RanksAreFew(const Deck& deck) {
  const Deck::Parallel& p = deck.parallel;
  const int64_t ranks = Product({p.pp, p.dp_replicate, std::max(1, p.dp_shard), p.cp, p.tp});
  if (ranks <= kMaxRanks) return "";
  return fmt::format("the degrees make {} ranks; the limit is {} {}", ranks, kMaxRanks,
                     Lower({{"parallel.pp", p.pp},
                            {"parallel.dp_replicate", p.dp_replicate},
                            {"parallel.dp_shard", p.dp_shard},
                            {"parallel.cp", p.cp},
                            {"parallel.tp", p.tp}}));
}

}  // namespace

const std::vector<Relation>& SizeRelations() {
  static const std::vector<Relation> relations = {
      {{"model.dim", "model.heads", "model.head_dim", "model.ffn_dim", "model.vocab", "model.seq_len", "model.layers",
        "model.mtp_layers", "batch.global", "batch.micro", "parallel.dp_replicate", "parallel.dp_shard",
        "experts.count", "experts.ffn_dim", "experts.shared_ffn_dim"},
       ParametersFit},
      {{"model.seq_len", "batch.global", "batch.micro", "model.dim", "model.ffn_dim", "model.vocab", "model.layers",
        "model.mtp_layers", "model.heads", "model.head_dim", "experts.count", "experts.per_token", "experts.ffn_dim",
        "experts.shared_ffn_dim"},
       ActivationsFit},
      {{"run.steps", "batch.global", "model.seq_len"}, TokensAreCountable},
      {{"batch.global", "model.layers", "model.mtp_layers", "batch.micro", "parallel.dp_replicate", "parallel.dp_shard",
        "parallel.cp", "parallel.context"},
       ProgramsAreShort},
      {{"batch.ramp_step", "batch.ramp_start", "batch.global", "model.layers", "model.mtp_layers", "batch.micro",
        "parallel.dp_replicate", "parallel.dp_shard"},
       RampSizesAreFew},
      {{"parallel.pp", "model.layers", "model.mtp_layers"}, StagesAreFew},
      {{"parallel.dp_shard", "parallel.dp_replicate", "parallel.cp", "parallel.tp", "model.layers", "model.mtp_layers"},
       GroupsAreSmall},
      {{"parallel.dp_shard", "parallel.pp", "parallel.dp_replicate", "parallel.cp", "parallel.tp"}, RanksAreFew},
  };
  return relations;
}

}  // namespace espalier
