#include "tune/profile.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/expert_parallel.hpp"
#include "espalier/deck/offload.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/graph/local_range.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/util/error.hpp"
#include "tune/walk.hpp"

namespace espalier {
namespace {

constexpr int kLayers = 2;  // of a small model

/// [recompute] of a small model, which gathers as if nothing else were known. Layers that recompute different things
/// keep at least what they would keep if they recomputed everything.
Deck::Recompute RecomputeOf(const Deck& deck, RecomputeMode mode) {
  Deck::Recompute recompute = deck.recompute;
  recompute.mode = mode == RecomputeMode::kAuto || !deck.recompute.layers.empty() ? RecomputeMode::kFull : mode;
  recompute.layers.clear();
  recompute.regather = Regather::kAuto;
  return recompute;
}

/// The deck with two layers of one kind, on one pipeline stage, without offload, and without data parallelism but what
/// shares experts.
/// Layers for further tokens run with the head, and are like the last layer: models of other kinds have none.
Deck SmallModel(const Deck& deck, const LayerKind& kind, const Layout& layout) {
  Layout small = layout;
  const bool defers = layout.Traits().DefersW();
  if (!kind.experts) small.ep = 1;
  Deck changed = WithLayout(deck, small, {});
  small.pp = small.dp_replicate = 1;
  small.dp_shard = ExpertParallelOf(changed.parallel).dp_shard;
  small.schedule = defers ? ScheduleKind::kZeroBubbleH1 : ScheduleKind::k1F1B;
  small.chunks = 1;
  small.zero = 1;
  small.reduce = ReduceFrequency::kStep;
  SetLayout(changed, small);
  changed.recompute = RecomputeOf(deck, layout.recompute);
  changed.pipeline.split.clear();
  SetOffloadShares(changed, 0);
  changed.offload.layers.clear();
  changed.model = WithLayersOf(deck.model, kind, kLayers);
  if (kind != KindOf(deck.model, deck.model.layers)) changed.model.mtp_layers = 0;
  return WithSequences(std::move(changed), layout.micro * small.dp_shard);
}

bool IsBackward(const Op& op) { return op.role == Role::kB || op.role == Role::kW; }

/// A small model's program, and what it is an example of: the part `kind`, and if that is the kind of the model's last
/// layer, its embedding, its head and a layer for further tokens, too.
struct Example {
  const Compilation& c;
  Part kind;
  bool has_ends;  ///< embedding and head

  /// The part of the large model that a layer of the small one stands for. The first layer stands for none, and among
  /// layers for further tokens only the last one does.
  std::optional<Part> PartOf(int layer) const {
    if (layer == kLayers) return kind;
    if (!has_ends || layer < 0) return std::nullopt;
    const int last = kLayers + c.deck.model.mtp_layers;
    if (layer == 0) return kEmbedding;
    if (layer > last) return kHead;
    return layer == last ? std::optional(kFurther) : std::nullopt;
  }
  /// The same for times. Messages of a layer are hidden by the layer that ran before it, so backward is measured on the
  /// first layer, which runs after the second.
  std::optional<Part> TimedPartOf(const Op& op) const {
    if (!IsBackward(op) || op.layer < 1 || op.layer > kLayers) return PartOf(op.layer);
    return op.layer == 1 ? std::optional(kind) : std::nullopt;
  }
};

class MemoryReader {
 public:
  MemoryReader(const Example& example, LayerProfile& profile)
      : example_(example),
        graph_(*example.c.graph),
        mesh_(example.c.mesh),
        micro_(example.c.batch.micro),
        defers_w_(TraitsOf(example.c.schedule.kind).DefersW()),
        profile_(profile),
        last_read_(graph_.values.size(), -1) {
    for (size_t i = 0; i < graph_.ops.size(); ++i)
      if (IsBackward(graph_.ops[i]))
        for (int v : graph_.ops[i].inputs) last_read_[v] = static_cast<int>(i);
  }

