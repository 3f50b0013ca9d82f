// Matmuls of one input whose results are read together become one (fusion.join_matmuls). Their results are side by side
// in one value (graph/columns.hpp), and so are the gradients of these:
//
//   g = matmul(x, wg)                         gu = matmul(x, wg, wu)        [g u]
//   u = matmul(x, wu)                         y = swiglu(gu)
//   y = swiglu(g, u)
//                                      ->
//   dg, du = swiglu_grad(g, u, dy)            dgu = swiglu_grad(gu, dy)     [dg du]
//   du_x = matmul(du, wu)                     dx = matmul(dgu, wg, wu)      one sum, rounded once
//   dwu = matmul(du, x)                       dwg, dwu = matmul(dgu, x)
//   dg_x = matmul(dg, wg)
//   dwg = matmul(dg, x)
//   dx = add(dg_x, du_x)
//
// Likewise q, k and v of attention. Where q and k are rotated first, one op rotates their columns of the joined value,
// and one op those of its gradient.
//
// The weights, and their gradients, are neighbours in memory, which the planner sees to (OpDefinition::neighbours). So
// each but the last must have a multiple of kAlignment bytes on every rank, and each must be shared out evenly, so that
// every rank holds the same share of each part. Weights are [out, in]: those of [in, out] would have to alternate row
// by row. Where a bias, a norm, a message or a cache reads the result of a matmul, nothing is joined; nor are matmuls
// in fp8, whose weights have scales of their own. All or nothing: an op that reads the parts and its gradient are
// joined together.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "espalier/graph/columns.hpp"
#include "espalier/graph/local_range.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/graph/uses.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/alignment.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr std::string_view kForward = "bsk,nk->bsn", kInputGradient = "bsn,nk->bsk", kWeightGradient = "bsn,bsk->nk";

using Ids = std::vector<int>;

class Joiner {
 public:
  Joiner(Graph& graph, const Mesh& mesh, JoinMatmuls choice)
      : graph_(graph), mesh_(mesh), choice_(choice), uses_(graph) {}

  void Run() {
    std::map<Ids, Ids> readers_of;  // parts -> ops that read them together
    for (size_t i = 0; i < graph_.ops.size(); ++i)
      if (const Ids parts = PartsReadBy(graph_.ops[i]); !parts.empty())
        readers_of[parts].push_back(static_cast<int>(i));
    for (const auto& [parts, readers] : readers_of)
      if (const std::optional<Group> group = GroupOf(parts, readers)) Apply(*group);
    Rebuild();
  }

 private:
  void Rebuild() {
    Rewriter old(graph_);
    for (size_t i = 0; i < old.ops.size(); ++i) {
      graph_.ops.push_back(std::move(old.ops[i]));
      if (const auto after = after_.find(static_cast<int>(i)); after != after_.end())
        graph_.ops.push_back(std::move(after->second));
    }
  }
  /// Matmuls of the parts in order, and rotations of all parts but the last, or none.
  struct Chain {
    Ids matmuls, ropes;
  };
  /// The gradient of an op that reads parts, and the matmuls that read what it makes.
  struct Backward {
    int op = -1;
    Ids parts;     ///< gradients of the parts
    Chain inputs;  ///< of input gradients
    Ids weights;   ///< matmuls of weight gradients
    int sum = -1;  ///< the addition of the input gradients
  };
  struct Group {
    Ids parts, readers;
    Chain chain;
    std::vector<Backward> backwards;
  };

  const Op& OpAt(int at) const { return graph_.op(at); }
  bool Is(OpKind kind, int at) const { return at < uses_.End() && OpAt(at).kind == kind; }
  const Type& TypeOf(int value) const { return graph_.value(value).type; }
  int Producer(int value) const { return graph_.value(value).producer; }
  const Ids& Readers(int value) const { return uses_.Readers(value); }

  /// Inputs that the op reads together; none if they are joined already.
  Ids PartsReadBy(const Op& op) const {
    const bool of_gates = op.kind == OpKind::kSwiglu || op.kind == OpKind::kSwigluGrad;
    if (of_gates && choice_ == JoinMatmuls::kHeads) return {};
    const auto count = static_cast<ptrdiff_t>(Define(op.kind).joinable.inputs);
    if (count == 0 || op.attributes.texts.contains(kColumns)) return {};
    return {op.inputs.begin(), op.inputs.begin() + count};
  }

