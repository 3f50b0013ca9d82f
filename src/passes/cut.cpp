// Values that cross stages: a send after their producer and a recv, which makes a copy, on the stage that needs them.
// Send and recv have the role of the producer, so both sides meet in graph order. States are sent first of all, in role
// P. Accumulators are complete only after the last microbatch; they are sent before the step op that reads them.
// Scalars that every stage needs (loss, count, squares) are exchanged by one gather_stages before the op that reads
// them.
#include <map>
#include <set>

#include "espalier/graph/rewriter.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

class Cutter {
 public:
  Cutter(Graph& graph, const std::vector<int>& stage_of_chunk) : graph_(graph), stage_(stage_of_chunk) {}

  void Run() {
    Rewriter old(graph_);
    FindCrossings(old.ops);
    for (size_t i = 0; i < old.ops.size(); ++i) {
      for (const Crossing& crossing : before_[i]) Send(crossing);
      Op& op = old.ops[i];
      for (int& input : op.inputs) input = At(input, op.chunk);
      if (op.chunk == kAllChunks) GatherScalars(op);
      graph_.ops.push_back(std::move(op));
      for (const Crossing& crossing : after_[i]) Send(crossing);
    }
  }

 private:
  /// A value that another stage needs, with the role and layer of its send.
  struct Crossing {
    int value, to_chunk;
    Role role;
    int layer;
  };

  bool Crosses(int value, int chunk) const {
    const int from = graph_.value(value).chunk;
    return from != kAllChunks && chunk != kAllChunks && stage_[from] != stage_[chunk];
  }

  void FindCrossings(const std::vector<Op>& ops) {
    before_.resize(ops.size());
    after_.resize(ops.size());
    std::set<std::pair<int, int>> seen;
    for (size_t i = 0; i < ops.size(); ++i)
      for (int v : ops[i].inputs) {
        if (!Crosses(v, ops[i].chunk) || !seen.emplace(v, ops[i].chunk).second) continue;
        const auto& [kind, producer] = std::pair(graph_.value(v).kind, graph_.value(v).producer);
        if (kind == ValueKind::kActivation)
          after_[producer].push_back({v, ops[i].chunk, ops[producer].role, ops[producer].layer});
        else if (kind == ValueKind::kAccumulator)
          before_[i].push_back({v, ops[i].chunk, ops[i].role, ops[i].layer});
        else
          before_[0].push_back({v, ops[i].chunk, Role::kP, 0});
      }
  }

  void Send(const Crossing& crossing) {
    const auto [value, to_chunk, role, layer] = crossing;
    Value copy = graph_.value(value);
    CHECK(copy.type.placements.Partial().Empty(), "{} crosses stages while partial", copy.name);
    const int from_chunk = copy.chunk;
    Op send{OpKind::kSend, {value}, {}, {{{"to", double(stage_[to_chunk])}}, {}}, role, layer, from_chunk};
    copy.name = graph_.Unique(copy.name + ".at" + std::to_string(to_chunk));
    copy.kind = ValueKind::kActivation;
    copy.chunk = to_chunk;
    copy.frequency = FrequencyOf(role);
    const int id = graph_.AddValue(std::move(copy));
    Op recv{OpKind::kRecv, {}, {id}, {{{"from", double(stage_[from_chunk])}}, {}}, role, layer, to_chunk};
    copies_[{value, to_chunk}] = id;
    graph_.ops.push_back(std::move(send));
    graph_.ops.push_back(std::move(recv));
  }

  int At(int value, int chunk) const {
    const auto it = copies_.find({value, chunk});
    return it == copies_.end() ? value : it->second;
  }

  void GatherScalars(Op& op) {
    if (StageCount() == 1) return;
    Op gather{OpKind::kGatherStages,
              {},
              {},
              {{{"axes", double(AxisSet{Axis::kPp}.bits())}}, {}},
              Role::kS,
              op.layer,
              kAllChunks};
    for (int& input : op.inputs) {
      const Value& v = graph_.value(input);
      if (v.chunk == kAllChunks) continue;
      CHECK(Volume(v.type.shape) == 1 && v.type.dtype == Dtype::kF32, "{}: only f32 scalars go to all stages", v.name);
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
  std::map<std::pair<int, int>, int> copies_;          // (value, chunk) -> its copy there
};

}  // namespace

void Cut(Graph& graph, const PassContext& context) { Cutter(graph, context.stage_of_chunk).Run(); }

}  // namespace espalier
