// Which attention calls cuDNN takes, and the memory that it may use. Pure: the memory plan and the kernels agree on it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/device_memory/attention_blocks.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// Maximum bytes of the scores of one part, unless one head of keys needs more.
inline constexpr int64_t kScoreBytes = int64_t{256} << 20, kLargeScoreBytes = int64_t{1} << 30;

enum class AttentionDirection : uint8_t { kForward, kBackward };

/// How cuDNN computes backward. Deterministic, it stores the scores of a call in bf16, so a call has only part of the
/// sequences and heads; or, from 9.25 on, it adds up dq in a fixed order and stores none. Otherwise it adds up dq in
/// any order and stores none. Or our own kernels compute it, deterministic and without workspace.
struct BackwardMethod {
  int64_t score_bytes = kScoreBytes;  ///< maximum of one part; 0: no scores are stored
  int64_t streams = 1;                ///< parts computed at the same time, each in its own share of the workspace
  bool deterministic = true;
  bool own = false;  ///< not by cuDNN
};

/// By its name, which the attribute `backward` of ops has: a value of run.attention_backward, or `unordered` without
/// run.deterministic or run.deterministic_attention.
BackwardMethod BackwardMethodOf(std::string_view name);

/// An attention call as a list of blocks, one cuDNN call each; no blocks if documents hide keys, of which cuDNN has no
/// mask that a captured step could replay for others.
struct AttentionInBlocks {
  AttentionShape whole;
  std::vector<AttentionBlock> blocks;
  Dtype inputs, results;
  BackwardMethod backward = {};
  bool dropout = false;  ///< of probabilities

  /// For one block, whose rows are counted from its first.
  AttentionShape ShapeOf(const AttentionBlock& block) const;
  /// True if there is only one block and cuDNN writes the final results. Otherwise the results of each block are
  /// partial, rounded to bf16, and are merged in fp32, in the order of blocks.
  bool IsOneCall() const;
};

/// Why cuDNN does not compute the call on a GPU of compute capability `major`.x; empty if 9.19 has a kernel and none of
/// our own is asked for: bf16, heads
/// of a multiple of 8 features up to 256, scores in blocks, no dropout. Backward takes more than 128 features on 9.x
/// only, but keys of 192 with values of 128 on 10.x too, and more than one token. A call without any element is
/// refused, too. The test `cudnn_plans` compares with the library.
std::string WhyNotFused(const AttentionInBlocks& call, AttentionDirection direction, int major);

/// True if cuDNN has a kernel. The plan uses the default, which takes all that others take.
bool FusedAttentionTakes(const AttentionInBlocks& call, AttentionDirection direction, int major = 9);

/// The work of one call of cuDNN's backward: `batch` sequences and `kv_heads` heads of keys, with the heads of
/// queries that see them. Both are divisors; with more than one sequence a call has all heads.
struct AttentionPart {
  int64_t batch, kv_heads;

  int64_t Size() const { return batch * kv_heads; }
};
AttentionPart PartOfBackward(const AttentionShape& extents, const BackwardMethod& method);

/// Number of such parts in a call.
int64_t PartsIn(const AttentionShape& extents, AttentionPart part);

/// `bytes` of workspace divided among `streams`: the aligned bytes that each has.
int64_t ShareOfStream(int64_t bytes, int64_t streams);

/// `first`, then ever smaller parts: fewer sequences, then fewer heads of keys.
std::vector<AttentionPart> PartsFrom(const AttentionShape& extents, AttentionPart first);

/// Bytes that attention, one part of its backward, and all of its backward may use on any GPU: what cuDNN 9.19 wants
/// there, and 1 MiB. If it wants more, it computes smaller parts, or leaves the call to our own kernels; the start says
/// so.
int64_t FusedAttentionBytes(const AttentionShape& extents);
int64_t BackwardPartBytes(const AttentionShape& extents, AttentionPart part, const BackwardMethod& method);
int64_t FusedAttentionGradBytes(const AttentionShape& extents, const BackwardMethod& method);

/// The buffers in the workspace of a call: bytes of each, aligned to kScratchAlignment; all 0 if it is one cuDNN call.
inline constexpr int64_t kScratchAlignment = 256;
struct ForwardScratch {
  int64_t o, lse;  ///< of one block
  int64_t sums;    ///< o in fp32, unless the result is fp32

  int64_t Bytes() const { return o + lse + sums; }
};
struct BackwardScratch {
  int64_t dq, dk, dv, lse;  ///< of one block
  int64_t dq_sums, dk_sums, dv_sums;

  int64_t Bytes() const { return dq + dk + dv + lse + dq_sums + dk_sums + dv_sums; }
};
ForwardScratch ForwardScratchOf(const AttentionInBlocks& call);
BackwardScratch BackwardScratchOf(const AttentionInBlocks& call);

/// Workspace of a call: its buffers, then the bytes that cuDNN may use for the largest block.
int64_t AttentionBytes(const AttentionInBlocks& call);
int64_t AttentionGradBytes(const AttentionInBlocks& call);

}  // namespace espalier