  void Run() {
    ReadStates();
    ReadKept();
    ReadExtra(example_.kind);
    if (!example_.has_ends) return;
    ReadExtra(kEmbedding);
    ReadExtra(kHead);
    ReadExtra(kFurther);
    profile_.memory[kHead].done_in_forward = !HeadHasBackwardMatmuls();
  }

 private:
  int64_t BytesOf(int value) const {
    const Type& type = graph_.value(value).type;
    return Volume(LocalShape(type, mesh_, {})) * SizeOf(type.dtype);
  }
  /// For a microbatch of one sequence.
  int64_t RowBytes(int value) const { return BytesOf(value) / micro_; }
  bool OfMicrobatch(int value) const {
    const Value& v = graph_.value(value);
    return v.frequency == Frequency::kMicrobatch && v.kind == ValueKind::kActivation;
  }
  const Op* Producer(int value) const {
    const int producer = graph_.value(value).producer;
    return producer < 0 ? nullptr : &graph_.op(producer);
  }

  /// Parameters, accumulators and inputs by the part whose ops use them first.
  void ReadStates() {
    std::vector<bool> seen(graph_.values.size());
    for (const Op& op : graph_.ops) {
      const std::optional<Part> part = example_.PartOf(op.layer);
      if (op.role == Role::kS || op.role == Role::kU || !part) continue;
      PartMemory& memory = profile_.memory[*part];
      for (int v : op.inputs) {
        const Value& value = graph_.value(v);
        if (seen[v] || (!IsKept(value.kind) && value.kind != ValueKind::kInput)) continue;
        seen[v] = true;
        if (IsKept(value.kind)) memory.parameters.push_back(ShapeOf(v, op.layer));
        if (value.kind == ValueKind::kInput && value.frequency == Frequency::kMicrobatch) memory.inputs += RowBytes(v);
      }
      for (int v : op.outputs) {
        const Value& value = graph_.value(v);
        if (value.kind == ValueKind::kAccumulator && !seen[v]) memory.gradients.push_back(BytesOf(v));
        if (value.kind == ValueKind::kAccumulator) seen[v] = true;
        if (op.role == Role::kP && op.chunk == kAllChunks) profile_.prepared += BytesOf(v);
      }
    }
  }
  /// Bytes of a master or its copy, whichever the layer reads.
  ParameterShape ShapeOf(int weight, int layer) const {
    const Value& value = graph_.value(weight);
    const int state = value.kind == ValueKind::kCache ? graph_.Find(StateName(value.name)) : weight;
    Type type = graph_.value(state).type;
    const Deck::Parallel& p = example_.c.deck.parallel;
    const std::string_view names = graph_.value(state).layout;
    const bool experts = names.starts_with("experts");
    const AxisSet owners = StateAxesOf(names) - (experts ? ExpertAxes(p) : AxisSet{});
    for (std::vector<Axis>& dim : type.placements.dims) std::erase_if(dim, [&](Axis a) { return owners.Has(a); });
    return {LocalShape(type, mesh_, {}),
            BackwardReads(weight, layer),
            StateBytes(state),
            {experts ? ExpertParallelOf(p).dp_shard : 1, owners.Has(Axis::kCp), owners.Has(Axis::kTp)}};
  }
  /// The bytes of an element of a master and of each of its moments.
  std::vector<int64_t> StateBytes(int master) const {
    std::vector<int64_t> bytes = {SizeOf(graph_.value(master).type.dtype)};
    for (const Value& value : graph_.values)
      if (IsMoment(value) && ParameterOf(value) == ParameterOf(graph_.value(master)))
        bytes.push_back(SizeOf(value.type.dtype));
    return bytes;
  }
  /// The weight, or what P makes of it.
  bool BackwardReads(int kept, int layer) const {
    std::vector<bool> weight(graph_.values.size());
    weight[kept] = true;
    for (const Op& op : graph_.ops)
      for (int v : op.inputs) {
        if (!weight[v]) continue;
        if (op.role == Role::kP)
          for (int made : op.outputs) weight[made] = true;
        if (IsBackward(op) && op.layer == layer) return true;
      }
    return false;
  }

