// The costs of each part of a model on a rank, in memory and in time. For each kind of layer the compiler makes the
// program of a model of two such layers with the same local shapes, and the profile is read off that program. The
// second layer is measured: its neighbours are a layer and the head, so fused additions are as in the middle of a
// model.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "espalier/costs/costs.hpp"
#include "espalier/model/layer_kinds.hpp"
#include "espalier/program/half_compilation.hpp"
#include "tune/layout.hpp"
#include "tune/parts.hpp"

namespace espalier {

/// The ranks that share out the state of a parameter: every `dp_stride`-th of dp_shard, since the ranks between have
/// other experts, and those of cp and tp if they do not differ in the parameter.
struct OwnersOfState {
  int dp_stride = 1;
  bool cp = true, tp = false;
  auto operator<=>(const OwnersOfState&) const = default;
};

/// A parameter on a rank with coordinate 0, before the optimizer state is shared out.
struct ParameterShape {
  Shape local = {};                       ///< its shape
  bool in_backward = true;                ///< backward of the same part reads the weight; that of an embedding does not
  std::vector<int64_t> state_bytes = {};  ///< of an element of the master and of each of the optimizer's states
  OwnersOfState owners = {};
  int64_t Elements() const { return Volume(local); }
  /// Ranks among which its state is shared out.
  int64_t Shards(const Layout& l) const {
    return l.dp_shard / owners.dp_stride * (owners.cp ? l.cp : 1) * (owners.tp ? l.tp : 1);
  }
  /// Elements of the largest of these shards (nested, see ShardOf).
  int64_t Shard(const Layout& l) const {
    return ShardOver(l.dp_shard / owners.dp_stride, (owners.cp ? l.cp : 1) * (owners.tp ? l.tp : 1));
  }
  int64_t ShardOver(int64_t dp_shard, int64_t others) const;
};

/// Bytes of one part on the rank with coordinate 0. Activations are those of a microbatch of one sequence: others have
/// a multiple.
struct PartMemory {
  std::vector<ParameterShape> parameters;
  std::vector<int64_t> gradients;  ///< bytes of each whole fp32 accumulator
  int64_t inputs = 0;              ///< token ids or targets
  int64_t kept = 0;                ///< made by F for B or W
  int64_t kept_for_w = 0;          ///< made by F or B for W: what lives while W is put off
  /// The most that lives at once in backward, above what had been kept for this part.
  int64_t extra = 0;
  bool done_in_forward = false;  ///< of the head: both gradients of its matmul are made in forward (loss.chunks)
};

/// The time of one pass of a microbatch through a part in forward, backward, or W alone.
struct PartTime {
  double us = 0;           ///< kernels and exposed communication
  double joint_us = 0;     ///< of `us`: what a joint job saves, whose other microbatch hides the communication
  double measured_us = 0;  ///< of `us`: measured costs
};

struct LayerProfile {
  explicit LayerProfile(size_t parts)
      : memory(parts),
        forward(parts),
        backward(parts),
        w_us(parts),
        work(parts),
        forward_work(parts),
        kernel_work(parts),
        instructions(parts) {}

  ByPart<PartMemory> memory;
  ByPart<PartTime> forward, backward;  ///< backward includes W
  ByPart<double> w_us;                 ///< of W's kernels
  ByPart<double> work;                 ///< time of a microbatch's ops, forward and backward (TimesOf)
  ByPart<double> forward_work;         ///< of that, forward
  ByPart<double> kernel_work;          ///< the same without messages
  int64_t prepared = 0;                ///< step values that all parts share (rope table)
  int64_t stream_bytes = 0;            ///< a microbatch's residual stream: the message between stages
  double stream_add_us = 0;            ///< of the sum that a stage sends, which inside a stage the next norm makes
  int element_bytes = 2;               ///< of a compute weight
  int gradient_bytes = 4;              ///< of an element of a gradient that is sent
  int regather_group = 0;              ///< of the deck
  bool defers_w = false;               ///< the schedule runs W in jobs of its own
  bool keeps_gradients = true;         ///< on the device
  bool copies_weights = true;          ///< compute weights are not the masters themselves
  ByPart<int64_t> instructions;        ///< per microbatch, forward and backward
  double step_us_per_element = 0;      ///< kernels of P, S and U, by elements of the optimizer state
};

/// Simulated layouts of 8B, 70B and GPT-3 6.7B hide 90 to 97 % of the communication in joint jobs.
inline constexpr double kExposedInJointJobs = 0.1;

/// Ranks from which a layer's parameters are gathered: those of a regather group, or all that share out the states.
int GatherRanks(const LayerProfile& profile, const Layout& layout);

/// Profiles of kinds of layers that have no experts: layouts that differ in ep share them. Thread-safe.
class SharedProfiles {
 public:
  /// The kind, the layout's tp, cp, context, micro, recompute and deferred W, and whether there are times.
  using Key = std::tuple<size_t, int, int, ContextMode, int64_t, RecomputeMode, bool, bool>;
  /// The profile that one call of `make` has made.
  const LayerProfile& Of(const Key& key, const std::function<LayerProfile()>& make);

 private:
  struct Entry {
    std::once_flag once;
    std::optional<LayerProfile> profile;
  };
  std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

/// Profiles a deck with the layout's tp, cp, ep, context and micro, and with W deferred if the schedule defers it.
/// Small models are compiled once for profiles without times and with times, and half of it once for all recompute
/// modes. The deck and what is shared must outlive it.
class LayerProfiler {
 public:
  LayerProfiler(const Deck& deck, const Layout& layout, SharedProfiles& shared);
  /// Without `costs` times are 0. Throws UserError (kDeck) if the degrees do not suit the model.
  LayerProfile Profile(RecomputeMode mode, const Costs* costs);

 private:
  bool IsLast(size_t kind) const;
  const Compilation& CompilationOf(size_t kind, RecomputeMode mode);
  void Read(size_t kind, RecomputeMode mode, const Costs* costs, LayerProfile& profile);

  const Deck& deck_;
  const Layout layout_;
  SharedProfiles& shared_;
  const std::vector<LayerKind> kinds_;
  std::map<size_t, HalfCompilation> halves_;  ///< by kind
  std::map<std::pair<size_t, RecomputeMode>, Compilation> compiled_;
};

/// The profile of a layout.
LayerProfile ProfileLayers(const Deck& deck, const Layout& layout, const Costs* costs);

}  // namespace espalier
