// Settings without an effect in combination with the others. They are reported, since the user expects an effect.
#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/choices.hpp"
#include "espalier/deck/expert_parallel.hpp"
#include "espalier/deck/offload.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/deck/step_range.hpp"
#include "espalier/schedule/traits.hpp"

namespace espalier {
namespace {

/// Why a key has no effect, or an unexpected one, in this deck; empty if it may have an effect.
struct Effect {
  std::string_view key;
  std::string (*why)(const Deck&);
  std::string_view what = "has no effect";
};

std::string When(bool none, std::string why) { return none ? std::move(why) : ""; }

std::string NothingSharded(const Deck& d) {
  const Deck::Parallel& p = d.parallel;
  return When(p.dp_shard == 1 && p.cp == 1, "parallel.dp_shard = 1 shards nothing");
}

std::string NoShardedParameters(const Deck& d) {
  if (d.parallel.zero < 3)
    return fmt::format("with parallel.zero = {} every rank has whole parameters", d.parallel.zero);
  return NothingSharded(d);
}

std::string NothingComesAhead(const Deck& d) {
  const std::string reason = NoShardedParameters(d);
  return d.offload.parameters != 0 || reason.empty() ? "" : reason + ", and offload.parameters is 0";
}

std::string NoGroups(const Deck& d) {
  const Deck::Parallel& p = d.parallel;
  if (d.recompute.regather == Regather::kNever) return "recompute.regather = \"never\" gathers once per step";
  if (p.regather_group == p.dp_shard) return "all ranks of parallel.dp_shard are one group";
  return NoShardedParameters(d);
}

std::string ChoosesNothing(const Deck& d) {
  return When(!LeavesMemoryOpen(d),
              fmt::format("recompute.mode = \"{}\" and [offload] choose nothing", DeckName(d.recompute.mode)));
}

std::string FullAnyway(const Deck& d) {
  return When(d.recompute.mode == RecomputeMode::kFull, "recompute.mode = \"full\" computes all ops of a layer again");
}

std::string NothingReduced(const Deck& d) {
  const Deck::Parallel& p = d.parallel;
  return When(p.dp_replicate == 1 && p.dp_shard == 1 && p.cp == 1 && p.tp == 1, "no gradient is reduced over ranks");
}

std::string NothingReducedOverData(const Deck& d) {
  const Deck::Parallel& p = d.parallel;
  return When(p.dp_replicate == 1 && p.dp_shard == 1 && p.cp == 1, "no gradient is reduced over dp or cp");
}

/// Whether several ranks hold the same values of the state.
std::string NoCopies(const Deck& d) {
  const Deck::Parallel& p = d.parallel;
  if (d.run.device == RunDevice::kSleep) return "run.device = \"sleep\" computes nothing";
  return When(p.dp_replicate == 1 && p.tp == 1 && (p.zero > 0 || (p.dp_shard == 1 && p.cp == 1)),
              "no two ranks hold a copy of the same state");
}

std::string NothingComputedTwice(const Deck& d) {
  if (d.run.device == RunDevice::kSleep) return "run.device = \"sleep\" computes nothing";
  return When(!HasReplicas(d.parallel), "no two ranks compute with the same weights");
}

std::string NothingOffloaded(const Deck& d) {
  return When(AllSharesAre(d, 0, kOffloadedStates),
              "offload.optimizer, offload.parameters and offload.gradients are 0");
}
std::string NoTensorParallelism(const Deck& d) { return When(d.parallel.tp == 1, "parallel.tp is 1"); }
std::string NoContextParallelism(const Deck& d) { return When(d.parallel.cp == 1, "parallel.cp is 1"); }
std::string NoSharedExperts(const Deck& d) { return When(d.parallel.ep == 1, "parallel.ep is 1"); }
std::string NoJointJobs(const Deck& d) {
  const std::string_view schedule = Name(d.pipeline.schedule);
  return When(!TraitsOf(d.pipeline).has_joint_jobs,
              fmt::format("pipeline.schedule = \"{}\" has no jobs of a forward and a backward", schedule));
}
std::string NoScheduleFile(const Deck& d) {
  return When(d.pipeline.schedule != ScheduleKind::kFile,
              fmt::format("pipeline.schedule is \"{}\", not \"file\"", Name(d.pipeline.schedule)));
}
std::string NothingJoins(const Deck& d) {
  if (d.fusion.join_matmuls == JoinMatmuls::kNever) return "";
  if (d.model.family == Family::kGpt2) return "the weights of model.family = \"gpt2\" are stored [in, out]";
  return When(d.precision.matmul == MatmulPrecision::kFp8,
              "each weight of precision.matmul = \"fp8\" has its own scale");
}
std::string OnCpus(const Deck& d) {
  if (d.run.device == RunDevice::kSleep) return "run.device = \"sleep\" computes nothing";
  return When(d.run.device == RunDevice::kCpu, "it is for GPUs, and the run is on CPUs");
}
std::string NoDeterministicGpu(const Deck& d) {
  if (!d.run.deterministic) return "run.deterministic = false lets attention add in any order";
  return OnCpus(d);
}
std::string NoDeterministicAttention(const Deck& d) {
  if (!d.run.deterministic_attention) return "run.deterministic_attention = false stores no scores";
  return NoDeterministicGpu(d);
}
std::string NotOverNccl(const Deck& d) {
  if (d.run.transport == Transport::kMpi) return "run.transport = \"mpi\" uses no thread blocks";
  return OnCpus(d);
}
std::string Sleeps(const Deck& d) {
  return When(d.run.device == RunDevice::kSleep, "run.device = \"sleep\" computes nothing");
}
std::string SleepsOverNccl(const Deck& d) {
  return When(d.run.device == RunDevice::kSleep && d.run.transport == Transport::kNccl,
              "run.device = \"sleep\" sends over mpi");
}
std::string NeverSleeps(const Deck& d) {
  return When(d.run.device != RunDevice::kSleep, "run.device is not \"sleep\"");
}
std::string NothingFollowsTimes(const Deck& d) {
  return When(
      !FollowsTimes(d),
      "no strips of tp, messages of cp, shared experts, joint jobs or activations on the host are put in order");
}
std::string NoMuon(const Deck& d) {
  return When(d.optimizer.name != OptimizerName::kMuon, "optimizer.name is not \"muon\"");
}
std::string NoFp8(const Deck& d) {
  return When(d.precision.matmul != MatmulPrecision::kFp8, "precision.matmul is not \"fp8\"");
}
std::string ConstantRate(const Deck& d) {
  return When(d.lr.decay == Decay::kConstant, "lr.decay = \"constant\" does not decay");
}
std::string NoEndOfDecay(const Deck& d) {
  if (d.lr.decay == Decay::kInverseSqrt) return "lr.decay = \"inverse_sqrt\" has no end";
  return ConstantRate(d);
}
/// An unknown number of steps must not make a setting look ineffective.
int64_t LastStep(const Deck& d) { return d.run.steps > 0 ? d.run.steps : std::numeric_limits<int64_t>::max(); }
std::string OnlyWarmUp(const Deck& d) {
  return When(d.lr.warmup_steps >= LastStep(d),
              fmt::format("all run.steps = {} steps are warm-up, so the rate never decays", d.run.steps));
}
std::string NoStepsToDecay(const Deck& d) {
  return When(d.lr.decay != Decay::kConstant && d.lr.warmup_steps + d.lr.stable_steps >= LastStep(d),
              fmt::format("all run.steps = {} steps are warm-up or stable, so the rate never decays", d.run.steps));
}
std::string LearnsPositions(const Deck& d) {
  return When(d.model.family == Family::kGpt2, "gpt2 learns its positions");
}
std::string NotLatent(const Deck& d) {
  return When(d.model.attention != AttentionKind::kMla, "model.attention is not \"mla\"");
}
std::string HasBiases(const Deck& d) { return When(d.model.family == Family::kGpt2, "gpt2 always has biases"); }
/// For the keys of the scalings in `used`.
template <RopeScaling... used>
std::string OtherRopeScaling(const Deck& d) {
  if (d.model.family == Family::kGpt2) return LearnsPositions(d);
  return When(((d.model.rope_scaling != used) && ...),
              fmt::format("model.rope_scaling = \"{}\" does not use it", DeckName(d.model.rope_scaling)));
}
std::string StretchesNothing(const Deck& d) {
  if (d.model.family == Family::kGpt2) return LearnsPositions(d);
  const bool amplifies = d.model.rope_scaling == RopeScaling::kYarn && d.model.rope_attention_factor > 0;
  return When(d.model.rope_factor == 1 && !amplifies, "model.rope_factor = 1 stretches nothing");
}
std::string EndsBeforeTheTrace(const Deck& d) {
  const StepRange steps = ParseStepRange(d.report.trace).value_or(StepRange{});
  return When(steps.first > LastStep(d), fmt::format("the run ends with step {}", d.run.steps));
}
std::string HidesNothing(const Deck& d) {
  const Deck::Model& m = d.model;
  if (m.sliding_window >= m.seq_len)
    return fmt::format("a query has at most model.seq_len = {} tokens to see", m.seq_len);
  if (m.full_attention_every == 1) return "model.full_attention_every = 1 lets all layers see all tokens";
  return When(m.full_attention_layers >= m.layers,
              fmt::format("all model.layers = {} see all tokens: model.full_attention_layers = {}", m.layers,
                          m.full_attention_layers));
}
std::string NoFurtherTokens(const Deck& d) { return When(d.model.mtp_layers == 0, "model.mtp_layers is 0"); }
std::string NoExperts(const Deck& d) { return When(d.model.experts.count == 0, "experts.count is 0"); }
std::string NoFurtherPasses(const Deck& d) {
  return d.model.experts.count == 0 ? NoExperts(d)
                                    : When(d.parallel.ep == 1 && d.model.experts.buffer >= 1,
                                           "with parallel.ep = 1 a rank has rows of its own tokens alone, all of which "
                                           "fit");
}
std::string NoGroupsOfExperts(const Deck& d) {
  return d.model.experts.count == 0 ? NoExperts(d) : When(d.model.experts.groups == 1, "experts.groups is 1");
}
std::string NoSharedExpert(const Deck& d) {
  return d.model.experts.count == 0 ? NoExperts(d)
                                    : When(d.model.experts.shared_ffn_dim == 0, "experts.shared_ffn_dim is 0");
}
std::string NoBias(const Deck& d) {
  return d.model.experts.count == 0 ? NoExperts(d) : When(!d.model.experts.bias, "experts.bias is false");
}
std::string NoWindow(const Deck& d) {
  if (d.model.sliding_window == 0) return "model.sliding_window is 0, so all layers see all tokens";
  return When(d.model.sliding_window >= d.model.seq_len, "model.sliding_window hides nothing");
}
std::string StartsFull(const Deck& d) {
  return When(d.batch.ramp_start == d.batch.global, "all steps have batch.global, which is the same");
}
std::string NoRamp(const Deck& d) {
  if (d.batch.ramp_start == 0) return "batch.ramp_start = 0 has no ramp";
  return When(d.batch.ramp_start == d.batch.global, "batch.ramp_start is batch.global, so the batch does not grow");
}
std::string EndsBeforeTheRamp(const Deck& d) {
  const BatchRamp ramp(d.batch);
  return When(ramp.FirstFullStep() > LastStep(d),
              fmt::format("the run ends with step {}, and batch.global = {} would begin with step {}", d.run.steps,
                          d.batch.global, ramp.FirstFullStep()));
}
std::string NoSpikes(const Deck& d) { return When(d.guard.spike_z == 0, "guard.spike_z = 0 looks for no spikes"); }
std::string WindowIsNeverFull(const Deck& d) {
  return When(
      d.guard.spike_window >= LastStep(d),
      fmt::format("guard.spike_window = {} steps are never full in run.steps = {}", d.guard.spike_window, d.run.steps));
}
std::string NoValidation(const Deck& d) {
  return When(d.data.validate_every_steps == 0, "data.validate_every_steps = 0 never validates");
}

std::string NotOf(const Deck& d, std::initializer_list<DataFormat> formats) {
  const bool used = d.data.format == DataFormat::kAuto || std::ranges::find(formats, d.data.format) != formats.end();
  return When(!used, fmt::format("data.format is \"{}\"", DeckName(d.data.format)));
}
std::string NoIndices(const Deck& d) {
  if (d.data.format == DataFormat::kText && !d.data.tokenizer.empty()) return "";
  return NotOf(d, {DataFormat::kJsonl, DataFormat::kChat});
}
std::string NoConversations(const Deck& d) {
  return When(d.data.format != DataFormat::kChat, fmt::format("data.format is \"{}\"", DeckName(d.data.format)));
}
std::string NoJsonl(const Deck& d) { return NotOf(d, {DataFormat::kJsonl}); }
std::string NoHdf5(const Deck& d) { return NotOf(d, {DataFormat::kHdf5}); }
std::string NoEndTokens(const Deck& d) {
  if (d.data.format == DataFormat::kChat) return "each conversation is a document (data.format = \"chat\")";
  return When(!d.data.isolate_documents, "data.isolate_documents = false joins documents");
}

const std::vector<Effect>& Effects() {
  static const std::vector<Effect> effects = {
      {"run.deterministic", OnCpus},
      {"run.gemm_plans", OnCpus},
      {"run.attention_backward", NoDeterministicAttention},
      {"run.deterministic_attention", NoDeterministicGpu},
      {"run.outside_bytes", OnCpus},
      {"run.threads", Sleeps},
      {"run.transport", SleepsOverNccl},
      {"report.costs", Sleeps},
      {"run.cluster", NeverSleeps},
      {"run.costs", NothingFollowsTimes},
      {"run.dilation", NeverSleeps},
      {"model.sliding_window", HidesNothing},
      {"model.full_attention_layers", NoWindow},
      {"model.full_attention_every", NoWindow},
      {"pipeline.file", NoScheduleFile},
      {"loss.mtp_weight", NoFurtherTokens},
      {"experts.per_token", NoExperts},
      {"experts.ffn_dim", NoExperts},
      {"experts.shared_ffn_dim", NoExperts},
      {"experts.shared_gate", NoSharedExpert},
      {"experts.first_layer", NoExperts},
      {"experts.every", NoExperts},
      {"experts.scores", NoExperts},
      {"experts.normalize", NoExperts},
      {"experts.scale", NoExperts},
      {"experts.groups", NoExperts},
      {"experts.top_groups", NoGroupsOfExperts},
      {"experts.group_best", NoGroupsOfExperts},
      {"experts.bias", NoExperts},
      {"experts.bias_rate", NoBias},
      {"experts.mlp_bias", NoExperts},
      {"experts.router_bias", NoExperts},
      {"experts.swiglu_limit", NoExperts},
      {"experts.balance_loss", NoExperts},
      {"experts.z_loss", NoExperts},
      {"experts.buffer", NoFurtherPasses},
      {"model.qkv_bias", HasBiases},
      {"model.o_bias", HasBiases},
      {"model.mlp_bias", HasBiases},
      {"model.q_rank", NotLatent},
      {"model.kv_rank", NotLatent},
      {"model.rope_dim", LearnsPositions},
      {"model.rope_adjacent", LearnsPositions},
      {"model.rope_theta", LearnsPositions},
      {"model.rope_scaling", StretchesNothing},
      {"model.rope_factor", OtherRopeScaling<RopeScaling::kLinear, RopeScaling::kLlama3, RopeScaling::kYarn>},
      {"model.rope_original_seq_len", OtherRopeScaling<RopeScaling::kLlama3, RopeScaling::kYarn>},
      {"model.rope_low_freq_factor", OtherRopeScaling<RopeScaling::kLlama3>},
      {"model.rope_high_freq_factor", OtherRopeScaling<RopeScaling::kLlama3>},
      {"model.rope_beta_fast", OtherRopeScaling<RopeScaling::kYarn>},
      {"model.rope_beta_slow", OtherRopeScaling<RopeScaling::kYarn>},
      {"model.rope_attention_factor", OtherRopeScaling<RopeScaling::kYarn>},
      {"model.rope_truncate", OtherRopeScaling<RopeScaling::kYarn>},
      {"parallel.zero", NothingSharded},
      {"parallel.sequence_parallel", NoTensorParallelism},
      {"parallel.loss_parallel", NoTensorParallelism},
      {"parallel.reduce_dtype", NothingReducedOverData},
      {"parallel.regather_group", NoGroups},
      {"parallel.context", NoContextParallelism},
      {"recompute.ops", FullAnyway},
      {"recompute.budget", ChoosesNothing},
      {"recompute.regather", NoShardedParameters},
      {"offload.chunk_bytes", NothingOffloaded},
      {"overlap.tensor", NoTensorParallelism},
      {"overlap.gradients", NothingReduced},
      {"overlap.tensor_strips", NoTensorParallelism},
      {"overlap.context", NoContextParallelism},
      {"overlap.experts", NoSharedExperts},
      {"overlap.interleave", NoJointJobs},
      {"overlap.prefetch", NothingComesAhead},
      {"fusion.join_matmuls", NothingJoins},
      {"overlap.tp_ctas", NotOverNccl},
      {"overlap.cp_ctas", NotOverNccl},
      {"overlap.dp_ctas", NotOverNccl},
      {"overlap.pp_ctas", NotOverNccl},
      {"report.trace", EndsBeforeTheTrace},
      {"precision.fp8_scaling", NoFp8},
      {"precision.bf16_matmuls", NoFp8},
      {"optimizer.muon_lr", NoMuon},
      {"optimizer.muon_momentum", NoMuon},
      {"optimizer.muon_nesterov", NoMuon},
      {"optimizer.muon_iterations", NoMuon},
      {"optimizer.muon_scale", NoMuon},
      {"optimizer.decay_norms",
       [](const Deck& d) { return When(d.optimizer.weight_decay == 0, "optimizer.weight_decay is 0"); }},
      {"lr.warmup_steps", OnlyWarmUp, "is long"},
      {"lr.stable_steps", ConstantRate},
      {"lr.stable_steps", NoStepsToDecay, "is long"},
      {"lr.decay_steps", NoEndOfDecay},
      {"lr.min_ratio", ConstantRate},
      {"data.text_field", NoJsonl},
      {"data.hdf5_dataset", NoHdf5},
      {"data.index_dir", NoIndices},
      {"data.end_token", NoEndTokens},
      {"data.chat_template", NoConversations},
      {"data.train_on", NoConversations},
      {"data.validation", NoValidation},
      {"data.validation_weights", NoValidation},
      {"data.validate_sequences", NoValidation},
      {"checkpoint.fallback",
       [](const Deck& d) { return When(d.checkpoint.restart == Restart::kNever, "checkpoint.restart = \"never\""); }},
      {"checkpoint.memory_steps", Sleeps},
      {"checkpoint.memory_dir",
       [](const Deck& d) { return When(d.checkpoint.memory_steps == 0, "checkpoint.memory_steps is 0"); }},
      {"guard.hash_steps", NoCopies},
      {"guard.recompute_steps", NothingComputedTwice},
      {"guard.max_skips",
       [](const Deck& d) {
         const bool spikes = d.guard.spike_z > 0;
         return When(d.guard.on_nonfinite != OnNonfinite::kSkip && !(spikes && d.guard.on_spike == OnSpike::kSkip),
                     spikes ? "neither guard.on_nonfinite nor guard.on_spike is \"skip\""
                            : "guard.on_nonfinite is not \"skip\"");
       }},
      {"guard.max_rollbacks",
       [](const Deck& d) {
         const bool spikes = d.guard.spike_z > 0 && d.guard.on_spike == OnSpike::kRollback;
         return When(d.guard.on_nonfinite != OnNonfinite::kRollback && !spikes &&
                         d.guard.on_corruption != OnCorruption::kRollback,
                     "neither guard.on_nonfinite nor guard.on_spike nor guard.on_corruption is \"rollback\"");
       }},
      {"batch.ramp_start", StartsFull},
      {"batch.ramp_start", EndsBeforeTheRamp, "grows slowly"},
      {"batch.ramp_step", NoRamp},
      {"batch.ramp_steps", NoRamp},
      {"guard.on_spike", NoSpikes},
      {"guard.spike_window", NoSpikes},
      {"guard.spike_z", WindowIsNeverFull},
  };
  return effects;
}

bool IsDefault(const Deck& deck, const DeckKey& key) {
  const DeckValue value = Get(deck, key);
  if (const auto* fallback = std::get_if<DeckValue>(&key.fallback)) return value == *fallback;
  const auto* derived = std::get_if<Derived>(&key.fallback);
  return derived != nullptr && value == derived->compute(deck);
}

/// The command line ends the run early, so the warm-up from the deck may be longer than the run.
bool IsTrial(const LoadedDeck& loaded) {
  const std::string& steps = loaded.origins.find("run.steps")->second;
  return steps == "command line" && loaded.origins.find("lr.warmup_steps")->second != steps;
}

}  // namespace

bool LeavesOffloadOpen(const Deck& deck) { return AnyShareIs(deck, kAutoShare); }

bool LeavesMemoryOpen(const Deck& deck) {
  return deck.recompute.mode == RecomputeMode::kAuto || LeavesOffloadOpen(deck);
}

bool FollowsTimes(const Deck& deck) {
  const Deck::Parallel& p = deck.parallel;
  const Deck::Overlap& o = deck.overlap;
  return (p.tp > 1 && o.tensor_strips != 1) || (p.cp > 1 && o.context) || (p.ep > 1 && o.experts) ||
         (o.interleave && TraitsOf(deck.pipeline).has_joint_jobs) || LeavesMemoryOpen(deck) ||
         deck.offload.activations > 0 || !deck.offload.layers.empty();
}

std::vector<std::string> SettingsWithoutEffect(const LoadedDeck& loaded) {
  std::vector<std::string> lines = loaded.repeated;
  for (const Effect& effect : Effects()) {
    const DeckKey& key = *FindDeckKey(effect.key);
    if (IsDefault(loaded.deck, key)) continue;
    if (effect.why == OnlyWarmUp && IsTrial(loaded)) continue;
    if (const std::string why = effect.why(loaded.deck); !why.empty())
      lines.push_back(fmt::format("{}: {} = {} {}: {}", loaded.origins.find(effect.key)->second, effect.key,
                                  ToToml(Get(loaded.deck, key)), effect.what, why));
  }
  return lines;
}

}  // namespace espalier