  bool HeadHasBackwardMatmuls() const {
    return std::ranges::any_of(graph_.ops, [&](const Op& op) {
      return IsBackward(op) && op.kind == OpKind::kMatmul && example_.PartOf(op.layer) == kHead;
    });
  }

  /// A value belongs to the highest layer whose backward reads it: its backward runs first.
  void ReadKept() {
    std::vector<int> reader(graph_.values.size(), -1), w_reader(graph_.values.size(), -1);
    for (const Op& op : graph_.ops) {
      if (!IsBackward(op)) continue;
      for (int v : op.inputs) {
        if (!OfMicrobatch(v) || Producer(v) == nullptr) continue;
        if (Producer(v)->role == Role::kF) reader[v] = std::max(reader[v], op.layer);
        if (op.role == Role::kW && Producer(v)->role != Role::kW) w_reader[v] = std::max(w_reader[v], op.layer);
      }
    }
    for (size_t v = 0; v < reader.size(); ++v) {
      if (const auto part = example_.PartOf(reader[v])) profile_.memory[*part].kept += RowBytes(static_cast<int>(v));
      if (const auto part = example_.PartOf(w_reader[v]))
        profile_.memory[*part].kept_for_w += RowBytes(static_cast<int>(v));
    }
  }

  /// Before an op of backward all values are live that were made before it and are read by it or after it. Only ops and
  /// values of the part itself count, and where W is deferred, only ops and values of B.
  void ReadExtra(Part part) {
    int64_t live = 0, most = 0;
    std::vector<int> own;
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      if (!IsBackward(op) || (defers_w_ && op.role == Role::kW)) continue;
      if (example_.PartOf(op.layer) == part) own.push_back(static_cast<int>(i));
    }
    std::map<int, std::vector<int>> dying = KeptBy(part, live);
    for (int i : own) {
      most = std::max(most, live);
      for (int v : graph_.op(i).outputs)
        if (OfMicrobatch(v) && last_read_[v] > i) {
          live += RowBytes(v);
          dying[last_read_[v]].push_back(v);
        }
      while (!dying.empty() && dying.begin()->first <= i) {
        for (int v : dying.begin()->second) live -= RowBytes(v);
        dying.erase(dying.begin());
      }
    }
    profile_.memory[part].extra = std::max<int64_t>(0, most - profile_.memory[part].kept);
  }
  /// The values that forward kept for the part, by the op that reads it last.
  std::map<int, std::vector<int>> KeptBy(Part part, int64_t& bytes) const {
    std::map<int, std::vector<int>> dying;
    for (size_t v = 0; v < last_read_.size(); ++v) {
      const int i = last_read_[v], value = static_cast<int>(v);
      if (i < 0 || !OfMicrobatch(value) || Producer(value) == nullptr || Producer(value)->role != Role::kF) continue;
      if (example_.PartOf(graph_.op(i).layer) != part) continue;
      bytes += RowBytes(value);
      dying[i].push_back(value);
    }
    return dying;
  }

