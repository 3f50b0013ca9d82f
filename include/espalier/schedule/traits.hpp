// The numbers of stages, chunks and microbatches that a pipeline schedule allows, by kind. A deck's choice is resolved
// here once.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

struct Schedule;

/// In the order of kScheduleNames.
enum class ScheduleKind : uint8_t {
  k1F1B,
  kGPipe,
  kInterleaved,
  kZeroBubbleH1,
  kZeroBubbleInterleaved,
  kZeroBubbleV,
  kDualPipeV,
  kFile,         ///< pipeline.file
  kForwardOnly,  ///< evaluation and sampling; no deck can choose it
};
inline constexpr std::array<std::string_view, 9> kScheduleNames = {
    "1f1b", "gpipe", "interleaved", "zb-h1", "zb-interleaved", "zbv", "dualpipev", "file", "forward-only"};
constexpr std::string_view Name(ScheduleKind kind) { return kScheduleNames[static_cast<size_t>(kind)]; }

/// How chunks are assigned to stages: round robin, or down the stages and up again (two per stage).
enum class ChunkLayout : uint8_t { kLooped, kV };

/// When a weight gradient (W) runs: in one job with its input gradient (B), or in jobs of its own, late. In the latter
/// case what lives from B to W lives long.
enum class WeightGradients : uint8_t { kWithB, kDeferred };

/// How the steady state alternates: forward and backward in jobs of their own, or in one job, whose parts a program
/// interleaves op by op (overlap.interleave). The parts of such a job do not need each other, so backward follows one
/// microbatch later.
enum class SteadyState : uint8_t { kAlternating, kJoint };

struct ScheduleTraits {
  ScheduleKind kind;
  ChunkLayout layout;
  WeightGradients weight_gradients;
  int min_chunks, max_chunks;      ///< per stage; a deck that does not say gets min_chunks
  int min_microbatches_per_stage;  ///< 0: any number of microbatches
  bool has_joint_jobs;             ///< with SteadyState::kJoint, which makes no difference to the others
  Schedule (*make)(int stages, int chunks_per_stage, int microbatches, SteadyState steady);
  const Schedule* given = nullptr;  ///< the one schedule of a file, in place of `make`; null also before it is read

  bool DefersW() const { return weight_gradients == WeightGradients::kDeferred; }
  int64_t MinMicrobatches(int64_t stages) const;
  /// Why a schedule cannot have so many chunks per stage, and which numbers are allowed; empty if it can.
  std::string ChunkCountError(int64_t chunks_per_stage) const;
  /// Stage of each chunk.
  std::vector<int> PlaceChunks(int stages, int chunks_per_stage) const;
};

/// The traits of a schedule that a deck can choose; for kFile, what holds for every file (TraitsOf(Deck::Pipeline) has
/// those of one file).
const ScheduleTraits& TraitsOf(ScheduleKind kind);

}  // namespace espalier
