// One engine places every value: forward, backward and update alike. For each op, in order, the axes of its letters
// follow from its inputs; where inputs disagree about an axis
//   - on dp and cp the batch or sequence letter wins: weights are gathered;
//   - on tp the letter of the weight (or of the weight gradient to be made) wins: weights stay where they are; on
//   kv_replicate too,
//     along which a product whose weight is not cut is done by every rank;
//   - what is left goes to the letter with the least traffic, ties to the first letter.
// Then each input is resharded to what its letters say (never partial, except into addition), reshards are shared, and
// the outputs follow. A value for which the model asked a layout is resharded to it where it is made.
#include <algorithm>
#include <cctype>
#include <map>
#include <tuple>

#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/schedule/schedule.hpp"
#include "espalier/util/error.hpp"
#include "passes/placement/layout.hpp"

namespace espalier {
namespace {

using LetterAxes = std::map<char, std::vector<Axis>>;

class Partitioner {
 public:
  Partitioner(Graph& graph, const PassContext& context) : old_(graph), context_(context), mesh_(context.mesh) {}

  Graph Run() {
    // Values keep their ids, so that ops can be carried over one by one; raw and resharded values come behind.
    for (const Value& v : old_.values) {
      new_.AddValue(v);
      if (v.producer < 0 && v.kind != ValueKind::kAccumulator && !v.layout.empty())
        new_.values.back().type.placements = LayoutPlacements(v.layout, v.kind, context_.deck, mesh_);
    }
    for (const Op& op : old_.ops) op.kind == "reshard" ? Move(op) : Place(op);
    new_.results = old_.results;
    new_.Renumber();
    return std::move(new_);
  }

 private:
  Placements Wanted(int id) const {
    const Value& v = new_.values[static_cast<size_t>(id)];
    return LayoutPlacements(v.layout, v.kind, context_.deck, mesh_);
  }

  /// As above; what lies by kv heads may stay a sum over the ranks that share them.
  Placements Wanted(int id, const Type& made) const {
    Placements placements = Wanted(id);
    if (new_.values[static_cast<size_t>(id)].layout.ends_with("kv_heads"))
      placements.partial_sum = made.placements.partial_sum & AxisSet{Axis::kKvReplicate};
    return placements;
  }

  /// An explicit reshard of the graph: its output's layout says where to.
  void Move(const Op& op) {
    const int output = op.outputs[0];
    new_.values[output].type.placements = Wanted(output);
    new_.AddOp(op);
  }

  void Place(Op op) {
    const OpDefinition& definition = Define(op.kind);
    const OpContext context = ContextOf(new_, op);
    const Letters letters = definition.letters(context);
    const LetterAxes axes = ChooseAxes(op, context, letters);
    for (size_t i = 0; i < op.inputs.size(); ++i)
      op.inputs[i] =
          Resharded(op.inputs[i], Required(axes, letters.inputs[i], KeptPartial(context, definition, i)), op);
    std::vector<Placements> free;
    for (const std::string& dims : letters.outputs) free.push_back(PlacementsOf(axes, dims));
    const std::vector<Type> types = InferOutputs(new_, op, free);
    std::vector<std::pair<int, int>> moves;  // raw -> wanted
    for (size_t o = 0; o < types.size(); ++o) op.outputs[o] = PlaceOutput(op.outputs[o], types[o], op.role, moves);
    const Role role = op.role;
    const int layer = op.layer, chunk = op.chunk;
    new_.AddOp(std::move(op));
    for (const auto& [raw, wanted] : moves) new_.AddOp({"reshard", {raw}, {wanted}, {}, role, layer, chunk});
  }

