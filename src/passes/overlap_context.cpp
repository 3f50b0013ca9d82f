// cp communication overlaps with matmuls. A window is what runs between one attention and the next, in forward or in
// backward. In it a transfer over cp, and what it needs, goes first; it is issued as soon as its inputs are made. While
// it travels, ops run that do not need it, and those that read it come last. In forward, and in backward with
// recompute:
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
// Times are rough and follow from the graph alone (ops/rough_time.hpp). A window is rewritten only if that makes it
// shorter by these times: hops that attention hides stay where they are. Only the order of independent ops changes;
// weight gradients follow the ops that they followed. What attention reads of one layer, gathered, lives longer, at
// most since the attention of the layer before.
#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "espalier/graph/rewriter.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/ops/rough_time.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

/// Other messages may use the same links, so that a transfer takes so many times as long; ops are ordered for that.
constexpr double kContextPatience = 4;
/// A window is rewritten if it becomes shorter by this share of its kernels.
constexpr double kWorthwhile = 0.01;

bool IsMain(const Op& op) { return op.role == Role::kF || op.role == Role::kB; }
bool IsAttention(const Op& op) {
  return op.kind == OpKind::kAttention || op.kind == OpKind::kAttentionGrad || op.kind == OpKind::kAttentionMerge;
}

/// The ops of a window and what has to come before each.
class Window {
 public:
  Window(const Graph& graph, const Mesh& mesh, const std::vector<Op>& ops, bool defers_w) : ops_(ops) {
    std::map<int, int> made;
    int main = -1;
    for (int i = 0; i < Size(); ++i) {
      const Op& op = ops[static_cast<size_t>(i)];
      Task& task = tasks_.emplace_back();
      task.transfer = IsContextTransfer(graph, op);
      task.main = IsMain(op);
      // Nothing in the window waits for weights for long.
      task.time = IsWeightTransfer(graph, op) || (!task.main && defers_w) ? 0 : RoughTime(graph, op, mesh);
      for (int v : op.inputs)
        if (const auto found = made.find(v); found != made.end()) task.needs.push_back(found->second);
      for (int v : op.outputs) {
        if (const auto found = made.find(v); found != made.end()) task.needs.push_back(found->second);
        made[v] = i;
      }
      if (!task.main && main >= 0) task.needs.push_back(main);
      if (task.main && !task.transfer) main = i;
      task.after_transfer =
          std::ranges::any_of(task.needs, [&](int n) { return At(n).transfer || At(n).after_transfer; });
      task.last = IsAttention(op);
    }
    FindExposed();
  }

