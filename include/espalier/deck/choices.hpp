// The closed choices of a deck: one enum per key, each with the table of names that the schema, the parser, the
// effective deck and messages share. (pipeline.schedule has its own: espalier/schedule/traits.hpp.)
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "espalier/schedule/traits.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

enum class RunDevice : uint8_t { kAuto, kCpu, kCuda, kSleep };
enum class Transport : uint8_t { kAuto, kMpi, kNccl };
/// kAuto is no way: a start replaces it by the fastest one.
enum class AttentionBackward : uint8_t { kParts, kLargeParts, kTwoStreams, kOrdered, kOwn, kAuto };
enum class Family : uint8_t { kLlama, kGpt2 };
enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };
enum class AttentionKind : uint8_t { kHeads, kMla };
enum class QkNorm : uint8_t { kNone, kHead, kFull };
enum class RouterScores : uint8_t { kSoftmax, kSigmoid };
enum class ExpertRouting : uint8_t { kLearned, kBalanced };
enum class NormPlacement : uint8_t { kPre, kPost };
enum class ReduceFrequency : uint8_t { kAuto, kStep, kMicrobatch };
enum class ContextMode : uint8_t { kRing, kAllGather, kAllToAll };
/// Precision to which matmuls round their operands: precision.compute, or fp8.
enum class MatmulPrecision : uint8_t { kCompute, kFp8 };
/// The extent of one fp8 scale: an operand of a matmul on a rank, a row of it, or 32 elements of a row (MXFP8).
enum class Fp8Scaling : uint8_t { kTensor, kRow, kMx };
enum class RecomputeMode : uint8_t { kNone, kAttention, kSelective, kFull, kAuto };
/// Ops of a layer that backward can compute again (src/passes/recompute_ops.cpp).
enum class RecomputeOp : uint8_t { kNorm, kQkv, kCoreAttention, kMlp, kActivation, kRouter, kRows, kExperts };
enum class Regather : uint8_t { kAuto, kAlways, kNever };
enum class JoinMatmuls : uint8_t { kNever, kHeads, kAlways };
enum class OptimizerName : uint8_t { kAdamw, kMuon };
enum class MuonScale : uint8_t { kMatchAdamw, kSpectral };
enum class Decay : uint8_t { kCosine, kLinear, kConstant, kInverseSqrt, kOneMinusSqrt };
enum class DataFormat : uint8_t {
  kText,
  kTokens,
  kJsonl,
  kChat,
  kMegatron,
  kLlmc,
  kLlmq,
  kHdf5,
  kFlat16,
  kFlat32,
  kAuto
};
/// Whether files of a format are text, which needs a tokenizer.
constexpr bool IsText(DataFormat format) {
  return format == DataFormat::kText || format == DataFormat::kJsonl || format == DataFormat::kChat;
}
/// Which tokens of a conversation are targets.
enum class TrainOn : uint8_t { kAssistant, kAll };
enum class Restart : uint8_t { kAuto, kNever, kRequired };
enum class OnNonfinite : uint8_t { kStop, kSkip, kRollback };
enum class OnCorruption : uint8_t { kStop, kRollback };
enum class OnSpike : uint8_t { kWarn, kSkip, kRollback, kStop };

/// A value of a choice, and its name in decks.
template <typename T>
struct Choice {
  T value;
  std::string_view name;
};

/// The values that a key of type T may have, in the order in which help lists them.
template <typename T>
inline constexpr std::array<Choice<T>, 0> kChoices{};
template <>
inline constexpr auto kChoices<RunDevice> = std::to_array<Choice<RunDevice>>(
    {{RunDevice::kAuto, "auto"}, {RunDevice::kCpu, "cpu"}, {RunDevice::kCuda, "cuda"}, {RunDevice::kSleep, "sleep"}});
template <>
inline constexpr auto kChoices<Transport> = std::to_array<Choice<Transport>>({{Transport::kAuto, "auto"},
                                                                              {Transport::kMpi, "mpi"},
                                                                              {Transport::kNccl, "nccl"}});
template <>
inline constexpr auto kChoices<AttentionBackward> =
    std::to_array<Choice<AttentionBackward>>({{AttentionBackward::kParts, "parts"},
                                              {AttentionBackward::kLargeParts, "large_parts"},
                                              {AttentionBackward::kTwoStreams, "two_streams"},
                                              {AttentionBackward::kOrdered, "ordered"},
                                              {AttentionBackward::kOwn, "own"},
                                              {AttentionBackward::kAuto, "auto"}});