  /// Gives an output its type; if the model wants another layout, a raw value takes its place. A weight gradient of one
  /// microbatch stays as its op makes it: its layout only says which letters its weight has on which axes.
  int PlaceOutput(int id, const Type& type, Role role, std::vector<std::pair<int, int>>& moves) {
    Value& v = new_.values[static_cast<size_t>(id)];
    const bool enforced = v.kind == ValueKind::kActivation && !v.layout.empty() && role != Role::kW;
    if (v.kind == ValueKind::kState)
      CHECK(v.type == type, "{}: the update has {}, the state {}", v.name, ToString(type), ToString(v.type));
    v.type = type;
    if (!enforced || Wanted(id, type) == type.placements) return id;
    v.type.placements = Wanted(id, type);
    Value raw = v;
    raw.name = new_.Unique(v.name + ".raw");
    raw.layout.clear();
    raw.type = type;
    const int raw_id = new_.AddValue(std::move(raw));
    moves.emplace_back(raw_id, id);
    return raw_id;
  }

  /// Axes on which input `i` may stay a partial sum: all, if it is added to equals; kv_replicate, if the op is linear
  /// in it.
  static AxisSet KeptPartial(const OpContext& c, const OpDefinition& definition, size_t i) {
    if (definition.jointly_linear)
      return std::all_of(c.inputs.begin(), c.inputs.end(),
                         [&](const Type& t) { return t.placements == c.inputs[0].placements; })
                 ? c.inputs[i].placements.partial_sum
                 : AxisSet();
    return static_cast<int>(i) < definition.linear_inputs
               ? c.inputs[i].placements.partial_sum & AxisSet{Axis::kKvReplicate}
               : AxisSet();
  }

  Placements PlacementsOf(const LetterAxes& axes, const std::string& dims) const {
    Placements placements;
    for (char letter : dims) placements.dims.push_back(AxesOfLetter(axes, letter));
    return placements;
  }
  Placements Required(const LetterAxes& axes, const std::string& dims, AxisSet partial) const {
    Placements placements = PlacementsOf(axes, dims);
    placements.partial_sum = partial;
    return placements;
  }

  /// Who asks for an axis on a letter.
  struct Claim {
    char letter;
    bool weight;
  };

  std::vector<Claim> ClaimsOn(Axis axis, const Op& op, const OpContext& c, const Letters& letters) const {
    std::vector<Claim> claims;
    const auto claim = [&](const Placements& p, const std::string& dims, bool weight) {
      const int d = p.DimOf(axis);
      if (d < 0) return;
      const char letter = static_cast<char>(std::tolower(dims[static_cast<size_t>(d)]));
      if (letters.shardable.find(letter) != std::string::npos) claims.push_back({letter, weight});
    };
    for (size_t i = 0; i < c.inputs.size(); ++i)
      claim(c.inputs[i].placements, letters.inputs[i], IsWeight(op.inputs[i]));
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      const Value& v = new_.values[static_cast<size_t>(op.outputs[o])];
      if ((v.kind == ValueKind::kAccumulator || op.role == Role::kW) && !v.layout.empty())
        claim(Wanted(op.outputs[o]), letters.outputs[o], true);
    }
    return claims;
  }
  bool IsWeight(int id) const {
    const Value& v = new_.values[static_cast<size_t>(id)];
    return v.frequency == Frequency::kStep && v.kind != ValueKind::kAccumulator;
  }

  LetterAxes ChooseAxes(const Op& op, const OpContext& c, const Letters& letters) const {
    std::map<Axis, char> chosen;
    for (Axis axis : {Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp, Axis::kKvReplicate}) {
      if (mesh_.Degree(axis) == 1) continue;
      std::vector<Claim> claims = ClaimsOn(axis, op, c, letters);
      const bool weights_win = kTensorAxes.Has(axis);
      const bool repeated = axis == Axis::kKvReplicate && Define(op.kind).linear_inputs == 2;
      if (repeated ||
          std::any_of(claims.begin(), claims.end(), [&](const Claim& k) { return k.weight == weights_win; }))
        std::erase_if(claims, [&](const Claim& k) { return k.weight != weights_win; });
      std::string candidates;
      for (const Claim& k : claims)
        if (candidates.find(k.letter) == std::string::npos) candidates += k.letter;
      if (candidates.empty()) continue;
      chosen[axis] = candidates.size() == 1 ? candidates[0] : LeastTraffic(axis, candidates, c, letters);
    }
    return InOrder(chosen, c, letters);
  }

