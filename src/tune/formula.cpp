#include "tune/formula.hpp"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <numeric>

#include "tune/walk.hpp"

namespace espalier {
namespace {

constexpr int64_t kScalar = 4;  // bytes of a sum of squares

/// Elements of the parameters with the same owners that a rank sends, to gather and to reduce them.
struct Elements {
  int64_t gathered = 0, reduced = 0;
};

/// Ranks of an axis: 0, stride, 2 stride, ...
struct Row {
  int ranks = 1, stride = 1;
};
/// A lattice of ranks.
GroupPlace PlaceOfGroup(std::initializer_list<Row> rows, int ranks_per_node) {
  int ranks = 1, on_node = 1;
  for (const Row& row : rows) {
    ranks *= row.ranks;
    on_node *= std::clamp(ranks_per_node / row.stride, 1, row.ranks);
  }
  return {ranks, (ranks + on_node - 1) / on_node, on_node};
}
/// The ranks that share out the state of parameters with these owners.
GroupPlace PlaceOfOwners(const OwnersOfState& owners, const Layout& l, int ranks_per_node) {
  return PlaceOfGroup({{owners.tp ? l.tp : 1, 1},
                       {owners.cp ? l.cp : 1, l.tp},
                       {l.dp_shard / owners.dp_stride, l.tp * l.cp * owners.dp_stride}},
                      ranks_per_node);
}

double CollectiveUs(const Costs& costs, OpKind kind, double bytes, const GroupPlace& place) {
  return place.ranks == 1 ? 0 : costs.Collective(kind, static_cast<int64_t>(bytes), place).us;
}

class StepFormula {
 public:
  explicit StepFormula(const StepQuestion& q) : q_(q), again_(q.layout.GathersAgain()) {
    for (const ChunkParts& chunk : q.chunks) times_.push_back(TimeOf(chunk));
    if (q.layout.pp == 1) return;
    const double beside = q.link.slowdown * q.link.message_us;
    for (size_t chunk = 0; chunk + 1 < times_.size(); ++chunk) {
      times_[chunk].f += beside + q.profile.stream_add_us;
      times_[chunk + 1].b += beside;
    }
  }

  double Us() const {
    std::vector<double> start;
    for (int stage = 0; stage < q_.pipeline.Stages(); ++stage) start.push_back(StartUs(stage));
    const std::vector<double> ends = q_.pipeline.EndsUs(times_, q_.link.message_us, start);
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
  /// backward, and at least those of the last layer and of the embedding.
  double LateReduceUs(int stage) const {
    if (!SumsPerStep()) return 0;
    const double reduce = Sum(stage, &PartSync::reduce_us);
    if (!q_.hides_reductions) return reduce;
    double backward = 0;
    for (int chunk : q_.pipeline.ChunksOf(stage))
      backward += times_[static_cast<size_t>(chunk)].b + times_[static_cast<size_t>(chunk)].w;
    const ChunkParts& last = Chunk(q_.pipeline.ChunksOf(stage).front());
    return std::max(reduce - backward,
                    q_.sync.parts[last.first].reduce_us +
                        static_cast<double>(last.count[kEmbedding]) * q_.sync.parts[kEmbedding].reduce_us);
  }

  /// Messages on lane dp overlap with the kernels of a neighbouring layer, and slow them down.
  ChunkTime TimeOf(const ChunkParts& chunk) const {
    ChunkTime time;
    double last_reduce = 0;
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
      time.joint_f += n * forward.joint_us;
      time.joint_b += n * backward.joint_us;
      if (!q_.hides_reductions) last_reduce = std::max(last_reduce, reduce);
    }
    time.with_b += last_reduce;
    time.alone = AloneUs(chunk);
    return time;
  }

  /// The time that reductions add to a W in a job of its own, and to the next job. The lane reduces one layer after the
  /// other, and a layer's sums are added after the next layer's matmuls. Before the last layer the first two gathers of
  /// the next job are issued. The last sums are added after some layers of the next job, or without overlap.gradients
  /// at the end of their own (job_ops.hpp).
  double AloneUs(const ChunkParts& chunk) const {
    if (SumsPerStep()) return 0;
    const double gather = again_ && q_.layout.prefetch > 0 ? q_.sync.parts[chunk.first].gather_us : 0;
    double kernels = 0, now = 0, lane = 0, gathered = 0, reduced = 0;
    // The embedding has no matmuls in W.
    int64_t left = std::accumulate(chunk.count.begin(), chunk.count.end(), -chunk.count[kEmbedding]);
    const auto run = [&](Part part) {
      const double w = q_.profile.w_us[part], reduce = q_.sync.parts[part].reduce_us;
      for (int64_t i = 0; i < chunk.count[part]; ++i, --left) {
        if (left == 1) {
          gathered = std::max(lane, now) + gather;
          lane = gathered + gather;
        }
        kernels += w;
        now = std::max(now + w + q_.sync.slowdown * reduce, reduced);
        reduced = lane = std::max(lane, now) + reduce;
      }
    };
    run(kHead);
    run(kFurther);
    for (Part kind = chunk.count.size(); kind-- > kFirstKind;) run(kind);
    run(kEmbedding);
    const double under = q_.hides_reductions ? kLayersUnderLateSums * q_.profile.forward[chunk.first].us : 0;
    return std::max({now, gathered, reduced - under}) - kernels;
  }

