#include "tune/memory_bound.hpp"

#include <algorithm>
#include <map>

#include "espalier/program/compile.hpp"

namespace espalier {
namespace {

constexpr int64_t kMaster = 4;  // bytes of an fp32 element

/// The message that gathers the parameters of a part that the same ranks share out, or reduces their gradients, in
/// elements. A single parameter is gathered in place, and its gradient sent in place; others pass through a workspace
/// (CommWorkspaceBytes).
struct Message {
  int64_t parameters = 0, elements = 0, elements_of_shards = 0, shards = 1;
  void Add(int64_t whole, int64_t shard, int64_t shards_of_whole) {
    ++parameters;
    elements += whole;
    elements_of_shards += shard;
    shards = shards_of_whole;
  }
  int64_t GatherWorkspace() const { return parameters > 1 ? elements : 0; }
  int64_t ReduceWorkspace() const {
    const int64_t sent = parameters > 1 ? elements - elements_of_shards : 0;
    return sent + (shards - 1) * elements_of_shards;
  }
};

/// Several messages of a part need memory at different times. Counted are the values of one and its workspace, or when
/// the last weights are gathered, all and the smallest workspace.
PartStates StatesOfPart(const LayerProfile& profile, const PartMemory& memory, const Layout& layout) {
  PartStates states;
  const bool again = layout.GathersAgain();
  std::map<OwnersOfState, Message> messages;
  for (const ParameterShape& parameter : memory.parameters) {
    const int64_t shard = parameter.Shard(layout), whole = parameter.Elements();
    const int64_t weight = whole * profile.element_bytes;
    const bool sharded = parameter.Shards(layout) > 1;
    if (sharded) messages[parameter.owners].Add(whole, shard, parameter.Shards(layout));
    if (profile.copies_weights) states.bytes += Aligned(shard * profile.element_bytes);
    for (int64_t bytes : parameter.state_bytes) states.bytes += Aligned(bytes * shard);
    if (layout.ShardsGradients() && profile.keeps_gradients) states.bytes += Aligned(kMaster * shard);
    if (again && sharded) {
      states.gathered += weight;
    } else if (sharded) {
      (parameter.in_backward ? states.weights : states.forward_only) += Aligned(weight);
    }
    if (sharded && !layout.ShardsGradients()) states.step_gradients += kMaster * shard;
  }
  for (int64_t bytes : memory.gradients) {
    if (!layout.ShardsGradients() && profile.keeps_gradients) states.bytes += Aligned(bytes);
    if (layout.ReducesEach() && layout.DataParallel() * layout.cp > 1) states.raw_gradients += bytes;
  }
  if (messages.empty()) return states;
  const int64_t bytes = profile.element_bytes;
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0, reducing = 0;
  for (const auto& [owners, message] : messages) {
    least = std::min(least, bytes * message.GatherWorkspace());
    most = std::max(most, bytes * (message.elements + message.GatherWorkspace()));
    // Gradients that are sent rounded: when the message starts, rounded copies have replaced them.
    reducing = std::max(reducing, profile.gradient_bytes * (message.elements + message.ReduceWorkspace()));
  }
  if (again) states.gathering = std::max(least, most - states.gathered);
  if (states.raw_gradients > 0 && layout.ShardsGradients())
    states.reducing = std::max<int64_t>(0, reducing - states.raw_gradients);
  return states;
}

/// Memory of one stage, part by part.
class Stage {
 public:
  Stage(const MemoryQuestion& q, const StageFlights& flights) : q_(q), flights_(flights) {
    for (int chunk : flights.chunks) kept_.push_back({Kept(chunk, false), Kept(chunk, true)});
    for (Part part = 0; part < q.states.size(); ++part)
      forward_only_ += Count(flights.chunks.front(), part) * q.states[part].forward_only;
  }

  int64_t LeastBytes() const {
    int64_t persistent = 0, weights = q_.profile.prepared, step_gradients = 0, most = 0;
    for (int chunk : flights_.chunks)
      for (Part part = 0; part < q_.states.size(); ++part) {
        const int64_t n = Count(chunk, part);
        persistent += n * q_.states[part].bytes + (n > 0 ? Inputs(part) : 0);
        weights += n * q_.states[part].weights;
        step_gradients += n * q_.states[part].step_gradients;
        const PartStates& states = q_.states[part];
        if (n > 0) most = std::max({most, states.gathered + states.gathering, states.raw_gradients + states.reducing});
      }
    for (const InFlight& moment : flights_.moments) most = std::max(most, LiveAt(moment));
    return persistent + std::max(weights + most, step_gradients);  // the update needs no weights and activations
  }

