#include "tune/formula.hpp"

#include <algorithm>
#include <numeric>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int64_t kScalar = 4;  // bytes of a sum of squares
/// Share of a forward's and a backward's exposed communication that stays exposed if they are interleaved: simulated
/// layouts of 8B, 70B and GPT-3 6.7B hide 90 to 97 % of it.
constexpr double kExposedInJointJobs = 0.1;

/// Ranks 0, stride, 2 stride, ...
GroupPlace PlaceOfGroup(int ranks, int stride, int ranks_per_node) {
  if (ranks == 1) return {};
  const int on_node = std::clamp(ranks_per_node / std::max(1, stride), 1, ranks);
  return {ranks, (ranks + on_node - 1) / on_node, on_node};
}

double CollectiveUs(const Costs& costs, OpKind kind, double bytes, const GroupPlace& place) {
  return place.ranks == 1 ? 0 : costs.Collective(kind, static_cast<int64_t>(bytes), place).us;
}

/// Times of a chunk per microbatch.
struct ChunkTime {
  double f = 0, bw = 0, w = 0;
  double exposed = 0;  ///< exposed communication of tp and cp in f and bw
};

class StepFormula {
 public:
  explicit StepFormula(const StepQuestion& q)
      : q_(q), p_(q.layout.pp), m_(static_cast<double>(q.microbatches)), again_(q.layout.GathersAgain()) {
    for (size_t c = 0; c < q.layers.size(); ++c) chunks_.push_back(TimeOf(static_cast<int>(c)));
    for (const StageFlights& flights : q.flights) {
      ChunkTime stage;
      for (int c : flights.chunks) {
        const ChunkTime& chunk = chunks_[static_cast<size_t>(c)];
        stage = {stage.f + chunk.f, stage.bw + chunk.bw, stage.w + chunk.w, stage.exposed + chunk.exposed};
      }
      stages_.push_back(stage);
    }
  }

  double Us() const {
    double update = 0, late = 0, before = 0, fill = 0, start = 0;
    const double pipeline = PipelineUs();
    for (size_t s = 0; s < stages_.size(); ++s) {
      const PartSync sync = SyncOf(q_.flights[s]);
      start = std::max(start, StartUs(q_.flights[s], sync) - fill);
      late = std::max(late, (SumsPerStep() ? LateReduceUs(s, sync) : 0) - before);
      update = std::max(update, sync.update_us);
      fill += stages_[s].f / static_cast<double>(q_.flights[s].chunks.size());
      before += Drains() ? stages_[s].bw / static_cast<double>(q_.flights[s].chunks.size()) : 0;
    }
    return start + pipeline + std::max(0.0, late) + update + q_.sync.norm_us;
  }

 private:
  bool SumsPerStep() const { return !q_.layout.ReducesEach(); }
  /// Time of a stage's reductions after its last backward: with overlap.gradients, the time by which they exceed
  /// backward, and at least one layer's.
  double LateReduceUs(size_t stage, const PartSync& sync) const {
    if (!q_.hides_reductions) return sync.reduce_us;
    return std::max(sync.reduce_us - stages_[stage].bw, q_.sync.parts[Part::kLayer].reduce_us);
  }
  /// Whether the first stage ends last.
  bool Drains() const {
    const ScheduleKind kind = q_.layout.schedule;
    return kind == ScheduleKind::k1F1B || kind == ScheduleKind::kGPipe || kind == ScheduleKind::kInterleaved;
  }

  int64_t Count(int chunk, Part part) const {
    if (part == Part::kLayer) return q_.layers[static_cast<size_t>(chunk)];
    return part == Part::kEmbedding ? chunk == 0 : chunk + 1 == std::ssize(q_.layers);
  }