template <>
inline constexpr auto kChoices<Family> = std::to_array<Choice<Family>>({{Family::kLlama, "llama"},
                                                                        {Family::kGpt2, "gpt2"}});
template <>
inline constexpr auto kChoices<RopeScaling> = std::to_array<Choice<RopeScaling>>({{RopeScaling::kNone, "none"},
                                                                                  {RopeScaling::kLinear, "linear"},
                                                                                  {RopeScaling::kLlama3, "llama3"},
                                                                                  {RopeScaling::kYarn, "yarn"}});
template <>
inline constexpr auto kChoices<AttentionKind> = std::to_array<Choice<AttentionKind>>({{AttentionKind::kHeads, "heads"},
                                                                                      {AttentionKind::kMla, "mla"}});
template <>
inline constexpr auto kChoices<QkNorm> =
    std::to_array<Choice<QkNorm>>({{QkNorm::kNone, "none"}, {QkNorm::kHead, "head"}, {QkNorm::kFull, "full"}});
template <>
inline constexpr auto kChoices<RouterScores> =
    std::to_array<Choice<RouterScores>>({{RouterScores::kSoftmax, "softmax"}, {RouterScores::kSigmoid, "sigmoid"}});
template <>
inline constexpr auto kChoices<ExpertRouting> = std::to_array<Choice<ExpertRouting>>(
    {{ExpertRouting::kLearned, "learned"}, {ExpertRouting::kBalanced, "balanced"}});
template <>
inline constexpr auto kChoices<NormPlacement> = std::to_array<Choice<NormPlacement>>({{NormPlacement::kPre, "pre"},
                                                                                      {NormPlacement::kPost, "post"}});
template <>
inline constexpr auto kChoices<ReduceFrequency> = std::to_array<Choice<ReduceFrequency>>(
    {{ReduceFrequency::kAuto, "auto"}, {ReduceFrequency::kStep, "step"}, {ReduceFrequency::kMicrobatch, "microbatch"}});
template <>
inline constexpr auto kChoices<ContextMode> = std::to_array<Choice<ContextMode>>(
    {{ContextMode::kRing, "ring"}, {ContextMode::kAllGather, "all_gather"}, {ContextMode::kAllToAll, "all_to_all"}});
/// All but the last, which no deck can choose.
template <>
inline constexpr auto kChoices<ScheduleKind> = [] {
  std::array<Choice<ScheduleKind>, kScheduleNames.size() - 1> choices{};
  for (size_t i = 0; i < choices.size(); ++i) choices[i] = {static_cast<ScheduleKind>(i), kScheduleNames[i]};
  return choices;
}();
template <>
inline constexpr auto kChoices<MatmulPrecision> =
    std::to_array<Choice<MatmulPrecision>>({{MatmulPrecision::kCompute, "compute"}, {MatmulPrecision::kFp8, "fp8"}});
template <>
inline constexpr auto kChoices<Fp8Scaling> = std::to_array<Choice<Fp8Scaling>>({{Fp8Scaling::kTensor, "tensor"},
                                                                                {Fp8Scaling::kRow, "row"},
                                                                                {Fp8Scaling::kMx, "mx"}});
/// precision.compute, precision.moments, parallel.reduce_dtype.
template <>
inline constexpr auto kChoices<Dtype> = std::to_array<Choice<Dtype>>({{Dtype::kBf16, "bf16"}, {Dtype::kF32, "fp32"}});
template <>
inline constexpr auto kChoices<RecomputeMode> =
    std::to_array<Choice<RecomputeMode>>({{RecomputeMode::kNone, "none"},
                                          {RecomputeMode::kAttention, "attention"},
                                          {RecomputeMode::kSelective, "selective"},
                                          {RecomputeMode::kFull, "full"},
                                          {RecomputeMode::kAuto, "auto"}});
template <>
inline constexpr auto kChoices<RecomputeOp> =
    std::to_array<Choice<RecomputeOp>>({{RecomputeOp::kNorm, "norm"},
                                        {RecomputeOp::kQkv, "qkv"},
                                        {RecomputeOp::kCoreAttention, "core_attention"},
                                        {RecomputeOp::kMlp, "mlp"},
                                        {RecomputeOp::kActivation, "activation"},
                                        {RecomputeOp::kRouter, "router"},
                                        {RecomputeOp::kRows, "rows"},
                                        {RecomputeOp::kExperts, "experts"}});
