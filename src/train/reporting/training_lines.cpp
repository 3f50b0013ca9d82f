#include "train/reporting/training_lines.hpp"

#include <fmt/core.h>

#include "espalier/model/flops.hpp"
#include "espalier/model/groups_of_parameters.hpp"
#include "espalier/passes/fp8.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/report/text.hpp"

namespace espalier {
namespace {

std::string ModelText(const Run& run) {
  const Deck::Model& m = run.deck().model;
  const std::string kv = m.kv_heads == m.heads ? "" : fmt::format(" ({} kv)", m.kv_heads);
  const std::string further = m.mtp_layers == 0 ? "" : fmt::format(" and {} for further tokens", m.mtp_layers);
  return fmt::format("{}, {} parameters: {}{} of {}, {} heads{}, feed-forward {}, vocabulary {}", DeckName(m.family),
                     ExactCount(run.programs.compilation().parameter_count), Counted(m.layers, "layer"), further, m.dim,
                     m.heads, kv, m.ffn_dim, m.vocab);
}

std::string PrecisionText(const Deck& deck) {
  const std::string matmuls = deck.precision.matmul == MatmulPrecision::kFp8
                                  ? fmt::format(", fp8 matmuls (scales by {})", DeckName(deck.precision.fp8_scaling))
                                  : "";
  return fmt::format("{} compute{}, {} moments; weights and gradient sums fp32", DeckName(deck.precision.compute),
                     matmuls, DeckName(deck.precision.moments));
}

std::string RateText(const Deck& deck) {
  const Deck::Lr& lr = deck.lr;
  std::string text;
  if (lr.warmup_steps > 0) text += fmt::format(", {} of warmup", Counted(lr.warmup_steps, "step"));
  if (lr.stable_steps > 0) text += fmt::format(", {} stable", lr.stable_steps);
  if (lr.decay == Decay::kConstant) return text + ", then constant";
  if (lr.decay == Decay::kInverseSqrt)
    return text + fmt::format(", {} to {:g} of it", DeckName(lr.decay), lr.min_ratio);
  return text + fmt::format(", {} over {} to {:g} of it", DeckName(lr.decay), lr.decay_steps, lr.min_ratio);
}

std::string OptimizerText(const Deck& deck) {
  const Deck::Optimizer& o = deck.optimizer;
  const std::string muon = o.name == OptimizerName::kMuon ? fmt::format(", muon_lr {:g}", o.muon_lr) : "";
  const std::string clip = o.clip_norm > 0 ? fmt::format("; norm clipped to {:g}", o.clip_norm) : "; no clipping";
  return fmt::format("{}, lr {:g}{}{}{}, weight decay {:g}", DeckName(o.name), o.lr, muon, RateText(deck), clip,
                     o.weight_decay);
}

/// The origin of the number of steps, if it is not the deck itself.
std::string EpochsText(const Run& run) {
  const std::string& origin = run.start.loaded.origins.at("run.steps");
  return origin.starts_with("from ") ? fmt::format(" ({})", origin) : "";
}

/// Sequences and tokens of a step; for a ramp, how it grows, and the size of the first step of this start.
std::string StepsText(const Run& run, int64_t step) {
  const Deck& deck = run.deck();
  if (step >= deck.run.steps) return fmt::format("none left of {}", deck.run.steps);
  const BatchRamp& ramp = run.programs.ramp();
  const std::string size = ramp.Grows() ? "" : fmt::format(", {} tokens", TokensPerStep(deck));
  const std::string now =
      ramp.Grows() && step > 0 ? fmt::format("; step {} has {}", step + 1, ramp.SequencesOf(step + 1)) : "";
  return fmt::format("{} to {}{}; sequences of {} tokens: {}{}{}", step + 1, deck.run.steps, EpochsText(run),
                     deck.model.seq_len, Describe(ramp), size, now);
}

}  // namespace

BlockLines TrainingLines(const Run& run, int64_t step) {
  const Deck& deck = run.deck();
  BlockLines lines = {{"model", ModelText(run)}, {"precision", PrecisionText(deck)}};
  if (deck.precision.matmul == MatmulPrecision::kFp8)
    lines.push_back({"fp8", Describe(CountFp8Matmuls(*run.programs.compilation().graph), deck.precision.fp8_scaling)});
  if (!run.device.Computes()) return lines.push_back({"steps", StepsText(run, step)}), lines;
  lines.push_back({"optimizer", OptimizerText(deck)});
  for (const std::string& text : DescribeGroups(deck)) lines.push_back({"groups", text});
  lines.push_back({"steps", StepsText(run, step)});
  const ModelFlops flops = FlopsPerToken(deck);
  lines.push_back(
      {"flops",
       fmt::format("{} per token, causal; {} with full attention", HumanFlops(flops.causal), HumanFlops(flops.full)),
       Worth::kRoutine});
  return lines;
}

}  // namespace espalier
