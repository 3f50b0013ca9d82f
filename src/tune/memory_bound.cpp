#include "tune/memory_bound.hpp"

#include <algorithm>

#include "espalier/program/compile.hpp"

namespace espalier {
namespace {

constexpr int64_t kMaster = 4, kStates = 3;  // bytes of an fp32 element; the master and two moments

PartStates StatesOfPart(const LayerProfile& profile, const PartMemory& memory, const Layout& layout) {
  PartStates states;
  const bool sharded = layout.Shards() > 1, again = layout.GathersAgain();
  for (const ParameterRows& parameter : memory.parameters) {
    const int64_t shard = parameter.Shard(layout.dp_shard, layout.cp), whole = parameter.Elements();
    const int64_t weight = whole * profile.element_bytes;
    states.bytes += kStates * Aligned(kMaster * shard);
    if (layout.ShardsGradients()) states.bytes += Aligned(kMaster * shard);
    if (again) {
      states.gathered = std::max(states.gathered, weight);
      if (profile.copies_weights) states.bytes += Aligned(shard * profile.element_bytes);
    } else if (sharded || profile.copies_weights) {
      states.bytes += Aligned(weight);
    }
    if (sharded && !layout.ShardsGradients()) states.step_gradients += kMaster * shard;
  }
  if (!layout.ShardsGradients())
    for (int64_t bytes : memory.gradients) states.bytes += Aligned(bytes);
  return states;
}

/// What one stage holds, part by part.
class Stage {
 public:
  Stage(const MemoryQuestion& q, const StageFlights& flights) : q_(q), flights_(flights) {}

  int64_t LeastBytes() const {
    int64_t persistent = q_.profile.prepared, gathered = 0, step_gradients = 0, most = 0;
    for (int chunk : flights_.chunks)
      for (Part part : kParts) {
        const int64_t n = Count(chunk, part);
        persistent += n * q_.states[part].bytes + (n > 0 ? Inputs(part) : 0);
        step_gradients += n * q_.states[part].step_gradients;
        if (n > 0) gathered = std::max(gathered, q_.states[part].gathered);
      }
    for (const InFlight& moment : flights_.moments) most = std::max(most, LiveAt(moment));
    // The update needs no activations; weights gathered again are gone by then.
    return persistent + std::max(most + gathered, step_gradients);
  }

 private:
  int64_t Count(int chunk, Part part) const {
    const bool last = chunk + 1 == std::ssize(q_.layers);
    switch (part) {
      case Part::kEmbedding:
        return chunk == 0 ? 1 : 0;
      case Part::kHead:
        return last ? 1 : 0;
      case Part::kLayer:
        return q_.layers[static_cast<size_t>(chunk)];
    }
    return 0;
  }
  int64_t Inputs(Part part) const {
    return q_.microbatches * Aligned(q_.micro * q_.profile.memory[part].inputs);
  }
  int64_t Kept(int chunk, bool for_w) const {
    int64_t bytes = 0;
    for (Part part : kParts) {
      const PartMemory& memory = q_.profile.memory[part];
      bytes += Count(chunk, part) * (for_w ? memory.kept_for_w : memory.kept);
    }
    return bytes * q_.micro;
  }
  int64_t LiveAt(const InFlight& moment) const {
    int64_t bytes = 0;
    for (size_t i = 0; i < flights_.chunks.size(); ++i)
      bytes += moment.before_b[i] * Kept(flights_.chunks[i], false) + moment.before_w[i] * Kept(flights_.chunks[i], true);
    return bytes + Extra(flights_.chunks[static_cast<size_t>(moment.chunk)]);
  }
  /// Above what is kept: by the head, or by the layer below it once what the head kept is gone.
  int64_t Extra(int chunk) const {
    const ByPart<PartMemory>& memory = q_.profile.memory;
    if (Count(chunk, Part::kHead) == 0) return q_.micro * memory[Part::kLayer].extra;
    return q_.micro * std::max(memory[Part::kHead].extra, memory[Part::kLayer].extra - memory[Part::kHead].kept);
  }

  const MemoryQuestion& q_;
  const StageFlights& flights_;
};

}  // namespace

ByPart<PartStates> StatesOf(const LayerProfile& profile, const Layout& layout) {
  ByPart<PartStates> states;
  for (Part part : kParts) states[part] = StatesOfPart(profile, profile.memory[part], layout);
  return states;
}

int64_t LeastBytes(const MemoryQuestion& question) {
  int64_t most = 0;
  for (const StageFlights& flights : question.flights) most = std::max(most, Stage(question, flights).LeastBytes());
  return most;
}

}  // namespace espalier
