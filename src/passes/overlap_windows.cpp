// Messages of cp, and of ranks that share experts, overlap with matmuls. A window is what runs between one attention
// and the next, in forward or in backward. In it such a transfer, and what it needs, goes first; it is issued as soon
// as its inputs are made. While it travels, ops run that do not need it, and those that read it come last. In forward,
// and in backward with recompute:
//
//   n = rms_norm(h)                           n = rms_norm(h)
//   q = rope(matmul(n, wq))                   k = rope(matmul(n, wk)); v = matmul(n, wv)
//   k = rope(matmul(n, wk))                   kg, vg = all_gather(k, v)    issued
//   v = matmul(n, wv)                 ->      q = rope(matmul(n, wq))      runs meanwhile
//   kg, vg = all_gather(k, v)                 o = attention(q, kg, vg)     needs it
//   o = attention(q, kg, vg)
//
// In backward without recompute, k and v of a layer are kept, so they are gathered right after the attention of the
// layer above, and the gradients of keys travel under the gradients of queries:
//
//   dq, dk', dv' = attention_grad(..)         dq, dk', dv' = attention_grad(..)
//   dk, dv = reduce_scatter(dk', dv')         dk, dv = reduce_scatter(dk', dv')
//   dnv = matmul(dv, wv)                      kg, vg = all_gather(k, v)    for the layer below
//   dnk = matmul(rope(dk), wk)        ->      dnq = matmul(rope(dq), wq)   runs meanwhile
//   dnq = matmul(rope(dq), wq)                dnv = matmul(dv, wv); dnk = matmul(rope(dk), wk)
//   ... the layer below                       ... the layer below
//   kg, vg = all_gather(k, v)                 dq, dk', dv' = attention_grad(..)
//
// The first hop of a ring moves like the gather, the last one of its gradients like the reduce-scatter. Messages of
// several tensors, such as the all-to-alls of q, k and v, are split if the kernels of one tensor can run under the
// message of another.
//
// Ranks that share experts gather tokens while the router works on them, and the matmuls of a shared network cover the
// rest of the gather, and the reduce-scatter:
//
//   n = rms_norm(h)                           n = rms_norm(h)
//   w = route(matmul(n, router))              ng = all_gather(n)           issued
//   ng = all_gather(n); wg = all_gather(w)    w = route(matmul(n, router)); wg = all_gather(w)
//   y = experts(ng, wg)               ->      g = matmul(n, gate)          runs meanwhile
//   s = reduce_scatter(y)                     y = experts(ng, wg)          needs both
//   g = matmul(n, gate); ..                   s = reduce_scatter(y); ..    issued; the rest of the shared network
//
// Times are those of run.costs, or rough ones (ops/op_times.hpp). A window is rewritten only if that makes it shorter
// by these times: hops that attention hides stay where they are. Only the order of independent ops changes;
// weight gradients follow the ops that they followed. The gathered values that a layer's attention reads live longer,
// at most since the attention of the layer before.
#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

#include "espalier/deck/expert_parallel.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/ops/list_schedule.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

/// A window is rewritten if it becomes shorter by this share of its kernels. How long experts take depends on routing,
/// so windows with their transfers must promise more.
constexpr double kWorthwhile = 0.002, kWorthwhileForExperts = 0.01;

bool IsAttention(const Op& op) {
  return op.kind == OpKind::kAttention || op.kind == OpKind::kAttentionGrad || op.kind == OpKind::kAttentionMerge;
}

class WindowOverlapper {
 public:
  WindowOverlapper(Graph& graph, const PassContext& context)
      : graph_(graph),
        mesh_(context.mesh),
        times_(TimesOf(context.deck)),
        sizes_follow_times_(context.sizes_follow_times),
        defers_w_(context.schedule.DefersW()),
        context_(context.deck.overlap.context),
        experts_(context.deck.overlap.experts) {}

  void Run() {
    Rewriter old(graph_);
    for (Op& op : old.ops) {
      if (LeavesWindow(op)) Close();
      const bool last = IsAttention(op);
      window_.push_back(std::move(op));
      if (last) Close();
    }
    Close();
  }

 private:
  /// W belongs to backward.
  static Role DirectionOf(const Op& op) { return op.role == Role::kW ? Role::kB : op.role; }
  bool LeavesWindow(const Op& op) const {
    if (window_.empty()) return false;
    const Op& first = window_.front();
    return op.chunk != first.chunk || DirectionOf(op) != DirectionOf(first);
  }

  bool IsTransfer(const Op& op) const {
    return (context_ && IsContextTransfer(graph_, op)) || (experts_ && IsExpertTransfer(graph_, op));
  }