  const Example example_;
  const Graph& graph_;
  const Mesh& mesh_;
  const int64_t micro_;
  const bool defers_w_;
  LayerProfile& profile_;
  std::vector<int> last_read_;  // by value: the last op of backward that reads it
};

void ReadWork(const Example& example, LayerProfile& profile) {
  const Graph& graph = *example.c.graph;
  const OpTimes& times = TimesOf(example.c.deck);
  for (const Op& op : graph.ops)
    if (op.frequency() == Frequency::kMicrobatch)
      if (const std::optional<Part> part = example.PartOf(op.layer)) {
        const double work = times.Of(graph, op, example.c.mesh);
        profile.work[*part] += work;
        if (op.role == Role::kF) profile.forward_work[*part] += work;
        if (!IsCommunication(op.kind)) profile.kernel_work[*part] += work;
      }
}

void ReadTimes(const Example& example, const Costs& costs, LayerProfile& profile) {
  const Compilation& c = example.c;
  Program program = MakeProgram(c, {});
  std::vector<Instruction> instructions(program.instructions.begin(), program.instructions.end());
  for (Instruction& i : instructions)  // as in every microbatch but the first
    if (i.microbatch >= 0 && c.graph->op(i.op).role == Role::kW) i.accumulate = true;
  program.instructions = Instructions(instructions);
  const std::vector<InstructionCost> cost = CostInstructions(costs, program, {});
  double step_us = 0;
  int64_t elements = 0;
  for (const Instruction& i : program.instructions) {
    if (i.microbatch < 0) continue;
    if (const auto part = example.PartOf(c.graph->op(i.op).layer)) ++profile.instructions[*part];
  }
  for (const Step& step : Walk(program, cost, costs.cluster())) {
    const Op& op = c.graph->op(program.instructions[step.instruction].op);
    if (op.frequency() == Frequency::kStep) {
      if (program.instructions[step.instruction].lane == Lane::kCompute) step_us += cost[step.instruction].us;
      continue;
    }
    const std::optional<Part> part = example.TimedPartOf(op);
    if (!part) continue;
    PartTime& time = op.role == Role::kF ? profile.forward[*part] : profile.backward[*part];
    time.us += step.waited_us + step.kernel_us;
    if (step.port != Port::kNone)
      time.joint_us += (1 - kExposedInJointJobs) * (1 - SlowdownAt(step.port, costs.cluster())) * step.waited_us;
    if (cost[step.instruction].source != CostSource::kFormula) time.measured_us += step.kernel_us;
    if (op.role == Role::kW) profile.w_us[*part] += step.kernel_us;
  }
  for (const Value& v : c.graph->values)
    if (IsParameter(v)) elements += Volume(LocalShape(v.type, c.mesh, {}));
  if (example.has_ends) profile.step_us_per_element = elements > 0 ? step_us / static_cast<double>(elements) : 0;
}

/// Time of a kernel that adds two such tensors.
double AddUs(const Type& type, const Mesh& mesh, const Costs& costs) {
  const Shape shape = LocalShape(type, mesh, {});
  Op add_op;
  add_op.kind = OpKind::kAdd;
  const LocalOp add{add_op, {shape, shape}, {shape}, type.dtype, {type.dtype, type.dtype}, {type.dtype}};
  return costs.Kernel(add, false).us;
}

/// Copies the profile of a layer's kind.
void TakePart(Part part, const LayerProfile& from, LayerProfile& to) {
  to.memory[part] = from.memory[part];
  to.forward[part] = from.forward[part];
  to.backward[part] = from.backward[part];
  to.w_us[part] = from.w_us[part];
  to.work[part] = from.work[part];
  to.forward_work[part] = from.forward_work[part];
  to.kernel_work[part] = from.kernel_work[part];
  to.instructions[part] = from.instructions[part];
  to.prepared += from.prepared;
}

/// The least memory of a device leaves out all that is or may be on the host.
void LeaveOutOffloaded(const Deck& deck, LayerProfile& profile) {
  const bool in_fp32 = deck.precision.compute == Dtype::kF32;  // forward reads masters
  for (PartMemory& memory : profile.memory) {
    if (deck.offload.activations != 0 || !deck.offload.layers.empty()) memory.kept = memory.kept_for_w = 0;
    for (ParameterShape& parameter : memory.parameters) {
      if (deck.offload.optimizer != 0) parameter.state_bytes.resize(in_fp32 ? 1 : 0);
      if (deck.offload.parameters != 0 && in_fp32) parameter.state_bytes.erase(parameter.state_bytes.begin());
    }
  }
  if (deck.offload.parameters != 0) profile.copies_weights = false;
  profile.keeps_gradients = deck.offload.gradients == 0;
}

}  // namespace