template <>
inline constexpr auto kChoices<Regather> = std::to_array<Choice<Regather>>({{Regather::kAuto, "auto"},
                                                                            {Regather::kAlways, "always"},
                                                                            {Regather::kNever, "never"}});
template <>
inline constexpr auto kChoices<JoinMatmuls> = std::to_array<Choice<JoinMatmuls>>({{JoinMatmuls::kNever, "never"},
                                                                                  {JoinMatmuls::kHeads, "qkv"},
                                                                                  {JoinMatmuls::kAlways, "always"}});
template <>
inline constexpr auto kChoices<OptimizerName> = std::to_array<Choice<OptimizerName>>({{OptimizerName::kAdamw, "adamw"},
                                                                                      {OptimizerName::kMuon, "muon"}});
template <>
inline constexpr auto kChoices<MuonScale> = std::to_array<Choice<MuonScale>>({{MuonScale::kMatchAdamw, "match_adamw"},
                                                                              {MuonScale::kSpectral, "spectral"}});
template <>
inline constexpr auto kChoices<Decay> = std::to_array<Choice<Decay>>({{Decay::kCosine, "cosine"},
                                                                      {Decay::kLinear, "linear"},
                                                                      {Decay::kConstant, "constant"},
                                                                      {Decay::kInverseSqrt, "inverse_sqrt"},
                                                                      {Decay::kOneMinusSqrt, "one_minus_sqrt"}});
template <>
inline constexpr auto kChoices<DataFormat> = std::to_array<Choice<DataFormat>>({{DataFormat::kText, "text"},
                                                                                {DataFormat::kJsonl, "jsonl"},
                                                                                {DataFormat::kChat, "chat"},
                                                                                {DataFormat::kTokens, "tokens"},
                                                                                {DataFormat::kMegatron, "megatron"},
                                                                                {DataFormat::kLlmc, "llmc"},
                                                                                {DataFormat::kLlmq, "llmq"},
                                                                                {DataFormat::kHdf5, "hdf5"},
                                                                                {DataFormat::kFlat16, "flat16"},
                                                                                {DataFormat::kFlat32, "flat32"},
                                                                                {DataFormat::kAuto, "auto"}});
template <>
inline constexpr auto kChoices<TrainOn> = std::to_array<Choice<TrainOn>>({{TrainOn::kAssistant, "assistant"},
                                                                          {TrainOn::kAll, "all"}});
template <>
inline constexpr auto kChoices<Restart> = std::to_array<Choice<Restart>>({{Restart::kAuto, "auto"},
                                                                          {Restart::kNever, "never"},
                                                                          {Restart::kRequired, "required"}});
template <>
inline constexpr auto kChoices<OnNonfinite> = std::to_array<Choice<OnNonfinite>>(
    {{OnNonfinite::kStop, "stop"}, {OnNonfinite::kSkip, "skip"}, {OnNonfinite::kRollback, "rollback"}});
template <>
inline constexpr auto kChoices<OnCorruption> =
    std::to_array<Choice<OnCorruption>>({{OnCorruption::kRollback, "rollback"}, {OnCorruption::kStop, "stop"}});
template <>
inline constexpr auto kChoices<OnSpike> = std::to_array<Choice<OnSpike>>(
    {{OnSpike::kWarn, "warn"}, {OnSpike::kSkip, "skip"}, {OnSpike::kRollback, "rollback"}, {OnSpike::kStop, "stop"}});

/// The name of a choice in decks; "" for a value that no deck can have.
template <typename T>
constexpr std::string_view DeckName(T value) {
  for (const Choice<T>& choice : kChoices<T>)
    if (choice.value == value) return choice.name;
  return "";
}

/// The attribute `backward` of attention that may add in any order, in place of the name of an AttentionBackward.
inline constexpr std::string_view kUnorderedBackward = "unordered";

/// The choice with this name, if there is one.
template <typename T>
constexpr std::optional<T> ParseChoice(std::string_view name) {
  for (const Choice<T>& choice : kChoices<T>)
    if (choice.name == name) return choice.value;
  return std::nullopt;
}

template <typename T>
std::vector<std::string_view> ChoiceNames() {
  std::vector<std::string_view> names;
  for (const Choice<T>& choice : kChoices<T>) names.push_back(choice.name);
  return names;
}

}  // namespace espalier