  std::optional<Group> GroupOf(const Ids& parts, const Ids& readers) const {
    Group group{parts, readers, {}, {}};
    for (int part : parts) {
      if (Producer(part) < 0 || Readers(part) != readers) return std::nullopt;
      int maker = Producer(part);
      if (OpAt(maker).kind == OpKind::kRope) {
        const int rotated = OpAt(maker).inputs[0];
        if (Producer(rotated) < 0 || Readers(rotated) != Ids{maker}) return std::nullopt;
        group.chain.ropes.push_back(maker);
        maker = Producer(rotated);
      }
      group.chain.matmuls.push_back(maker);
    }
    const Ids& matmuls = group.chain.matmuls;
    if (!MayBeOne(matmuls, kForward) || !AreOneRotation(group.chain) || !AreShared(OutputsOf(matmuls), 2) ||
        !MayBeNeighbours(InputsOf(matmuls, 1)))
      return std::nullopt;
    for (int reader : readers) {
      if (Define(OpAt(reader).kind).joinable.outputs == 0) continue;
      std::optional<Backward> backward = BackwardOf(reader);
      if (!backward) return std::nullopt;
      group.backwards.push_back(std::move(*backward));
    }
    return group;
  }

  std::optional<Backward> BackwardOf(int reader) const {
    const Op& op = OpAt(reader);
    const auto count = static_cast<ptrdiff_t>(Define(op.kind).joinable.outputs);
    Backward backward{reader, {op.outputs.begin(), op.outputs.begin() + count}, {}, {}};
    for (int part : backward.parts) {
      if (const Ids& only = Readers(part); only.size() == 1 && Is(OpKind::kRope, only[0])) {
        backward.inputs.ropes.push_back(only[0]);
        part = OpAt(only[0]).outputs[0];
      }
      if (!AddMatmulsOf(part, backward)) return std::nullopt;
    }
    const Ids &inputs = backward.inputs.matmuls, &weights = backward.weights;
    if (!MayBeOne(inputs, kInputGradient) || !MayBeOne(weights, kWeightGradient) || !AreOneRotation(backward.inputs) ||
        !MayBeNeighbours(InputsOf(inputs, 1)) || !MayBeNeighbours(OutputsOf(weights)) || AreReadBetween(weights))
      return std::nullopt;
    backward.sum = SumOf(inputs);
    return backward.sum < 0 ? std::nullopt : std::optional(std::move(backward));
  }
  /// The two matmuls that read the gradient of a part; false if anything else does.
  bool AddMatmulsOf(int gradient, Backward& backward) const {
    const Ids& readers = Readers(gradient);
    if (readers.size() != 2 || readers[1] == uses_.End()) return false;
    const bool weight_first = OpAt(readers[0]).role == Role::kW;
    backward.weights.push_back(readers[weight_first ? 0 : 1]);
    backward.inputs.matmuls.push_back(readers[weight_first ? 1 : 0]);
    return OpAt(readers[0]).inputs[0] == gradient && OpAt(readers[1]).inputs[0] == gradient;
  }

  /// The one addition that reads all results of these matmuls, which nobody else reads; -1: there is none.
  int SumOf(const Ids& matmuls) const {
    const Ids values = OutputsOf(matmuls), &readers = Readers(values[0]);
    if (readers.size() != 1 || !Is(OpKind::kAdd, readers[0])) return -1;
    const Op &sum = OpAt(readers[0]), &matmul = OpAt(matmuls[0]);
    const auto like_the_first = [&](int v) { return Readers(v) == readers && TypeOf(v) == TypeOf(values[0]); };
    const bool here = sum.role == matmul.role && sum.chunk == matmul.chunk;
    return here && std::ranges::all_of(values, like_the_first) ? readers[0] : -1;
  }

  /// A result of one of the ops is read before the last of them.
  bool AreReadBetween(const Ids& ops) const {
    const int last = *std::ranges::max_element(ops);
    return std::ranges::any_of(OutputsOf(ops), [&](int v) { return uses_.FirstReader(v) < last; });
  }

