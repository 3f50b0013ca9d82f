// Values that cross stages: a send where they are made and a recv, a value of its own, where they are needed. A send or
// recv belongs to the role that makes the value, so both sides meet in graph order. States go first of all, in role P;
// accumulators, which are whole only after the last microbatch, go in front of the step op that reads them. Scalars
// that every stage needs (loss, count, squares) are exchanged by one gather_stages in front of the op that reads them.
#include <map>
#include <set>

#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

class Cutter {
 public:
  Cutter(Graph& graph, const std::vector<int>& stage_of_chunk) : graph_(graph), stage_(stage_of_chunk) {}

  void Run() {
    std::vector<Op> ops = std::move(graph_.ops);
    graph_.ops.clear();
    FindCrossings(ops);
    for (size_t i = 0; i < ops.size(); ++i) {
      for (const Crossing& crossing : before_[i]) Send(crossing);
      Op& op = ops[i];
      for (int& input : op.inputs) input = At(input, op.chunk);
      if (op.chunk == kAllChunks) GatherScalars(op);
      graph_.ops.push_back(std::move(op));
      for (const Crossing& crossing : after_[i]) Send(crossing);
    }
    graph_.Renumber();
  }

 private:
  /// A value that another stage needs, with role and layer of its send.
  struct Crossing {
    int value, to_chunk;
    Role role;
    int layer;
  };

  bool Crosses(int value, int chunk) const {
    const int from = graph_.values[static_cast<size_t>(value)].chunk;
    return from != kAllChunks && chunk != kAllChunks &&
           stage_[static_cast<size_t>(from)] != stage_[static_cast<size_t>(chunk)];
  }

  void FindCrossings(const std::vector<Op>& ops) {
    before_.resize(ops.size());
    after_.resize(ops.size());
    std::map<int, size_t> maker;
    std::set<std::pair<int, int>> seen;
    for (size_t i = 0; i < ops.size(); ++i)
      for (int o : ops[i].outputs)
        if (graph_.values[static_cast<size_t>(o)].kind == ValueKind::kActivation) maker[o] = i;
    for (size_t i = 0; i < ops.size(); ++i)
      for (int v : ops[i].inputs) {
        if (!Crosses(v, ops[i].chunk) || !seen.emplace(v, ops[i].chunk).second) continue;
        const ValueKind kind = graph_.values[static_cast<size_t>(v)].kind;
        if (kind == ValueKind::kActivation)
          after_[maker.at(v)].push_back({v, ops[i].chunk, ops[maker.at(v)].role, ops[maker.at(v)].layer});
        else if (kind == ValueKind::kAccumulator)
          before_[i].push_back({v, ops[i].chunk, ops[i].role, ops[i].layer});
        else
          before_[0].push_back({v, ops[i].chunk, Role::kP, 0});
      }
  }

  void Send(const Crossing& crossing) {
    const auto [value, to_chunk, role, layer] = crossing;
    Value there = graph_.values[static_cast<size_t>(value)];
    CHECK(there.type.placements.Partial().Empty(), "{} crosses stages while partial", there.name);
    const int from_chunk = there.chunk;
    Op send{"send", {value}, {},        {{{"to", double(stage_[static_cast<size_t>(to_chunk)])}}, {}},
            role,   layer,   from_chunk};
    there.name = graph_.Unique(there.name + ".at" + std::to_string(to_chunk));
    there.kind = ValueKind::kActivation;
    there.chunk = to_chunk;
    there.frequency = FrequencyOf(role);
    const int id = graph_.AddValue(std::move(there));
    Op recv{"recv", {}, {id}, {{{"from", double(stage_[static_cast<size_t>(from_chunk)])}}, {}}, role, layer, to_chunk};
    arrived_[{value, to_chunk}] = id;
    graph_.ops.push_back(std::move(send));
    graph_.ops.push_back(std::move(recv));
  }

  int At(int value, int chunk) const {
    const auto it = arrived_.find({value, chunk});
    return it == arrived_.end() ? value : it->second;
  }

  void GatherScalars(Op& op) {
    if (StageCount() == 1) return;
    Op gather{"gather_stages", {},       {},        {{{"axes", double(AxisSet{Axis::kPp}.bits())}}, {}},
              Role::kS,        op.layer, kAllChunks};
    for (int& input : op.inputs) {
      const Value& v = graph_.values[static_cast<size_t>(input)];
      if (v.chunk == kAllChunks) continue;
      CHECK(v.type.shape.empty() && v.type.dtype == Dtype::kF32, "{}: only f32 scalars go to all stages", v.name);
      Value everywhere = v;
      everywhere.name = graph_.Unique(v.name + ".everywhere");
      everywhere.kind = ValueKind::kActivation;
      everywhere.chunk = kAllChunks;
      everywhere.frequency = Frequency::kStep;
      gather.inputs.push_back(input);
      input = graph_.AddValue(std::move(everywhere));
      gather.outputs.push_back(input);
    }
    if (!gather.inputs.empty()) graph_.ops.push_back(std::move(gather));
  }
  int StageCount() const {
    int stages = 0;
    for (int s : stage_) stages = std::max(stages, s + 1);
    return stages;
  }

  Graph& graph_;
  const std::vector<int>& stage_;
  std::vector<std::vector<Crossing>> before_, after_;  // by op
  std::map<std::pair<int, int>, int> arrived_;         // (value, chunk) -> its copy there
};

}  // namespace

void Cut(Graph& graph, const std::vector<int>& stage_of_chunk) { Cutter(graph, stage_of_chunk).Run(); }

}  // namespace espalier