int64_t ParameterShape::ShardOver(int64_t dp_shard, int64_t others) const {
  const int64_t length = local[StateDim(local, dp_shard * others)];
  const int64_t shard = (length + dp_shard - 1) / dp_shard;
  return length == 0 ? 0 : (shard + others - 1) / others * (Elements() / length);
}

int GatherRanks(const LayerProfile& profile, const Layout& layout) {
  const int group = profile.regather_group;
  return layout.GathersAgain() && group > 1 && group < layout.dp_shard ? group : layout.Shards();
}

const LayerProfile& SharedProfiles::Of(const Key& key, const std::function<LayerProfile()>& make) {
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    entry = &entries_[key];
  }
  std::call_once(entry->once, [&] { entry->profile = make(); });
  return *entry->profile;
}

LayerProfiler::LayerProfiler(const Deck& deck, const Layout& layout, SharedProfiles& shared)
    : deck_(deck), layout_(layout), shared_(shared), kinds_(KindsOf(deck.model)) {}

LayerProfile LayerProfiler::Profile(RecomputeMode mode, const Costs* costs) {
  LayerProfile profile(kFirstKind + kinds_.size());
  profile.element_bytes = static_cast<int>(SizeOf(deck_.precision.compute));
  profile.gradient_bytes = static_cast<int>(SizeOf(deck_.parallel.reduce_dtype));
  profile.regather_group = deck_.parallel.regather_group;
  profile.defers_w = layout_.Traits().DefersW();
  profile.copies_weights = deck_.precision.compute != Dtype::kF32;
  const Layout& l = layout_;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i].experts || IsLast(i)) {
      Read(i, mode, costs, profile);
      continue;
    }
    const auto make = [&] {
      LayerProfile own(kFirstKind + kinds_.size());
      Read(i, mode, costs, own);
      return own;
    };
    const SharedProfiles::Key key{i, l.tp, l.cp, l.context, l.micro, mode, profile.defers_w, costs != nullptr};
    TakePart(kFirstKind + i, shared_.Of(key, make), profile);
  }
  LeaveOutOffloaded(deck_, profile);
  return profile;
}

bool LayerProfiler::IsLast(size_t kind) const { return kinds_[kind] == KindOf(deck_.model, deck_.model.layers); }

const Compilation& LayerProfiler::CompilationOf(size_t kind, RecomputeMode mode) {
  if (const auto known = compiled_.find({kind, mode}); known != compiled_.end()) return known->second;
  auto half = halves_.find(kind);
  if (half == halves_.end()) {
    const Deck small = SmallModel(deck_, kinds_[kind], layout_);
    half = halves_.try_emplace(kind, small, SmallestRanks(small), Purpose::kTrain).first;
  }
  return compiled_.try_emplace({kind, mode}, half->second.With(RecomputeOf(deck_, mode))).first->second;
}

void LayerProfiler::Read(size_t kind, RecomputeMode mode, const Costs* costs, LayerProfile& profile) {
  const Compilation& c = CompilationOf(kind, mode);
  const Example example{c, kFirstKind + kind, IsLast(kind)};
  MemoryReader(example, profile).Run();
  ReadWork(example, profile);
  if (costs != nullptr) ReadTimes(example, *costs, profile);
  if (!example.has_ends) return;
  const Value* stream = nullptr;
  for (const Value& v : c.graph->values)
    if (v.layout == "batch,stream,embed" && v.frequency == Frequency::kMicrobatch) stream = &v;
  if (stream == nullptr) return;
  profile.stream_bytes = Volume(LocalShape(stream->type, c.mesh, {})) * SizeOf(stream->type.dtype);
  if (costs != nullptr) profile.stream_add_us = AddUs(stream->type, c.mesh, *costs);
}

LayerProfile ProfileLayers(const Deck& deck, const Layout& layout, const Costs* costs) {
  SharedProfiles none;
  return LayerProfiler(deck, layout, none).Profile(layout.recompute, costs);
}

}  // namespace espalier