  Ids InputsOf(const Ids& ops, size_t input) const {
    Ids values;
    for (int at : ops) values.push_back(OpAt(at).inputs[input]);
    return values;
  }
  Ids OutputsOf(const Ids& ops) const {
    Ids values;
    for (int at : ops) values.push_back(OpAt(at).outputs[0]);
    return values;
  }

  bool AreInOneJob(const Ids& ops) const {
    const Op& first = OpAt(ops[0]);
    return std::ranges::all_of(ops, [&](int at) {
      const Op& op = OpAt(at);
      return op.role == first.role && op.layer == first.layer && op.chunk == first.chunk;
    });
  }
  /// Plain matmuls of one spec in one job. Matmuls of x have x in common, and all operands are there before the first
  /// of them; so are the second operands of gradients, whose first ones become one value.
  bool MayBeOne(const Ids& ops, std::string_view spec) const {
    const int place = *std::ranges::min_element(ops);
    const auto fits = [&](int at) {
      const Op& op = OpAt(at);
      if (op.kind != OpKind::kMatmul || op.inputs.size() != 2 || op.attributes.texts.contains(kColumns) ||
          op.attributes.numbers.contains(kFp8Mark) || op.attributes.Text("spec") != spec ||
          Producer(op.inputs[1]) >= place)
        return false;
      if (spec == kForward) return op.inputs[0] == OpAt(ops[0]).inputs[0] && Producer(op.inputs[0]) < place;
      return spec == kInputGradient || op.inputs[1] == OpAt(ops[0]).inputs[1];
    };
    return std::ranges::all_of(ops, fits) && AreInOneJob(ops);
  }
  /// No part is rotated, or all but the last are, by the same angles.
  bool AreOneRotation(const Chain& chain) const {
    if (chain.ropes.empty()) return true;
    const Op& first = OpAt(chain.ropes[0]);
    const auto same = [&](int at) {
      return OpAt(at).inputs[1] == first.inputs[1] && OpAt(at).attributes == first.attributes;
    };
    return chain.ropes.size() + 1 == chain.matmuls.size() && std::ranges::all_of(chain.ropes, same) &&
           AreInOneJob(chain.ropes) && IsLastUnrotated(chain);
  }
  bool IsLastUnrotated(const Chain& chain) const {
    const Op& last = OpAt(chain.matmuls.back());
    return std::ranges::none_of(chain.ropes, [&](int at) {
      return OpAt(at).inputs[0] == last.outputs[0] || OpAt(at).outputs[0] == last.inputs[0];
    });
  }
  /// Values of one type but for dim `dim`, of which all ranks hold equal shares.
  bool AreShared(const Ids& values, size_t dim) const {
    Type like = TypeOf(values[0]);
    AxisSet axes;
    for (Axis axis : like.placements.dims[dim]) axes.Add(axis);
    return std::ranges::all_of(values, [&](int v) {
      like.shape[dim] = TypeOf(v).shape[dim];
      return TypeOf(v) == like && like.shape[dim] % mesh_.GroupSize(axes) == 0;
    });
  }
  /// Weights or their gradients, which are of one kind, and of which none has other neighbours already.
  bool MayBeNeighbours(const Ids& values) const {
    const Value& first = graph_.value(values[0]);
    const auto fits = [&](int id) {
      const Value& v = graph_.value(id);
      const auto known = neighbours_.find(id);
      return v.kind == first.kind && v.frequency == first.frequency && v.chunk == first.chunk &&
             std::ranges::count(values, id) == 1 && (known == neighbours_.end() || known->second == values);
    };
    const auto aligned = [&](int id) {
      return LocalVolume(TypeOf(id), mesh_, {}) * SizeOf(TypeOf(id).dtype) % kAlignment == 0;
    };
    return AreShared(values, 0) && std::ranges::all_of(values, fits) &&
           std::all_of(values.begin(), values.end() - 1, aligned);
  }

