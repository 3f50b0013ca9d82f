#include "tune/formula.hpp"

#include <algorithm>

#include "tune/walk.hpp"

namespace espalier {
namespace {

constexpr int64_t kScalar = 4;  // bytes of a sum of squares

/// Ranks 0, stride, 2 stride, ...
GroupPlace PlaceOfGroup(int ranks, int stride, int ranks_per_node) {
  if (ranks == 1) return {};
  const int on_node = std::clamp(ranks_per_node / std::max(1, stride), 1, ranks);
  return {ranks, (ranks + on_node - 1) / on_node, on_node};
}

double CollectiveUs(const Costs& costs, OpKind kind, double bytes, const GroupPlace& place) {
  return place.ranks == 1 ? 0 : costs.Collective(kind, static_cast<int64_t>(bytes), place).us;
}

class StepFormula {
 public:
  explicit StepFormula(const StepQuestion& q) : q_(q), again_(q.layout.GathersAgain()) {
    for (const ChunkParts& chunk : q.chunks) times_.push_back(TimeOf(chunk));
  }

  double Us() const {
    std::vector<double> start;
    for (int stage = 0; stage < q_.pipeline.Stages(); ++stage) start.push_back(StartUs(stage));
    const std::vector<double> ends = q_.pipeline.EndsUs(times_, q_.hop_us, start);
    double end = 0;
    for (int stage = 0; stage < q_.pipeline.Stages(); ++stage)
      end = std::max(end, ends[static_cast<size_t>(stage)] + LateReduceUs(stage));
    return end + UpdateUs();
  }

  double LeastUs() const {
    double busiest = 0;
    for (int stage = 0; stage < q_.pipeline.Stages(); ++stage) {
      double busy = 0;
      for (int chunk : q_.pipeline.ChunksOf(stage)) {
        const ChunkTime& time = times_[static_cast<size_t>(chunk)];
        busy += time.f + time.b + time.w + std::min(time.with_b, time.alone);  // a schedule may have W both ways
        if (q_.layout.interleave) busy -= time.joint_f + time.joint_b;
      }
      busiest = std::max(busiest, busy);
    }
    return static_cast<double>(q_.microbatches) * busiest + UpdateUs();
  }

 private:
  bool SumsPerStep() const { return !q_.layout.ReducesEach(); }
  const ChunkParts& Chunk(int chunk) const { return q_.chunks[static_cast<size_t>(chunk)]; }

  /// Time of a stage's reductions after its last backward: with overlap.gradients, the time by which they exceed
  /// backward, and at least one layer's.
  double LateReduceUs(int stage) const {
    if (!SumsPerStep()) return 0;
    const double reduce = Sum(stage, &PartSync::reduce_us);
    if (!q_.hides_reductions) return reduce;
    double backward = 0;
    for (int chunk : q_.pipeline.ChunksOf(stage))
      backward += times_[static_cast<size_t>(chunk)].b + times_[static_cast<size_t>(chunk)].w;
    return std::max(reduce - backward, q_.sync.parts[Chunk(q_.pipeline.ChunksOf(stage).front()).first].reduce_us);
  }

  /// Messages on lane dp overlap with the kernels of a neighbouring layer, and slow them down. With overlap.gradients,
  /// the last reductions of a job overlap with the next job: those of a W that is a job of its own with W and two
  /// layers of the next job, after which the program waits for them.
  ChunkTime TimeOf(const ChunkParts& chunk) const {
    ChunkTime time;
    double last_reduce = 0, late = -kLayersUnderLateSums * q_.profile.forward[chunk.first].us;
    for (Part part = 0; part < chunk.count.size(); ++part) {
      const auto n = static_cast<double>(chunk.count[part]);
      if (n == 0) continue;
      const PartTime &forward = q_.profile.forward[part], &backward = q_.profile.backward[part];
      const PartSync& sync = q_.sync.parts[part];
      const double gather = again_ ? sync.gather_us : 0, reduce = SumsPerStep() ? 0 : sync.reduce_us;
      const auto overlapped = [&](double compute, double message) {
        return q_.layout.prefetch > 0 ? std::max(compute + q_.sync.slowdown * message, message) : compute + message;
      };
      const double w = q_.profile.w_us[part], compute = overlapped(backward.us, gather);
      time.f += n * overlapped(forward.us, gather);
      time.b += n * (compute - w);
      time.w += n * w;
      time.with_b += n * (std::max(compute + q_.sync.slowdown * reduce, gather + reduce) - compute);
      time.alone += n * q_.sync.slowdown * reduce;
      late += n * (reduce - w);
      time.joint_f += n * forward.joint_us;
      time.joint_b += n * backward.joint_us;
      if (!q_.hides_reductions) last_reduce = std::max(last_reduce, reduce);
    }
    time.with_b += last_reduce;
    time.alone += std::max(0.0, late) + last_reduce;
    return time;
  }