  /// By rough times, in the order given.
  double TimeOf(const std::vector<int>& order) const {
    Clock clock(tasks_, 1);
    for (int i : order) clock.Run(i);
    return clock.End();
  }
  double KernelTime() const {
    double time = 0;
    for (const Task& task : tasks_) time += task.transfer ? 0 : task.time;
    return time;
  }
  std::vector<int> OldOrder() const {
    std::vector<int> order(ops_.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  /// Exposed transfers and what they need as early as possible, then in the old order what does not have to wait.
  std::vector<int> NewOrder() {
    issued_.assign(ops_.size(), false);
    order_.clear();
    clock_.emplace(tasks_, kContextPatience);
    for (int i = 0; i < Size(); ++i)
      if (At(i).exposed && !At(i).after_transfer) IssueWithNeeds(i);
    while (std::ssize(order_) < Size()) {
      IssueOpen([](const Task& t) { return t.exposed; });
      IssueOpen([](const Task& t) { return !t.main; });
      if (const int next = Next(); next >= 0) Issue(next);
    }
    return order_;
  }

 private:
  struct Task {
    double time = 0;
    bool main = false, transfer = false;
    bool last = false;            // the attention at the end
    bool exposed = false;         // a transfer that others wait for in the old order
    bool after_transfer = false;  // it needs a transfer of the window, perhaps indirectly
    std::vector<int> needs;
  };

  /// Two lanes, one that computes and one for transfers; every op waits for what it needs. A transfer also waits for
  /// the kernels issued before it, which may have used the memory that it gets.
  class Clock {
   public:
    Clock(const std::vector<Task>& tasks, double patience)
        : tasks_(tasks), patience_(patience), end_(tasks.size(), 0) {}
    double Ready(int i) const {
      double ready = 0;
      for (int n : tasks_[static_cast<size_t>(i)].needs) ready = std::max(ready, end_[static_cast<size_t>(n)]);
      return ready;
    }
    void Run(int i) {
      const Task& task = tasks_[static_cast<size_t>(i)];
      double& lane = task.transfer ? transfers_ : compute_;
      if (task.transfer) lane = std::max(lane, compute_);
      lane = end_[static_cast<size_t>(i)] = std::max(lane, Ready(i)) + (task.transfer ? patience_ : 1) * task.time;
    }
    double Compute() const { return compute_; }
    double End(int i) const { return end_[static_cast<size_t>(i)]; }
    double End() const { return std::max(compute_, transfers_); }

   private:
    const std::vector<Task>& tasks_;
    const double patience_;
    std::vector<double> end_;
    double compute_ = 0, transfers_ = 0;
  };

  int Size() const { return static_cast<int>(ops_.size()); }
  const Task& At(int i) const { return tasks_[static_cast<size_t>(i)]; }
  /// Finds the transfers that an op waits for, or that end after the last op.
  void FindExposed() {
    Clock clock(tasks_, kContextPatience);
    for (int i = 0; i < Size(); ++i) {
      for (int n : At(i).needs)
        if (!At(i).transfer) NoteIfExposed(n, clock);
      clock.Run(i);
    }
    for (int i = 0; i < Size(); ++i) NoteIfExposed(i, clock);
  }
  void NoteIfExposed(int i, const Clock& now) {
    Task& task = tasks_[static_cast<size_t>(i)];
    if (task.transfer && now.End(i) > now.Compute()) task.exposed = true;
  }
  bool IsOpen(int i) const {
    if (At(i).last && std::ssize(order_) + 1 < Size()) return false;
    return !issued_[static_cast<size_t>(i)] &&
           std::ranges::all_of(At(i).needs, [&](int n) { return issued_[static_cast<size_t>(n)]; });
  }
  void Issue(int i) {
    issued_[static_cast<size_t>(i)] = true;
    order_.push_back(i);
    clock_->Run(i);
  }
  void IssueWithNeeds(int i) {
    if (issued_[static_cast<size_t>(i)]) return;
    std::vector<int> needs = At(i).needs;
    std::ranges::sort(needs);
    for (int n : needs) IssueWithNeeds(n);
    if (!At(i).transfer) IssueOpen([](const Task& t) { return !t.main; });
    if (!issued_[static_cast<size_t>(i)]) Issue(i);
  }
  template <typename F>
  void IssueOpen(const F& wanted) {
    for (int i = 0; i < Size(); ++i)
      if (wanted(At(i)) && IsOpen(i)) Issue(i);
  }
  /// The first open op that waits for no transfer; else the one whose transfer arrives first.
  int Next() const {
    int next = -1;
    double soonest = std::numeric_limits<double>::infinity();
    for (int i = 0; i < Size(); ++i) {
      if (!IsOpen(i) || !At(i).main) continue;
      const double start = std::max(clock_->Compute(), clock_->Ready(i));
      if (start < soonest) next = i, soonest = start;
    }
    return next;
  }

  const std::vector<Op>& ops_;
  std::vector<Task> tasks_;
  std::vector<bool> issued_;
  std::vector<int> order_;
  std::optional<Clock> clock_;
};

class ContextOverlapper {
 public:
  ContextOverlapper(Graph& graph, const PassContext& context)
      : graph_(graph), mesh_(context.mesh), defers_w_(context.schedule.DefersW()) {}

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

  void Close() {
    const auto is_transfer = [&](const Op& op) { return IsContextTransfer(graph_, op); };
    const auto is_matmul = [](const Op& op) { return op.kind == OpKind::kMatmul; };
    if (std::ranges::any_of(window_, is_transfer) && std::ranges::any_of(window_, is_matmul)) Rewrite();
    std::ranges::move(window_, std::back_inserter(graph_.ops));
    window_.clear();
  }
  /// More messages must save their latency, too.
  void Rewrite() {
    Window old(graph_, mesh_, window_, defers_w_);
    double shortest = old.TimeOf(old.OldOrder()) - kWorthwhile * old.KernelTime();
    std::vector<Op> best = window_;
    const std::vector<Op> split = WithSplitTransfers();
    for (const std::vector<Op>* ops : {&std::as_const(window_), &split}) {
      Window window(graph_, mesh_, *ops, defers_w_);
      const std::vector<int> order = window.NewOrder();
      const double time = window.TimeOf(order) + kRoughLatency * double(ops->size() - window_.size());
      if (time >= shortest) continue;
      shortest = time;
      best.clear();
      for (int i : order) best.push_back((*ops)[static_cast<size_t>(i)]);
    }
    window_ = std::move(best);
  }

  /// The window with a message per tensor, in the order in which its ops read them.
  std::vector<Op> WithSplitTransfers() const {
    std::vector<Op> ops;
    for (size_t i = 0; i < window_.size(); ++i) {
      const Op& op = window_[i];
      if (!IsContextTransfer(graph_, op) || !IsCollective(op.kind)) {
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
  const bool defers_w_;
  std::vector<Op> window_;
};

}  // namespace

void OverlapContext(Graph& graph, const PassContext& context) {
  if (context.deck.overlap.context && context.mesh.Degree(Axis::kCp) > 1) ContextOverlapper(graph, context).Run();
}

}  // namespace espalier