  void Close() {
    const auto is_transfer = [&](const Op& op) { return IsTransfer(op); };
    const auto is_matmul = [](const Op& op) { return op.kind == OpKind::kMatmul; };
    if (std::ranges::any_of(window_, is_transfer) && std::ranges::any_of(window_, is_matmul)) Rewrite();
    std::ranges::move(window_, std::back_inserter(graph_.ops));
    window_.clear();
  }
  using Window = std::vector<Op>;
  void Rewrite() {
    const Window split = WithSplitTransfers();
    std::vector<const Window*> forms = {&window_};
    if (split.size() > window_.size()) forms.push_back(&split);
    if (!sizes_follow_times_ && &times_ != &RoughTimes())
      forms = {Fastest(forms, RoughTimes()).size() == window_.size() ? &window_ : &split};
    window_ = Fastest(forms, times_);
  }
  /// The first form as it is, or one of them rearranged. More messages must save the time that they take, too.
  Window Fastest(const std::vector<const Window*>& forms, const OpTimes& times) const {
    Window best = *forms[0];
    const std::vector<LaneTask> old = TasksOf(best, times);
    const bool of_experts = std::ranges::any_of(best, [&](const Op& op) { return IsExpertTransfer(graph_, op); });
    const double least_gain = of_experts ? kWorthwhileForExperts : kWorthwhile;
    double shortest = TimeOf(old, Numbers(best.size())) - least_gain * TimeOnLane(old, kComputeLane);
    for (const Window* ops : forms) {
      const std::vector<LaneTask> tasks = ops == forms[0] ? old : TasksOf(*ops, times);
      const std::vector<int> order = ScheduleMessages(tasks);
      const double more = TimeOnLane(tasks, kMessageLane) - TimeOnLane(old, kMessageLane);
      const double time = TimeOf(tasks, order) + more;
      if (time >= shortest) continue;
      shortest = time;
      best.clear();
      for (int i : order) best.push_back((*ops)[static_cast<size_t>(i)]);
    }
    return best;
  }
  static std::vector<int> Numbers(size_t count) {
    std::vector<int> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }
  static double TimeOnLane(const std::vector<LaneTask>& tasks, int lane) {
    double time = 0;
    for (const LaneTask& task : tasks) time += task.lane == lane ? task.time : 0;
    return time;
  }

  /// The ops of a window and what has to come before each: what it reads, and earlier writers of what it writes. An op
  /// that is not of forward or backward stays after the kernels that it followed. Attention stays the last.
  std::vector<LaneTask> TasksOf(const std::vector<Op>& ops, const OpTimes& times) const {
    std::vector<LaneTask> tasks;
    std::map<int, int> made;
    int main = -1;
    for (const Op& op : ops) {
      const int number = static_cast<int>(tasks.size());
      const bool transfer = IsTransfer(op);
      LaneTask task{.lane = transfer ? kMessageLane : kComputeLane,
                    .fills_gaps = op.role != Role::kF && op.role != Role::kB};
      // Nothing in the window waits for weights for long.
      if (!IsWeightTransfer(graph_, op) && !(task.fills_gaps && defers_w_)) task.time = times.Of(graph_, op, mesh_);
      for (const std::vector<int>* values : {&op.inputs, &op.outputs})
        for (int v : *values)
          if (const auto found = made.find(v); found != made.end()) task.needs.push_back(found->second);
      for (int v : op.outputs) made[v] = number;
      if (task.fills_gaps && main >= 0) task.needs.push_back(main);
      if (!task.fills_gaps && !transfer) main = number;
      tasks.push_back(std::move(task));
    }
    if (IsAttention(ops.back())) tasks.back().after = Numbers(tasks.size() - 1);
    return tasks;
  }

  /// The window with a message per tensor, in the order in which its ops read them.
  std::vector<Op> WithSplitTransfers() const {
    std::vector<Op> ops;
    for (size_t i = 0; i < window_.size(); ++i) {
      const Op& op = window_[i];
      if (!IsTransfer(op) || !IsCollective(op.kind)) {
        ops.push_back(op);
        continue;
      }
      std::vector<size_t> tensors(op.inputs.size());
      std::iota(tensors.begin(), tensors.end(), size_t{0});
      std::ranges::stable_sort(tensors, {}, [&](size_t t) { return FirstReader(op.outputs[t], i); });
      for (size_t t : tensors) {
        Op part = op;
        part.inputs = {op.inputs[t]};
        part.outputs = {op.outputs[t]};
        ops.push_back(std::move(part));
      }
    }
    return ops;
  }
  size_t FirstReader(int value, size_t from) const {
    while (from < window_.size() && std::ranges::count(window_[from].inputs, value) == 0) ++from;
    return from;
  }

  Graph& graph_;
  const Mesh& mesh_;
  const OpTimes& times_;
  const bool sizes_follow_times_;
  const bool defers_w_, context_, experts_;
  std::vector<Op> window_;
};

}  // namespace

void OverlapWindows(Graph& graph, const PassContext& context) {
  const Deck::Overlap& overlap = context.deck.overlap;
  if ((overlap.context && context.mesh.Degree(Axis::kCp) > 1) ||
      (overlap.experts && HasExpertLane(context.deck.parallel)))
    WindowOverlapper(graph, context).Run();
}

}  // namespace espalier