  /// Messages on lane dp overlap with the kernels of a neighbouring layer. With overlap.gradients, the last reductions
  /// of a job overlap with a layer of the next job.
  ChunkTime TimeOf(int chunk) const {
    ChunkTime time;
    double last_reduce = 0;
    for (Part part : kParts) {
      const auto n = static_cast<double>(Count(chunk, part));
      if (n == 0) continue;
      const PartSync& sync = q_.sync.parts[part];
      const double gather = again_ ? sync.gather_us : 0, reduce = SumsPerStep() ? 0 : sync.reduce_us;
      const auto overlapped = [&](double compute, double message) {
        return q_.layout.prefetch > 0 ? std::max(compute, message) : compute + message;
      };
      time.f += n * overlapped(q_.profile.forward[part].us, gather);
      time.bw += n * std::max(overlapped(q_.profile.backward[part].us, gather), gather + reduce);
      time.w += n * q_.profile.w_us[part];
      for (const PartTime* of : {&q_.profile.forward[part], &q_.profile.backward[part]})
        time.exposed += n * std::accumulate(of->exposed_us.begin(), of->exposed_us.end(), 0.0);
      if (!q_.hides_reductions) last_reduce = std::max(last_reduce, reduce);
    }
    time.bw += last_reduce;
    return time;
  }

  PartSync SyncOf(const StageFlights& flights) const {
    PartSync sum;
    for (int chunk : flights.chunks)
      for (Part part : kParts) {
        const auto n = static_cast<double>(Count(chunk, part));
        const PartSync& sync = q_.sync.parts[part];
        sum = {sum.gather_us + n * sync.gather_us, sum.reduce_us + n * sync.reduce_us,
               sum.update_us + n * sync.update_us};
      }
    return sum;
  }

  /// Weights that are gathered once per step arrive under the first forward: layer by layer.
  double StartUs(const StageFlights& flights, const PartSync& sync) const {
    if (again_) return 0;
    const int first = flights.chunks.front();
    const double gather = q_.sync.parts[first == 0 ? Part::kEmbedding : Part::kLayer].gather_us;
    return std::max(gather,
                    sync.gather_us - chunks_[static_cast<size_t>(first)].f + q_.profile.forward[Part::kLayer].us);
  }

  double Sum(double ChunkTime::*field) const {
    return std::accumulate(stages_.begin(), stages_.end(), 0.0,
                           [&](double sum, const ChunkTime& t) { return sum + t.*field; });
  }

  /// Stage r and the later ones form a cycle with `p - r` microbatches: no schedule can be faster than such a cycle.
  double CycleUs(bool with_w) const {
    double sum = 0, period = 0;
    for (int r = p_ - 1; r >= 0; --r) {
      const ChunkTime& stage = stages_[static_cast<size_t>(r)];
      sum += stage.f + stage.bw - (with_w ? 0 : stage.w);
      period = std::max(period, (sum + 2 * (p_ - 1 - r) * q_.hop_us) / (p_ - r));
    }
    return period;
  }

  /// The number of the first stage's microbatches in joint jobs; the first stage has the fewest.
  double JointMicrobatches() const {
    if (!q_.layout.interleave) return 0;
    const double v = static_cast<double>(q_.layers.size()) / p_;
    switch (q_.layout.schedule) {
      case ScheduleKind::k1F1B:
      case ScheduleKind::kInterleaved:
        return std::max(0.0, m_ - (2 * (p_ - 1) + (v - 1) * p_ + 1) / v);
      case ScheduleKind::kDualPipeV:
        return std::max(0.0, m_ - 1.5 * p_);
      default:
        return 0;
    }
  }

  double PipelineUs() const {
    double busiest = 0, exposed = 0;
    for (const ChunkTime& stage : stages_) {
      busiest = std::max(busiest, stage.f + stage.bw);
      exposed = std::max(exposed, stage.exposed);
    }
    return PipelineUs(busiest) - (1 - kExposedInJointJobs) * JointMicrobatches() * exposed;
  }
  /// Time of the pipeline, with all exposed communication.
  double PipelineUs(double busiest) const {
    if (p_ == 1) return m_ * busiest;
    const double all = Sum(&ChunkTime::f) + Sum(&ChunkTime::bw), w = Sum(&ChunkTime::w);
    const double others = all - busiest, share = double(p_ - 1) / p_, hops = 2 * (p_ - 1) * q_.hop_us;
    const double v = static_cast<double>(q_.layers.size()) / p_;
    switch (q_.layout.schedule) {
      case ScheduleKind::kGPipe:
        return m_ * busiest + others + hops;
      case ScheduleKind::k1F1B:
        return (m_ - 1) * std::max(busiest, m_ >= p_ && !q_.layout.interleave ? CycleUs(true) : 0) + all + hops;
      case ScheduleKind::kInterleaved:
        return m_ * busiest + others / v + hops + 2 * (v - 1) * p_ * q_.hop_us;
      case ScheduleKind::kZeroBubbleH1:
        return (m_ - 1) * std::max(busiest, m_ >= p_ ? CycleUs(false) : 0) + std::max(busiest, all - 2 * w * share) +
               hops;
      case ScheduleKind::kZeroBubbleV: {
        const double b = share * (Sum(&ChunkTime::bw) - w) / 2;  // times of chunks, over p - 1 stages
        return m_ * busiest + std::max({0.0, b, 2 * b - share * w}) + 2 * hops;
      }
      case ScheduleKind::kDualPipeV:
        return m_ * busiest + std::max(0.0, share * (all / 2 + Sum(&ChunkTime::bw) / 2 - 1.5 * w)) + 2 * hops;
      case ScheduleKind::kForwardOnly:
        break;
    }
    CHECK(false, "no formula for schedule {}", Name(q_.layout.schedule));
  }

