#include "espalier/ops/verify.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "espalier/graph/provenance.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The outputs of a reshard state its placements. Any other op has them from its einsum dims.
void CheckTypes(const Graph& graph, const Op& op) {
  if (IsBetweenStages(op.kind)) return;
  if (IsReshard(op.kind) || IsHostCopy(op.kind)) {
    CHECK(op.inputs.size() == op.outputs.size(), "as many outputs as inputs");
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const Type& from = graph.values[op.inputs[i]].type;
      const Type& to = graph.values[op.outputs[i]].type;
      CHECK(from.dtype == to.dtype && from.shape == to.shape, "a reshard keeps element type and shape");
      CHECK(IsReshard(op.kind) || from == to, "a copy keeps the type");
    }
    return;
  }
  std::vector<Placements> free;
  for (int output : op.outputs) free.push_back(graph.value(output).type.placements);
  const std::vector<Type> types = InferOutputs(graph, op, free);
  for (size_t o = 0; o < types.size(); ++o)
    CHECK(types[o] == graph.values[op.outputs[o]].type, "output {} is {}, its rule says {}",
          graph.values[op.outputs[o]].name, ToString(graph.values[op.outputs[o]].type), ToString(types[o]));
}

void CheckOutput(const Op& op, const Value& v) {
  if (v.kind == ValueKind::kState) CHECK(op.role == Role::kU, "only role U writes state {}", v.name);
  if (v.kind == ValueKind::kCache)
    CHECK(op.kind == OpKind::kCacheWrite || op.role == Role::kP || op.role == Role::kU, "{} writes cache {}", op.kind,
          v.name);
  if (v.kind == ValueKind::kAccumulator) {
    CHECK(op.frequency() == Frequency::kMicrobatch, "accumulator {} is written once a step", v.name);
    CHECK(v.type.dtype == Dtype::kF32, "accumulator {} is not f32", v.name);
  }
  CHECK(v.kind != ValueKind::kInput, "an op writes input {}", v.name);
  CHECK(v.chunk == op.chunk || v.chunk == kAllChunks, "{} lives on another chunk than its op", v.name);
}

void CheckInput(const Op& op, const Value& v) {
  const bool step_op = op.frequency() == Frequency::kStep;
  CHECK(!step_op || v.frequency == Frequency::kStep, "a step op reads microbatch value {}", v.name);
  const bool made_by_update = v.kind == ValueKind::kAccumulator;
  CHECK(!made_by_update || step_op || op.kind == OpKind::kCopyIn, "a microbatch op reads accumulator {}", v.name);
}

class Verifier {
 public:
  Verifier(const Graph& graph, Signatures& signatures, std::vector<bool>& sound)
      : graph_(graph), signatures_(signatures), sound_(sound), defined_(graph.values.size(), false) {
    signatures.Read(graph);
    for (size_t i = 0; i < graph.values.size(); ++i) defined_[i] = graph.value(i).kind != ValueKind::kActivation;
  }

  void Check(const Op& op) {
    espalier::Define(op.kind);
    CHECK(op.role != Role::kUnset, "no role is set");
    CHECK(op.layer >= 0, "no layer is set");
    CHECK(op.chunk >= kAllChunks, "no chunk is set");
    CHECK(op.chunk != kAllChunks || op.frequency() == Frequency::kStep, "a microbatch op needs a chunk");
    for (int input : op.inputs) {
      CHECK(input >= 0 && input < static_cast<int>(graph_.values.size()), "input id {} does not exist", input);
      CHECK(IsDefined(input, op), "{} is used before it is defined", graph_.value(input).name);
      CheckInput(op, graph_.value(input));
    }
    for (int output : op.outputs) {
      CHECK(output >= 0 && output < static_cast<int>(graph_.values.size()), "output id {} does not exist", output);
      const Value& v = graph_.value(output);
      CHECK(v.kind != ValueKind::kActivation || defined_[output] == (op.Adds() || Updates(op, output)), "{} is {}",
            v.name, op.Adds() ? "added to before it is defined" : "defined twice");
      CheckOutput(op, v);
      Define(output, op);
    }
    CheckTypesOnce(op);
  }

  void CheckResults() const {
    for (int id : graph_.results) CHECK(defined_[id], "result {} is never defined", graph_.value(id).name);
  }

 private:
  /// An update of what is staged, in place, or an addition to it.
  bool Updates(const Op& op, int output) const {
    const Value& v = graph_.value(output);
    if (IsStagedSum(v)) return !IsHostCopy(op.kind);
    return IsStaged(v) && std::ranges::find(op.inputs, output) != op.inputs.end();
  }
  /// Pieces on their way from the host and back, which come and go whole.
  bool HasPieces(const Op& op) const { return op.frequency() == Frequency::kStep; }
  /// The strips of a value are written in order; all together define it. A state keeps its old values until then.
  void Define(int output, const Op& op) {
    const std::optional<Strip> strip = StripOf(op);
    const Value& v = graph_.value(output);
    if (HasPieces(op) && strip && (IsStaged(v) || v.kind != ValueKind::kActivation)) {
      CHECK(!IsStaged(v) || v.piece == PieceOf(op), "{} is another piece than its op's", v.name);
      defined_[output] = true;
      return;
    }
    if (strip) {
      int& written = strips_[output];
      CHECK(strip->index == written, "strip {} of {} is written when {} are", strip->index, graph_.value(output).name,
            written);
      CHECK(IsCollective(op.kind) || HasPieces(op) || IsRowwise(graph_, op), "{} has no strips", op.kind);
      ++written;
    }
    defined_[output] =
        op.kind == OpKind::kPutRows ? IsComplete(output, op) : !strip || strip->index + 1 == strip->count;
  }
  /// Notes the rows that put_rows writes.
  bool IsComplete(int output, const Op& op) {
    const Shape &part = graph_.value(op.inputs[0]).type.shape, &whole = graph_.value(output).type.shape;
    return (rows_[output] += part[0] * part[1]) == whole[0] * whole[1];
  }
  /// A strip needs the rows of its inputs that are in it, any other op needs all.
  bool IsDefined(int input, const Op& op) const {
    if (defined_[input]) return true;
    const std::optional<Strip> strip = StripOf(op);
    const auto written = strips_.find(input);
    return strip && written != strips_.end() && strip->index < written->second;
  }
  void CheckTypesOnce(const Op& op) {
    const auto signature = static_cast<size_t>(signatures_.Of(op));
    if (signature >= sound_.size()) sound_.resize(signature + 1);
    if (sound_[signature]) return;
    CheckTypes(graph_, op);
    sound_[signature] = true;
  }

  const Graph& graph_;
  Signatures& signatures_;
  std::vector<bool>& sound_;
  std::vector<bool> defined_;
  std::map<int, int> strips_;    // by value: strips written so far
  std::map<int, int64_t> rows_;  // by value: rows put so far
};

}  // namespace

void RepeatedVerifier::Verify(const Graph& graph, std::string_view after) {
  Verifier verifier(graph, signatures_, sound_);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    try {
      verifier.Check(op);
    } catch (const InvariantError& error) {
      const std::string first = op.outputs.empty() ? "" : " -> " + graph.values[op.outputs[0]].name;
      throw InvariantError(fmt::format("after {}: op {} {}{}: {}", after, i, op.kind, first, error.what()));
    }
  }
  verifier.CheckResults();
}

void Verify(const Graph& graph, std::string_view after) { RepeatedVerifier().Verify(graph, after); }

}  // namespace espalier