  double UpdateUs() const {
    double update = 0;
    for (int stage = 0; stage < q_.pipeline.Stages(); ++stage)
      update = std::max(update, Sum(stage, &PartSync::update_us));
    return update + q_.sync.norm_us;
  }
  double Sum(int stage, double PartSync::*field) const {
    double sum = 0;
    for (int chunk : q_.pipeline.ChunksOf(stage)) sum += SumOf(chunk, field);
    return sum;
  }
  double SumOf(int chunk, double PartSync::*field) const {
    double sum = 0;
    for (Part part = 0; part < q_.sync.parts.size(); ++part)
      sum += static_cast<double>(Chunk(chunk).count[part]) * q_.sync.parts[part].*field;
    return sum;
  }

  /// Weights that are gathered once per step arrive under the first forward, layer by layer. Stages other than the
  /// first wait for all of theirs: forward begins with the memory in which the last of them is staged.
  double StartUs(int stage) const {
    if (again_) return 0;
    if (q_.pipeline.ChunksOf(stage).front() > 0) return Sum(stage, &PartSync::gather_us);
    const double gathers = SumOf(0, &PartSync::gather_us);
    const Part layer = Chunk(0).first;
    return std::max(q_.sync.parts[kEmbedding].gather_us, gathers - times_[0].f + q_.profile.forward[layer].us);
  }

  const StepQuestion& q_;
  const bool again_;
  std::vector<ChunkTime> times_;  ///< by chunk
};

}  // namespace

DataParallelTimes SyncTimes(const LayerProfile& profile, const Layout& layout, const Costs& costs) {
  const Cluster& cluster = costs.cluster();
  const int near = cluster.NearRanks();
  const GroupPlace shard_place = PlaceOfOwners({}, layout, near);
  const GroupPlace copy_place = PlaceOfGroup({{layout.dp_replicate, layout.tp * layout.Shards()}}, near);
  const int gather_ranks = GatherRanks(profile, layout);
  const bool groups = gather_ranks < layout.Shards();
  const GroupPlace group_place = PlaceOfGroup({{gather_ranks, layout.tp * layout.cp}}, near);
  const double wire = cluster.gradient_bytes > 0 ? cluster.gradient_bytes : profile.gradient_bytes;
  DataParallelTimes times;
  times.parts.resize(profile.memory.size());
  if (layout.Shards() > 1) times.slowdown = SlowdownAt(shard_place.nodes > 1 ? Port::kNetwork : Port::kNode, cluster);
  for (Part part = 0; part < times.parts.size(); ++part) {
    PartSync& sync = times.parts[part];
    int64_t shard = 0;
    std::map<OwnersOfState, Elements> messages;
    for (const ParameterShape& parameter : profile.memory[part].parameters) {
      const int64_t own = parameter.Shard(layout), others = parameter.Shards(layout) - 1;
      shard += own;
      Elements& elements = messages[parameter.owners];
      elements.reduced += own * others;
      elements.gathered += groups ? parameter.ShardOver(gather_ranks, 1) * (gather_ranks - 1) : own * others;
    }
    for (const auto& [owners, elements] : messages) {
      const GroupPlace place = PlaceOfOwners(owners, layout, near);
      sync.gather_us +=
          CollectiveUs(costs, OpKind::kAllGather, static_cast<double>(elements.gathered * profile.element_bytes),
                       groups ? group_place : place);
      sync.reduce_us +=
          CollectiveUs(costs, OpKind::kReduceScatter, static_cast<double>(elements.reduced) * wire, place);
    }
    const auto elements = static_cast<double>(shard);
    const double copies = 2.0 * (layout.dp_replicate - 1) / layout.dp_replicate;
    sync.reduce_us += CollectiveUs(costs, OpKind::kAllReduce, elements * wire * copies, copy_place);
    sync.update_us = elements * profile.step_us_per_element;
  }
  const GroupPlace tensor_place = PlaceOfGroup({{layout.tp, 1}}, near);
  const GroupPlace stage_place = PlaceOfGroup({{layout.pp, layout.Ranks() / layout.pp}}, near);
  times.norm_us = CollectiveUs(costs, OpKind::kAllReduce, kScalar, shard_place) +
                  CollectiveUs(costs, OpKind::kAllReduce, kScalar, tensor_place) +
                  CollectiveUs(costs, OpKind::kAllGather, kScalar, stage_place);
  return times;
}

StageLink LinkOf(const LayerProfile& profile, const Layout& layout, const Costs& costs) {
  if (layout.pp == 1) return {};
  const bool near = 2 * (layout.Ranks() / layout.pp) <= costs.cluster().NearRanks();
  return {costs.Message(profile.stream_bytes, near).us,
          SlowdownAt(near ? Port::kNode : Port::kNetwork, costs.cluster())};
}

double FormulaUs(const StepQuestion& question) { return StepFormula(question).Us(); }
double LeastUs(const StepQuestion& question) { return StepFormula(question).LeastUs(); }

}  // namespace espalier
