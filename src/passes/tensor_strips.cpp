// tp communication of forward and backward overlaps with matmuls of the same layers (asynchronous tensor parallelism).
// Ops whose rows (tokens) do not depend on each other are computed in strips of rows (ops/strip.hpp), so that the
// message of one strip overlaps with the kernels of the next ones. With two strips, from attention to the MLP:
//
//   o = matmul(a, w)                          o = matmul(a, w)      strip 0
//   s = reduce_scatter(o)                     s = reduce_scatter(o) strip 0      under the matmul of strip 1
//   n, .. = rms_norm(s, ..)                   o = matmul(a, w)      strip 1
//   g = all_gather(n)                ->       n, .. = rms_norm(s)   strip 0
//   u = matmul(g, w)                          g = all_gather(n)     strip 0
//   d = matmul(swiglu(u), w)                  s = reduce_scatter(o) strip 1      under the MLP of strip 0
//   ...                                       u = matmul(g, w); ..  strip 0
//                                             n = rms_norm; g = all_gather; ...  strip 1
//
// A region is a run of such ops of one chunk and role: from one attention to the next, and the same in backward. It is
// split only if it has kernels and a tp collective. Values stay whole, so memory holds no copies, and weight gradients,
// which sum over rows, read whole values; they come after the last strip of what preceded them. Only rows are split,
// never a contracted dim, so the order of every sum stays.
//
// The order within a region is that of a list schedule (ops/list_schedule.hpp), by the times of run.costs or by rough
// ones. With those of run.costs and an automatic number of strips, each region has as many as make it fastest, unless
// sums depend on the sizes of kernels and messages.
#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "espalier/graph/local_range.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/ops/list_schedule.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

/// A region has strips, or more of them, if it becomes shorter by this share: kernels beside messages are slower than
/// their times say.
constexpr double kWorthStrips = 0.02;
constexpr int kMaxStrips = 4;  // of an automatic number

class StripCutter {
 public:
  /// `counts`: the numbers of strips to choose from, ascending.
  StripCutter(Graph& graph, const PassContext& context, std::vector<int> counts)
      : graph_(graph),
        mesh_(context.mesh),
        times_(TimesOf(context.deck)),
        counts_(std::move(counts)),
        sequence_parallel_(context.deck.parallel.sequence_parallel) {
    tensor_axes_ = mesh_.Real(kTensorAxes);
  }

  void Run() {
    Rewriter old(graph_);
    for (Op& op : old.ops) Take(std::move(op));
    Close();
  }

 private:
  /// An op of a region. Ops that are not split keep their place between those that are.
  struct Item {
    Op op;
    bool split = false;
  };
  void Take(Op op) {
    const bool main = op.role == Role::kF || op.role == Role::kB;
    if (!region_.empty() && main && (op.role != role_ || op.chunk != chunk_)) Close();
    const bool splits = main && MaySplit(op);
    if (main && !splits && ReadsRegion(op) && !IsContextTransfer(graph_, op)) Close();
    if (region_.empty() && !splits) {
      graph_.ops.push_back(std::move(op));
      return;
    }
    if (splits) {
      role_ = op.role;
      chunk_ = op.chunk;
      made_.insert(op.outputs.begin(), op.outputs.end());
    }
    region_.push_back({std::move(op), splits});
  }

  bool ReadsRegion(const Op& op) const {
    return std::ranges::any_of(op.inputs, [&](int v) { return made_.contains(v); });
  }