  char LeastTraffic(Axis axis, const std::string& candidates, const OpContext& c, const Letters& letters) const {
    char best = candidates[0];
    int64_t least = -1;
    for (char letter : candidates) {
      int64_t traffic = 0;
      for (size_t i = 0; i < c.inputs.size(); ++i) {
        Placements to = c.inputs[i].placements;
        for (std::vector<Axis>& dim : to.dims) std::erase(dim, axis);
        to.partial_sum.Remove(axis);
        to.partial_max.Remove(axis);
        const size_t d = letters.inputs[i].find(letter);
        if (d != std::string::npos) to.dims[d].push_back(axis);
        if (to.Partial().Empty()) traffic += ReshardTraffic(c.inputs[i], to, mesh_);
      }
      if (least < 0 || traffic < least) {
        least = traffic;
        best = letter;
      }
    }
    return best;
  }

  /// The axes of each letter in the order in which some input already has them; else outermost first.
  LetterAxes InOrder(const std::map<Axis, char>& chosen, const OpContext& c, const Letters& letters) const {
    LetterAxes axes;
    for (const auto& [axis, letter] : chosen) axes[letter].push_back(axis);
    for (auto& [letter, list] : axes)
      for (size_t i = 0; i < c.inputs.size(); ++i) {
        const size_t d = letters.inputs[i].find(letter);
        if (d == std::string::npos) continue;
        const std::vector<Axis>& here = c.inputs[i].placements.dims[d];
        if (std::is_permutation(here.begin(), here.end(), list.begin(), list.end())) list = here;
      }
    return axes;
  }

  /// Where a value is resharded: where it is needed, so that it crosses stages as it lies, never gathered; a partial
  /// one where it is made, so that it is whole when it crosses.
  static int ChunkOfReshard(const Value& v, const Op& consumer, bool prepared) {
    if (consumer.chunk == kAllChunks) return v.chunk;
    const bool whole = v.type.placements.Partial().Empty();
    return prepared || whole || v.chunk == kAllChunks ? consumer.chunk : v.chunk;
  }

  /// Reshards are shared by all that ask for the same: within a role, from B on to W unless the schedule puts W off,
  /// and, where a sum was completed (the result is no larger than what it came from), from F on to B and W. A gathered
  /// activation is gathered again in backward.
  int Resharded(int id, const Placements& to, const Op& consumer) {
    const Value& v = new_.values[static_cast<size_t>(id)];
    if (v.type.placements == to) return id;
    const bool prepared = v.frequency == Frequency::kStep && consumer.frequency() == Frequency::kMicrobatch;
    const Role role = prepared ? Role::kP : consumer.role == Role::kU ? Role::kS : consumer.role;
    const int chunk = ChunkOfReshard(v, consumer, prepared);
    Type type = v.type;
    type.placements = to;
    const std::string wanted = ToString(type);
    std::vector<Role> usable = {role};
    const bool completes = !v.type.placements.Partial().Empty();
    if (role == Role::kW && (completes || !PutsWOff(context_.deck.pipeline.schedule))) usable.push_back(Role::kB);
    if (completes && (role == Role::kB || role == Role::kW)) usable.push_back(Role::kF);
    for (Role made_in : usable)
      if (const auto it = shared_.find({id, wanted, made_in, chunk}); it != shared_.end()) return it->second;
    Op reshard{"reshard", {id}, {}, {}, role, consumer.layer, chunk};
    const int output = new_.AddValue({new_.Unique(v.name + ".on." + std::string(Name(role))), std::move(type),
                                      ValueKind::kActivation, reshard.frequency(), chunk, -1, ""});
    reshard.outputs = {output};
    new_.AddOp(std::move(reshard));
    shared_[{id, wanted, role, chunk}] = output;
    return output;
  }

  const Graph& old_;
  const PassContext& context_;
  const Mesh& mesh_;
  Graph new_;
  std::map<std::tuple<int, std::string, Role, int>, int> shared_;
};

}  // namespace

void Partition(Graph& graph, const PassContext& context) { graph = Partitioner(graph, context).Run(); }

}  // namespace espalier