  double UpdateUs() const {
    double update = 0;
    for (int stage = 0; stage < q_.pipeline.Stages(); ++stage)
      update = std::max(update, Sum(stage, &PartSync::update_us));
    return update + q_.sync.norm_us;
  }
  double Sum(int stage, double PartSync::*field) const {
    double sum = 0;
    for (int chunk : q_.pipeline.ChunksOf(stage))
      for (Part part = 0; part < q_.sync.parts.size(); ++part)
        sum += static_cast<double>(Chunk(chunk).count[part]) * q_.sync.parts[part].*field;
    return sum;
  }

  /// Weights that are gathered once per step arrive under the first forward, layer by layer. With a pipeline forward
  /// waits for all of them: it begins with the memory in which the last of them is staged.
  double StartUs(int stage) const {
    if (again_) return 0;
    const double all = Sum(stage, &PartSync::gather_us);
    if (q_.layout.pp > 1) return all;
    const Part layer = Chunk(0).first;
    return std::max(q_.sync.parts[kEmbedding].gather_us, all - times_[0].f + q_.profile.forward[layer].us);
  }

  const StepQuestion& q_;
  const bool again_;
  std::vector<ChunkTime> times_;  ///< by chunk
};

}  // namespace

DataParallelTimes SyncTimes(const LayerProfile& profile, const Layout& layout, const Costs& costs) {
  const Cluster& cluster = costs.cluster();
  const int shards = layout.Shards();
  const GroupPlace shard_place = PlaceOfGroup(shards, layout.tp, cluster.NearRanks());
  const GroupPlace copy_place = PlaceOfGroup(layout.dp_replicate, layout.tp * shards, cluster.NearRanks());
  const int gather_ranks = GatherRanks(profile, layout);
  const bool groups = gather_ranks < shards;
  const GroupPlace gather_place =
      groups ? PlaceOfGroup(gather_ranks, layout.tp * layout.cp, cluster.NearRanks()) : shard_place;
  const double wire = cluster.gradient_bytes > 0 ? cluster.gradient_bytes : profile.gradient_bytes;
  DataParallelTimes times;
  times.parts.resize(profile.memory.size());
  if (shards > 1) times.slowdown = SlowdownAt(shard_place.nodes > 1 ? Port::kNetwork : Port::kNode, cluster);
  for (Part part = 0; part < times.parts.size(); ++part) {
    int64_t whole = 0, shard = 0, gathered = 0, reduced = 0;
    for (const ParameterShape& parameter : profile.memory[part].parameters) {
      const int64_t own = parameter.Shard(layout), others = parameter.Shards(layout) - 1;
      whole += parameter.Elements();
      shard += own;
      reduced += own * others;
      gathered += groups ? parameter.ShardOver(gather_ranks, 1) * (gather_ranks - 1) : own * others;
    }
    const auto elements = static_cast<double>(shard);
    const double copies = 2.0 * (layout.dp_replicate - 1) / layout.dp_replicate;
    PartSync& sync = times.parts[part];
    if (whole == 0) continue;
    sync.gather_us =
        CollectiveUs(costs, OpKind::kAllGather, static_cast<double>(gathered * profile.element_bytes), gather_place);
    sync.reduce_us = CollectiveUs(costs, OpKind::kReduceScatter, static_cast<double>(reduced) * wire, shard_place) +
                     CollectiveUs(costs, OpKind::kAllReduce, elements * wire * copies, copy_place);
    sync.update_us = elements * profile.step_us_per_element;
  }
  const GroupPlace tensor_place = PlaceOfGroup(layout.tp, 1, cluster.NearRanks());
  const GroupPlace stage_place = PlaceOfGroup(layout.pp, layout.Ranks() / layout.pp, cluster.NearRanks());
  times.norm_us = CollectiveUs(costs, OpKind::kAllReduce, kScalar, shard_place) +
                  CollectiveUs(costs, OpKind::kAllReduce, kScalar, tensor_place) +
                  CollectiveUs(costs, OpKind::kAllGather, kScalar, stage_place);
  return times;
}

double HopUs(const LayerProfile& profile, const Layout& layout, const Costs& costs) {
  if (layout.pp == 1) return 0;
  const int stride = layout.Ranks() / layout.pp;
  return costs.Message(profile.stream_bytes, stride * 2 <= costs.cluster().NearRanks()).us;
}

double FormulaUs(const StepQuestion& question) { return StepFormula(question).Us(); }
double LeastUs(const StepQuestion& question) { return StepFormula(question).LeastUs(); }

}  // namespace espalier