  bool MaySplit(const Op& op) const {
    if (op.inputs.empty() || op.frequency() != Frequency::kMicrobatch) return false;
    if (!IsCollective(op.kind)) return IsRowwise(graph_, op) && HasTokens(op.inputs[0]);
    return std::ranges::all_of(op.inputs, [&](int v) { return HasTokens(v); }) && MovesRows(op);
  }
  /// An activation [batch, sequence, ...]; with the loss in chunks, gradients of weights are made in forward, too.
  bool HasTokens(int value) const {
    const Value& v = graph_.value(value);
    return v.frequency == Frequency::kMicrobatch && v.type.shape.size() >= 2 && !IsGradientOfWeight(v);
  }
  /// A collective over tp that gathers or scatters the sequence, or that reduces all of it.
  bool MovesRows(const Op& op) const {
    if (!IsTensorCollective(op)) return false;
    if (op.kind == OpKind::kAllReduce)
      return !sequence_parallel_ && std::ranges::all_of(op.inputs, [&](int v) { return !IsOnSequence(v); });
    if (!sequence_parallel_ || mesh_.Real(op.Axes()) != tensor_axes_) return false;
    const auto on_sequence = [&](int v) { return IsOnSequence(v); };
    const auto off_sequence = [&](int v) { return !IsOnSequence(v); };
    if (op.kind == OpKind::kAllGather)
      return std::ranges::all_of(op.inputs, on_sequence) && std::ranges::all_of(op.outputs, off_sequence);
    return op.kind == OpKind::kReduceScatter && std::ranges::all_of(op.inputs, off_sequence) &&
           std::ranges::all_of(op.outputs, on_sequence);
  }
  bool IsOnSequence(int value) const {
    return std::ranges::any_of(graph_.value(value).type.placements.dims[1],
                               [&](Axis a) { return tensor_axes_.Has(a); });
  }

  void Close() {
    std::vector<Op> best;
    double shortest = std::numeric_limits<double>::infinity();
    for (int count : counts_) {
      const std::optional<Strip> strip = StripOfRegion(count);
      if (count > 1 && !strip) continue;
      std::vector<Op> parts;
      const TimedOrder found = OrderOf(strip, parts);
      if (found.time >= (1 - kWorthStrips) * shortest) continue;
      shortest = found.time;
      best.clear();
      for (int task : found.order) best.push_back(parts[static_cast<size_t>(task)]);
    }
    if (best.empty())
      for (Item& item : region_) best.push_back(std::move(item.op));
    std::ranges::move(best, std::back_inserter(graph_.ops));
    region_.clear();
    made_.clear();
  }
  /// The order of the region in strips, or whole, and its ops.
  TimedOrder OrderOf(const std::optional<Strip>& strip, std::vector<Op>& parts) const {
    std::vector<LaneTask> tasks;
    std::vector<std::vector<int>> orders;
    for (const OpTimes* times : WithRough(times_)) {
      parts.clear();
      std::vector<LaneTask> timed = TasksOf(strip.value_or(Strip{.count = 1}), *times, parts);
      orders.push_back(strip ? ScheduleStrips(timed) : Numbers(timed.size()));
      if (tasks.empty()) tasks = std::move(timed);
    }
    return Shortest(tasks, std::move(orders));
  }
  static std::vector<int> Numbers(size_t count) {
    std::vector<int> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }

  /// Sequences of the microbatch are shared out if a rank has several, else the tokens of its one; no strips if there
  /// are too few, no message to overlap, or no kernel to overlap it with.
  std::optional<Strip> StripOfRegion(int count) const {
    const auto message =
        std::ranges::find_if(region_, [&](const Item& item) { return item.split && IsTensorCollective(item.op); });
    const auto kernel =
        std::ranges::find_if(region_, [&](const Item& item) { return item.split && !IsCollective(item.op.kind); });
    if (message == region_.end() || kernel == region_.end()) return std::nullopt;
    const Type& type = graph_.value(message->op.inputs[0]).type;
    const int64_t sequences = type.shape[0] / ShardsOf(type, 0, mesh_);
    Strip strip{.index = 0, .count = count, .dim = sequences > 1 ? size_t{0} : size_t{1}, .axes = {}};
    if (strip.dim == 0) {
      strip.count = static_cast<int>(std::min<int64_t>(count, sequences));
    } else {
      if (sequence_parallel_) strip.axes = tensor_axes_;
      const bool whole = sequence_parallel_ && !IsOnSequence(message->op.inputs[0]);
      const int64_t shards = ShardsOf(type, 1, mesh_) * (whole ? mesh_.GroupSize(tensor_axes_) : 1);
      if (type.shape[1] / shards < count) return std::nullopt;
    }
    return strip.count > 1 ? std::optional(strip) : std::nullopt;
  }

