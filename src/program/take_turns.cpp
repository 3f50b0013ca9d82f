#include "take_turns.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <ranges>

#include "espalier/ops/rough_time.hpp"

namespace espalier {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Turns {
 public:
  Turns(const Graph& graph, const GraphFacts& facts, const Mesh& mesh, const std::vector<int>& a,
        const std::vector<int>& b)
      : graph_(graph), facts_(facts), lists_{ListOf(a, mesh), ListOf(b, mesh)} {}

  std::vector<int> Run() {
    std::vector<int> order;
    for (int next = Next(); next >= 0; next = Next()) {
      Issue(lists_[static_cast<size_t>(next)]);
      order.push_back(next);
    }
    return order;
  }

 private:
  struct Task {
    int op;
    Lane lane;
    double time;
    double until_message;  // kernels from this op to the next message of its list; 0: it is one
  };
  struct List {
    std::vector<Task> tasks;
    size_t position = 0;
    std::map<int, double> ready;  // by value: when the list has made it

    bool AtEnd() const { return position == tasks.size(); }
    const Task& Head() const { return tasks[position]; }
  };

  List ListOf(const std::vector<int>& ops, const Mesh& mesh) const {
    List list;
    for (int op : ops) list.tasks.push_back({op, facts_.ops[op].lane, RoughTime(graph_, graph_.op(op), mesh), 0});
    double until = kNever;
    for (Task& task : std::views::reverse(list.tasks)) {
      until = task.lane == Lane::kCompute ? until + task.time : 0;
      task.until_message = until;
    }
    return list;
  }

  /// Start of the next op of a list.
  double Start(const List& list) const {
    const Task& task = list.Head();
    double start = lane_ends_[task.lane];
    for (int input : graph_.op(task.op).inputs)
      if (const auto made = list.ready.find(input); made != list.ready.end()) start = std::max(start, made->second);
    return start;
  }

  int Next() const {
    const auto& [a, b] = lists_;
    if (a.AtEnd() || b.AtEnd()) return a.AtEnd() ? (b.AtEnd() ? -1 : 1) : 0;
    if (b.Head().lane == Lane::kPpSend) return 0;
    return Key(b) < Key(a) ? 1 : 0;
  }
  /// The smaller key goes first.
  std::pair<double, double> Key(const List& list) const { return {Start(list), list.Head().until_message}; }

  void Issue(List& list) {
    const Task& task = list.Head();
    const double end = Start(list) + task.time;
    lane_ends_[task.lane] = end;
    for (int output : graph_.op(task.op).outputs) list.ready[output] = end;
    ++list.position;
  }

  const Graph& graph_;
  const GraphFacts& facts_;
  std::array<List, 2> lists_;
  ByLane<double> lane_ends_{};
};

}  // namespace

std::vector<int> TakeTurns(const Graph& graph, const GraphFacts& facts, const Mesh& mesh, const std::vector<int>& a,
                           const std::vector<int>& b) {
  return Turns(graph, facts, mesh, a, b).Run();
}

}  // namespace espalier