 private:
  const ChunkParts& Chunk(int chunk) const { return q_.chunks[static_cast<size_t>(chunk)]; }
  int64_t Count(int chunk, Part part) const { return Chunk(chunk).count[part]; }
  int64_t Inputs(Part part) const { return q_.microbatches * Aligned(q_.micro * q_.profile.memory[part].inputs); }
  int64_t Kept(int chunk, bool for_w) const {
    int64_t bytes = 0;
    for (Part part = 0; part < q_.states.size(); ++part) {
      const PartMemory& memory = q_.profile.memory[part];
      bytes += Count(chunk, part) * (for_w ? memory.kept_for_w : memory.kept);
    }
    return bytes * q_.micro;
  }
  int64_t LiveAt(const InFlight& moment) const {
    int64_t bytes = moment.more_forwards ? forward_only_ : 0;
    for (size_t i = 0; i < kept_.size(); ++i)
      bytes += moment.before_b[i] * kept_[i].for_b + moment.before_w[i] * kept_[i].for_w;
    const int chunk = flights_.chunks[static_cast<size_t>(moment.chunk)];
    return bytes + (moment.role == Role::kB ? Extra(chunk) : ExtraOfW(chunk)) - WeightsGoneAt(moment);
  }
  /// The last backward of a chunk frees weights from the top down: if it comes next, the weights of its head and top
  /// layer may be free before the moment counts; if it is over, all are free.
  int64_t WeightsGoneAt(const InFlight& moment) const {
    int64_t bytes = 0;
    for (size_t i = 0; i < flights_.chunks.size(); ++i) {
      if (!moment.last[i]) continue;
      const bool next = moment.role == Role::kB && static_cast<int>(i) == moment.chunk;
      const ChunkParts& chunk = Chunk(flights_.chunks[i]);
      for (Part part = 0; part < q_.states.size(); ++part) {
        const bool top = part == chunk.last || part == kHead;
        bytes +=
            (next ? std::min<int64_t>(chunk.count[part], top ? 1 : 0) : chunk.count[part]) * q_.states[part].weights;
      }
    }
    return bytes;
  }
  /// Temporaries of a chunk's backward beyond the kept values: for its last part, or for the layer below the head, once
  /// the head's kept values are free.
  int64_t Extra(int chunk) const {
    const int64_t layer = ExtraOf(Chunk(chunk).last, GatheredAhead(chunk));
    if (Count(chunk, kHead) == 0) return layer;
    return std::max(ExtraOf(kHead, 0), layer - q_.micro * q_.profile.memory[kHead].kept);
  }
  /// Weights of layers below the top layer of a chunk that were gathered ahead; at least this much, since they may be
  /// of any kind in the chunk.
  int64_t GatheredAhead(int chunk) const {
    const ChunkParts& parts = Chunk(chunk);
    int64_t least = q_.states[parts.last].gathered;
    for (Part part = kFirstKind; part < parts.count.size(); ++part)
      if (parts.count[part] > 0) least = std::min(least, q_.states[part].gathered);
    return std::min<int64_t>(parts.Layers() - 1, q_.prefetch) * least;
  }
  /// Temporaries of a layer or the head. At its start its gathered weights are live, and `ahead` bytes of others; then
  /// the values that backward makes; at its end its gradients of this microbatch, when its other values may be free.
  /// (If W is deferred, that is at another time.)
  int64_t ExtraOf(Part part, int64_t ahead) const {
    const PartMemory& memory = q_.profile.memory[part];
    const PartStates& states = q_.states[part];
    if (memory.done_in_forward) return q_.micro * memory.extra;
    const int64_t gathered = states.gathered + states.gathering + ahead;
    const int64_t gradients = states.raw_gradients + states.reducing - q_.micro * memory.kept;
    return std::max({q_.micro * memory.extra, gathered, q_.profile.defers_w ? 0 : gradients});
  }
  /// Temporaries of a chunk's W alone beyond the kept values: the gradients of its last part, or of the layer below the
  /// head, when its other values may be free.
  int64_t ExtraOfW(int chunk) const {
    const auto gradients = [&](Part part) {
      const PartStates& states = q_.states[part];
      if (q_.profile.memory[part].done_in_forward) return int64_t{0};
      return states.raw_gradients + states.reducing - q_.micro * q_.profile.memory[part].kept_for_w;
    };
    const int64_t layer = gradients(Chunk(chunk).last);
    if (Count(chunk, kHead) == 0) return std::max<int64_t>(0, layer);
    return std::max({int64_t{0}, gradients(kHead), layer - q_.micro * q_.profile.memory[kHead].kept_for_w});
  }

  struct KeptOf {
    int64_t for_b, for_w;
  };
  const MemoryQuestion& q_;
  const StageFlights& flights_;
  std::vector<KeptOf> kept_;  // by index among the chunks of the stage, for a microbatch
  int64_t forward_only_ = 0;  // of its first chunk
};

}  // namespace

ByPart<PartStates> StatesOf(const LayerProfile& profile, const Layout& layout) {
  ByPart<PartStates> states;
  for (const PartMemory& memory : profile.memory) states.push_back(StatesOfPart(profile, memory, layout));
  return states;
}

std::vector<int64_t> LeastBytesOfStages(const MemoryQuestion& question) {
  std::vector<int64_t> bytes;
  for (const StageFlights& flights : question.flights) bytes.push_back(Stage(question, flights).LeastBytes());
  return bytes;
}

int64_t LeastBytes(const MemoryQuestion& question, int64_t enough) {
  int64_t most = 0;
  for (auto flights = question.flights.begin(); flights != question.flights.end() && most <= enough; ++flights)
    most = std::max(most, Stage(question, *flights).LeastBytes());
  return most;
}

}  // namespace espalier