  void Apply(const Group& group) {
    columns_.clear();
    for (int value : OutputsOf(group.chain.matmuls)) columns_.push_back(TypeOf(value).shape[2]);
    const int product = AddJoined(OutputsOf(group.chain.matmuls));
    Op matmul = OpAt(group.chain.matmuls[0]);
    matmul.inputs = WithFirst(matmul.inputs[0], InputsOf(group.chain.matmuls, 1));
    matmul.outputs = {product};
    SetNeighbours(InputsOf(group.chain.matmuls, 1));
    ReplaceFirst(group.chain.matmuls, std::move(matmul));
    int joined = product;
    if (!group.chain.ropes.empty()) {
      joined = AddJoined(group.parts);
      ReplaceFirst(group.chain.ropes, RotationOf(group.chain, product, joined));
    }
    for (int at : group.readers) {
      Op& op = graph_.op(at);
      op.inputs = WithFirst(joined, {op.inputs.begin() + std::ssize(group.parts), op.inputs.end()});
      SetColumns(op.attributes, columns_);
    }
    for (const Backward& backward : group.backwards) Apply(backward);
  }
  void Apply(const Backward& backward) {
    const Ids &inputs = backward.inputs.matmuls, &weights = backward.weights;
    int gradient = AddJoined(backward.parts);
    graph_.op(backward.op).outputs = {gradient};
    if (!backward.inputs.ropes.empty()) {
      const int rotated = AddJoined(InputsOf(inputs, 0));
      // For all gradients at once: right where they are made.
      after_[backward.op] = RotationOf(backward.inputs, gradient, rotated);
      Erase(backward.inputs.ropes);
      gradient = rotated;
    }
    Op of_input = OpAt(inputs[0]), of_weights = OpAt(weights[0]);
    of_input.inputs = WithFirst(gradient, InputsOf(inputs, 1));
    of_input.outputs = {TakeFromSum(OutputsOf(inputs), backward.sum)};
    of_weights.inputs[0] = gradient;
    of_weights.outputs = OutputsOf(weights);
    SetNeighbours(InputsOf(inputs, 1));
    SetNeighbours(OutputsOf(weights));
    // At the last of them: tp collectives that gather x again for the weights are issued before, and run meanwhile.
    Replace(inputs, *std::ranges::max_element(inputs), std::move(of_input));
    Replace(weights, *std::ranges::max_element(weights), std::move(of_weights));
  }

  static Ids WithFirst(int first, const Ids& others) {
    Ids all = {first};
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }
  /// A value with the columns of these.
  int AddJoined(const Ids& parts) {
    Value joined = graph_.value(parts[0]);
    joined.name = graph_.Unique("joined/" + joined.name);
    joined.type.shape[2] = std::accumulate(columns_.begin(), columns_.end(), int64_t{0});
    joined.layout.clear();
    return graph_.AddValue(std::move(joined));
  }
  Op RotationOf(const Chain& chain, int from, int to) const {
    Op rope = OpAt(chain.ropes[0]);
    rope.inputs[0] = from;
    rope.outputs = {to};
    SetColumns(rope.attributes, columns_);
    return rope;
  }
  /// The result of the matmul of the joined gradients: the sum itself if that has no other terms, else its first term.
  int TakeFromSum(const Ids& terms, int at) {
    Op& sum = graph_.op(at);
    std::erase_if(sum.inputs, [&](int v) { return v != terms[0] && std::ranges::count(terms, v) > 0; });
    if (sum.inputs.size() > 1) return terms[0];
    const int value = sum.outputs[0];
    sum = {};
    return value;
  }
  void SetNeighbours(const Ids& values) {
    for (int v : values) neighbours_[v] = values;
  }
  void ReplaceFirst(const Ids& ops, Op joined) { Replace(ops, *std::ranges::min_element(ops), std::move(joined)); }
  void Replace(const Ids& ops, int place, Op joined) {
    SetColumns(joined.attributes, columns_);
    Erase(ops);
    graph_.op(place) = std::move(joined);
  }
  void Erase(const Ids& ops) {
    for (int at : ops) graph_.op(at) = {};
  }

  Graph& graph_;
  const Mesh& mesh_;
  const JoinMatmuls choice_;
  const Uses uses_;
  std::map<int, Ids> neighbours_;  // by value: it and its neighbours, in order
  std::map<int, Op> after_;        // by position: a new op after it
  std::vector<int64_t> columns_;   // of the group that is being joined
};

}  // namespace

void Join(Graph& graph, const PassContext& context) {
  const JoinMatmuls choice = context.deck.fusion.join_matmuls;
  if (choice != JoinMatmuls::kNever) Joiner(graph, context.mesh, choice).Run();
}

}  // namespace espalier