  /// The ops of a region in strips, and what has to come before each: what it reads, the strips before it, and ops of
  /// its kind that are not split. Gathers of parameters keep their place; a transfer over cp is issued when what it
  /// needs is made.
  std::vector<LaneTask> TasksOf(Strip strip, const OpTimes& times, std::vector<Op>& parts) const {
    std::vector<LaneTask> tasks;
    std::map<int, std::vector<int>> makers;  // by value of the region: one task, or one per strip
    int last_first_strip = -1, last_kept = -1, stage = 0;
    std::map<bool, int> last_filler;  // of kernels, and of messages
    for (const Item& item : region_) {
      const int first = static_cast<int>(tasks.size());
      const bool main = item.op.role == Role::kF || item.op.role == Role::kB;
      const bool kept = !item.split && main && !IsContextTransfer(graph_, item.op);
      for (strip.index = 0; strip.index < (item.split ? strip.count : 1); ++strip.index) {
        Op part = item.op;
        if (item.split && strip.count > 1) SetStrip(part, strip);
        LaneTask task = TaskOf(part, times);
        task.needs = Needed(part, item.split ? strip.index : -1, makers);
        if (strip.index > 0) task.needs.push_back(static_cast<int>(tasks.size()) - 1);
        if (item.split && strip.index == 0 && last_kept >= 0) task.needs.push_back(last_kept);
        if (kept && last_first_strip >= 0) task.needs.push_back(last_first_strip);
        task.stage = stage;
        const bool message = task.lane == kMessageLane;
        if (const auto before = last_filler.find(message); !main && before != last_filler.end())
          task.needs.push_back(before->second);
        if (!main) last_filler[message] = first;
        tasks.push_back(std::move(task));
        parts.push_back(std::move(part));
      }
      if (item.split) last_first_strip = first;
      if (kept) last_kept = last_first_strip = first;
      if (item.split && IsCollective(item.op.kind)) ++stage;
      for (int v : item.op.outputs) {
        makers[v].clear();
        for (int t = first; t < std::ssize(tasks); ++t) makers[v].push_back(t);
      }
    }
    return tasks;
  }

  /// Tasks that make what an op reads: the same strip, or all strips.
  static std::vector<int> Needed(const Op& op, int strip, const std::map<int, std::vector<int>>& makers) {
    std::vector<int> needed;
    for (int v : op.inputs) {
      const auto found = makers.find(v);
      if (found == makers.end()) continue;
      const std::vector<int>& of_value = found->second;
      needed.push_back(strip >= 0 && of_value.size() > 1 ? of_value[static_cast<size_t>(strip)] : of_value.back());
    }
    return needed;
  }

  LaneTask TaskOf(const Op& op, const OpTimes& times) const {
    LaneTask task;
    const std::optional<Strip> strip = StripOf(op);
    if (strip) task.strip = strip->index;
    task.fills_gaps = op.role != Role::kF && op.role != Role::kB;
    const bool message = IsTensorCollective(op);
    const bool other = op.inputs.empty() || IsReshard(op.kind) || IsCommunication(op.kind);
    task.lane = message ? kMessageLane : other ? kNoLane : kComputeLane;
    if (task.lane != kNoLane) task.time = times.Of(graph_, op, mesh_);
    return task;
  }

  Graph& graph_;
  const Mesh& mesh_;
  const OpTimes& times_;
  const std::vector<int> counts_;
  const bool sequence_parallel_;
  AxisSet tensor_axes_;
  std::vector<Item> region_;
  std::set<int> made_;  // values that the region's split ops make
  Role role_ = Role::kUnset;
  int chunk_ = kUnset;
};

}  // namespace

void TensorStrips(Graph& graph, const PassContext& context) {
  const Deck& deck = context.deck;
  std::vector<int> counts = {deck.overlap.tensor_strips};
  // Automatic by rough times: strips of whole sequences, whose matmuls stay large and whose messages need no packing.
  // Strips of one sequence are faster in some layouts only (doc/performance.md).
  if (counts[0] == 0) counts[0] = deck.batch.micro > 1 ? 2 : 1;
  if (deck.overlap.tensor_strips == 0 && deck.times != nullptr && context.sizes_follow_times) {
    counts.resize(kMaxStrips);
    std::iota(counts.begin(), counts.end(), 1);
  }
  if (counts.back() > 1 && !context.mesh.Real(kTensorAxes).Empty())
    StripCutter(graph, context, std::move(counts)).Run();
}

}  // namespace espalier