  const StepQuestion& q_;
  const int p_;
  const double m_;
  const bool again_;
  std::vector<ChunkTime> chunks_, stages_;
};

}  // namespace

DataParallelTimes SyncTimes(const LayerProfile& profile, const Layout& layout, const Costs& costs) {
  const Cluster& cluster = costs.cluster();
  const int shards = layout.Shards();
  const GroupPlace shard_place = PlaceOfGroup(shards, layout.tp, cluster.ranks_per_node);
  const GroupPlace copy_place = PlaceOfGroup(layout.dp_replicate, layout.tp * shards, cluster.ranks_per_node);
  const int gather_ranks = GatherRanks(profile, layout);
  const bool groups = gather_ranks < shards;
  const GroupPlace gather_place =
      groups ? PlaceOfGroup(gather_ranks, layout.tp * layout.cp, cluster.ranks_per_node) : shard_place;
  const double wire = cluster.gradient_bytes > 0 ? cluster.gradient_bytes : profile.gradient_bytes;
  DataParallelTimes times;
  for (Part part : kParts) {
    int64_t whole = 0, shard = 0, gather_shard = 0;
    for (const ParameterRows& parameter : profile.memory[part].parameters) {
      whole += parameter.Elements();
      shard += parameter.Shard(layout.dp_shard, layout.cp);
      gather_shard += groups ? parameter.Shard(gather_ranks, 1) : parameter.Shard(layout.dp_shard, layout.cp);
    }
    const auto elements = static_cast<double>(shard);
    const double others = shards - 1, copies = 2.0 * (layout.dp_replicate - 1) / layout.dp_replicate;
    PartSync& sync = times.parts[part];
    if (whole == 0) continue;
    sync.gather_us =
        CollectiveUs(costs, OpKind::kAllGather,
                     static_cast<double>(gather_shard * profile.element_bytes * (gather_ranks - 1)), gather_place);
    sync.reduce_us = CollectiveUs(costs, OpKind::kReduceScatter, elements * wire * others, shard_place) +
                     CollectiveUs(costs, OpKind::kAllReduce, elements * wire * copies, copy_place);
    sync.update_us = elements * profile.step_us_per_element;
  }
  const GroupPlace tensor_place = PlaceOfGroup(layout.tp, 1, cluster.ranks_per_node);
  const GroupPlace stage_place = PlaceOfGroup(layout.pp, layout.Ranks() / layout.pp, cluster.ranks_per_node);
  times.norm_us = CollectiveUs(costs, OpKind::kAllReduce, kScalar, shard_place) +
                  CollectiveUs(costs, OpKind::kAllReduce, kScalar, tensor_place) +
                  CollectiveUs(costs, OpKind::kAllGather, kScalar, stage_place);
  return times;
}

double HopUs(const LayerProfile& profile, const Layout& layout, const Costs& costs) {
  if (layout.pp == 1) return 0;
  const int stride = layout.Ranks() / layout.pp;
  return costs.Message(profile.stream_bytes, stride * 2 <= costs.cluster().ranks_per_node).us;
}

double FormulaUs(const StepQuestion& question) { return StepFormula(question).Us(); }

}  // namespace espalier
