#include "job_ops.hpp"

#include <algorithm>
#include <limits>
#include <ranges>
#include <set>
#include <span>

#include "espalier/graph/transfers.hpp"
#include "espalier/ops/list_schedule.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/program/compile.hpp"

namespace espalier {
namespace {

static_assert(static_cast<int>(Lane::kCompute) == kComputeLane, "AppendTasks numbers lanes like Lane");

bool IsWork(const Op& op) { return Define(op.kind).kernel.work.flops != nullptr; }

std::vector<int> Interleaved(const Graph& graph, const Segments& segments, int chunk, const std::vector<Role>& roles) {
  std::vector<int> ops;
  for (Role role : roles)
    if (const auto segment = segments.find({chunk, role}); segment != segments.end())
      ops.insert(ops.end(), segment->second.begin(), segment->second.end());
  std::sort(ops.begin(), ops.end());
  std::erase_if(ops, [&](int op) { return graph.op(op).kind == OpKind::kRecv; });
  return ops;
}

/// The first op after so many layers with matmuls.
size_t AfterLayers(const Graph& graph, const std::vector<int>& ops, int layers) {
  int seen = 0, layer = kUnset;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& op = graph.op(ops[i]);
    if (!IsWork(op) || op.layer == layer) continue;
    if (seen++ == layers) return i;
    layer = op.layer;
  }
  return ops.size();
}

/// The last op that can run under a message; -1: none.
int LastWork(const Graph& graph, const std::vector<int>& ops) {
  const auto last = std::find_if(ops.rbegin(), ops.rend(), [&](int op) { return IsWork(graph.op(op)); });
  return last == ops.rend() ? -1 : *last;
}

/// The first op after all layers with matmuls but the last.
size_t BeforeLastLayer(const Graph& graph, const std::vector<int>& ops) {
  size_t start = 0;
  for (int layer = kUnset; size_t i : std::views::iota(size_t{0}, ops.size())) {
    const Op& op = graph.op(ops[i]);
    if (!IsWork(op) || op.layer == layer) continue;
    layer = op.layer;
    start = i;
  }
  return start;
}

/// Takes the gathers of parameters before the first matmul out of the list, and their copies from the host.
std::vector<int> TakeFirstGathers(const Graph& graph, std::vector<int>& ops) {
  std::set<int> gathered;  // values
  const auto waits = [&](int id) {
    const Op& op = graph.op(id);
    const bool moves = IsReshard(op.kind) || BringsParameters(graph, op);
    const bool ready = moves && std::all_of(op.inputs.begin(), op.inputs.end(), [&](int v) {
                         return graph.value(v).frequency == Frequency::kStep || gathered.count(v) > 0;
                       });
    if (ready) gathered.insert(op.outputs.begin(), op.outputs.end());
    return !ready;
  };
  const auto work = std::find_if(ops.begin(), ops.end(), [&](int op) { return IsWork(graph.op(op)); });
  std::vector<int> first, others;
  for (auto op = ops.begin(); op != work; ++op) (waits(*op) ? others : first).push_back(*op);
  ops.erase(ops.begin(), work);
  ops.insert(ops.begin(), others.begin(), others.end());
  return first;
}

std::vector<JobOp> OfMicrobatch(int microbatch, const std::vector<int>& ops) {
  std::vector<JobOp> list;
  for (int op : ops) list.push_back({op, microbatch});
  return list;
}

/// Appends a list of ops, which keep their order. Its sends come after all tasks so far.
void AppendTasks(const Graph& graph, const GraphFacts& facts, const Mesh& mesh, const OpTimes& times,
                 const std::vector<int>& list, std::vector<LaneTask>& tasks) {
  const int begin = static_cast<int>(tasks.size());
  std::map<int, int> writers;  // by value: the last op of the list so far that writes it
  for (int id : list) {
    const Op& op = graph.op(id);
    const int number = static_cast<int>(tasks.size());
    LaneTask task{.lane = static_cast<int>(facts.ops[id].lane), .time = times.Of(graph, op, mesh)};
    for (int v : op.inputs)
      if (const auto found = writers.find(v); found != writers.end()) task.needs.push_back(found->second);
    for (int v : op.outputs) writers[v] = number;
    if (number > begin) task.after.push_back(number - 1);
    if (begin > 0 && facts.ops[id].lane == Lane::kPpSend) task.after.push_back(begin - 1);
    tasks.push_back(std::move(task));
  }
  double until = std::numeric_limits<double>::infinity();
  for (auto task = tasks.rbegin(); task != tasks.rend() - begin; ++task)
    task->until_message = until = task->lane == kComputeLane ? until + task->time : 0;
  double kernels = 0;
  const std::span appended = std::span(tasks).subspan(static_cast<size_t>(begin));
  for (LaneTask& task : appended) {
    task.share_before = kernels;
    if (task.lane == kComputeLane) kernels += task.time;
  }
  if (kernels > 0)
    for (LaneTask& task : appended) task.share_before /= kernels;
}

/// A microbatch more in memory counts as this share of the time of a joint job.
constexpr double kMicrobatchInMemory = 0.025;

/// Time of an order of forward, whose tasks come before number `backward`, and of backward. Where forward runs ahead,
/// its values are in memory beside those that backward has not freed yet. On a stage of a pipeline it sends earlier
/// then, for which another stage may wait, so that costs nothing.
double CostOf(const std::vector<LaneTask>& tasks, const std::vector<int>& order, int backward) {
  const auto sends = [](const LaneTask& task) { return task.lane == static_cast<int>(Lane::kPpSend); };
  if (std::ranges::any_of(tasks, sends)) return TimeOf(tasks, order);
  double done[2] = {0, 0}, ahead = 0;  // shares of the kernels
  for (int task : order) {
    done[task < backward ? 0 : 1] = tasks[static_cast<size_t>(task)].share_before;
    ahead = std::max(ahead, done[0] - done[1]);
  }
  return TimeOf(tasks, order) * (1 + kMicrobatchInMemory * ahead);
}

}  // namespace

int MessageAddedBy(const Graph& graph, const Op& op) {
  if (op.kind == OpKind::kCopyOut && IsStagedSum(graph.value(op.inputs[0])))
    return MessageAddedBy(graph, graph.op(graph.value(op.inputs[0]).producer));
  const bool widens = op.kind == OpKind::kCast && HandlesGradients(graph, op);
  if (op.kind != OpKind::kAccumulate && !widens) return -1;
  const int producer = graph.value(op.inputs[0]).producer;
  if (producer < 0 || IsCommunication(graph.op(producer).kind)) return producer;
  return MessageAddedBy(graph, graph.op(producer));
}

JobOps OpsOfJob(const Graph& graph, const Segments& segments, int chunk, const std::vector<Role>& roles, LastSums sums,
                FirstGathers gathers) {
  std::vector<int> ops = Interleaved(graph, segments, chunk, roles), first, late;
  if (gathers == FirstGathers::kInTheJobBefore) first = TakeFirstGathers(graph, ops);
  if (sums == LastSums::kInTheNextJob) {
    const int last = LastWork(graph, ops);
    const auto begin = std::stable_partition(ops.begin(), ops.end(),
                                             [&](int op) { return MessageAddedBy(graph, graph.op(op)) <= last; });
    late.assign(begin, ops.end());
    ops.erase(begin, ops.end());
  }
  return {OfMicrobatch(0, first), OfMicrobatch(0, ops), OfMicrobatch(0, late),
          AfterLayers(graph, ops, kLayersUnderLateSums), BeforeLastLayer(graph, ops)};
}

JobOps Interleave(const Graph& graph, const GraphFacts& facts, const Mesh& mesh, const OpTimes& times, const JobOps& a,
                  const JobOps& b) {
  JobOps both;
  std::vector<int> ops[2];
  for (int microbatch : {0, 1}) {
    const JobOps& job = microbatch == 0 ? a : b;
    for (const JobOp& op : job.first) both.first.push_back({op.op, microbatch});
    for (const JobOp& op : job.ops) ops[microbatch].push_back(op.op);
    for (const JobOp& op : job.late) both.late.push_back({op.op, microbatch});
  }
  std::vector<LaneTask> tasks;
  std::vector<std::vector<int>> orders;
  for (const OpTimes* of_ops : WithRough(times)) {
    std::vector<LaneTask> timed;
    for (const std::vector<int>& list : ops) AppendTasks(graph, facts, mesh, *of_ops, list, timed);
    orders.push_back(ScheduleLists(timed));
    orders.push_back(ScheduleEvenly(timed));
    if (tasks.empty()) tasks = std::move(timed);
  }
  const auto backward = static_cast<int>(ops[0].size());
  std::vector<double> costs;
  for (const std::vector<int>& order : orders) costs.push_back(CostOf(tasks, order, backward));
  std::vector<size_t> positions[2];  // by microbatch and op: where it went
  for (int task : orders[static_cast<size_t>(std::ranges::min_element(costs) - costs.begin())]) {
    const int microbatch = task < backward ? 0 : 1;
    both.ops.push_back({ops[microbatch][positions[microbatch].size()], microbatch});
    positions[microbatch].push_back(both.ops.size() - 1);
  }
  const auto position = [&](int microbatch, size_t index) {
    return index < positions[microbatch].size() ? positions[microbatch][index] : both.ops.size();
  };
  // Sums bound memory, so the earlier of two; gathers of the next job overlap with the layers that come last.
  both.late_of_last = std::min(position(0, a.late_of_last), position(1, b.late_of_last));
  both.first_of_next = std::max(position(0, a.first_of_next), position(1, b.first_of_next));
  return both;
}

}  // namespace espalier
