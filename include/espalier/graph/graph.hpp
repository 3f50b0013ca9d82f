// The logical program: values and the ops that make them, in execution order. One graph holds the whole model (all
// layers, all chunks, one microbatch, plus the ops that run once a step). It knows mesh axes, but no ranks.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/graph/op_kind.hpp"
#include "espalier/graph/type.hpp"
#include "espalier/util/attributes.hpp"
#include "espalier/util/enum_array.hpp"

namespace espalier {

/// The purpose of an op. Per microbatch: F forward, B input gradient, W weight gradient. Per step: P prepare (needs
/// only step values and states), S synchronise gradients, U update.
enum class Role : uint8_t { kP, kF, kB, kW, kS, kU, kUnset };
std::string_view Name(Role role);  ///< "P" "F" "B" "W" "S" "U"; "?" if unset

/// How often an op runs. A microbatch op has one output per microbatch in flight.
enum class Frequency : uint8_t { kStep, kMicrobatch };

/// P, S and U run once per step; F, B and W once per microbatch.
constexpr Frequency FrequencyOf(Role role) {
  return role == Role::kF || role == Role::kB || role == Role::kW ? Frequency::kMicrobatch : Frequency::kStep;
}

enum class ValueKind : uint8_t {
  kActivation,   ///< produced by an op, dead after its last use
  kInput,        ///< filled from outside before the step: token ids and targets (microbatch), lr and step (step)
  kState,        ///< persistent and checkpointed: master weights, exp_avg, exp_avg_sq; only role U writes it
  kAccumulator,  ///< fp32, summed over the microbatches of a step by ops that accumulate
  kCache,        ///< persistent, not checkpointed: copies of masters; keys and values of earlier tokens (cache_write)
};
std::string_view Name(ValueKind kind);
/// From one step to the next.
constexpr bool IsKept(ValueKind kind) { return kind == ValueKind::kState || kind == ValueKind::kCache; }

/// The memory that a value is in. Only copy_out and copy_in touch values of the host.
enum class Space : uint8_t { kDevice, kHost };
inline constexpr int kSpaceCount = 2;
template <typename T>
using BySpace = EnumArray<Space, T, kSpaceCount>;
inline constexpr BySpace<Space> kSpaces = {Space::kDevice, Space::kHost};
std::string_view Name(Space space);  ///< "device" or "host"

/// A part of the shard that a rank holds of a tensor: of `count` nearly equal ranges of indices of `dim` the one with
/// number `index`.
struct Piece {
  int index = 0;
  int count = 1;  ///< 1: the whole shard
  size_t dim = 0;
  bool operator==(const Piece&) const = default;
};

/// The chunk of step values and ops that exist on every stage.
inline constexpr int kAllChunks = -1;
/// An op whose layer or chunk is not set yet; the verifier refuses it.
inline constexpr int kUnset = -2;

struct Value {
  std::string name;  ///< unique; parameters have Hugging Face's names
  Type type;
  ValueKind kind = ValueKind::kActivation;
  Frequency frequency = Frequency::kMicrobatch;
  int chunk = kAllChunks;  ///< the pipeline chunk that owns it
  int producer = -1;       ///< op id, or -1 for inputs, states and accumulators
  /// The layout that the model asks for: one logical name per dim, such as "batch,stream,embed"
  /// (src/passes/placement/layout.cpp maps names to axes). Empty: the partitioner decides.
  std::string layout;
  bool trained = true;  ///< of a parameter: gradients train it; else a rule changes it, or nothing
  Space space = Space::kDevice;
  Piece piece = {};  ///< of the shard that `type` describes, what is held; copy_in makes pieces
};

/// A set of axes, as a number that is an attribute.
inline AxisSet AxesOf(double number) { return AxisSet::FromBits(static_cast<uint32_t>(number)); }

struct Op {
  OpKind kind = OpKind::kNone;
  std::vector<int> inputs;
  std::vector<int> outputs;
  Attributes attributes;
  Role role = Role::kUnset;
  int layer = kUnset;  ///< 0 embedding, 1..L, L+1 head; orders reports and buckets
  int chunk = kUnset;  ///< pipeline chunk that runs it; kAllChunks: every stage
  bool cheap = false;  ///< selective recompute computes its outputs again in backward instead of keeping them
  Frequency frequency() const { return FrequencyOf(role); }
  /// True if it adds to its outputs, which an op before it has written in the same microbatch (pass `chunk_loss`).
  bool Adds() const { return attributes.IntegerOr("adds", 0) != 0; }
  /// The group of a collective, ring_shift or gather_stages.
  AxisSet Axes() const { return AxesOf(attributes.Number("axes")); }
  /// The stage that a send goes to, or that a recv comes from.
  int Peer() const { return static_cast<int>(attributes.Number(kind == OpKind::kSend ? "to" : "from")); }
};

/// The piece of each operand that an op with the attributes of a strip works on; all of it without them.
Piece PieceOf(const Op& op);

class Graph {
 public:
  std::vector<Value> values;
  std::vector<Op> ops;  ///< in execution order
  /// Ids of the values that are read after the program has run (loss, norm, logits, ...).
  std::vector<int> results;

  Value& value(int id) { return values[static_cast<size_t>(id)]; }
  const Value& value(int id) const { return values[static_cast<size_t>(id)]; }
  Op& op(int id) { return ops[static_cast<size_t>(id)]; }
  const Op& op(int id) const { return ops[static_cast<size_t>(id)]; }

  /// Adds a value and returns its id. CHECKs that its name is new.
  int AddValue(Value value);
  /// Appends an op and returns its id. Sets the producer of its outputs (states and accumulators keep theirs).
  int AddOp(Op op);
  /// The id of a value by name; CHECKs that it exists.
  int Find(std::string_view name) const;
  /// As Find, but -1 if there is none.
  int FindOrNone(std::string_view name) const;
  /// A name not yet taken: `base`, or `base.2`, `base.3`, ...
  std::string Unique(const std::string& base) const;
  /// Drops ops of kind kNone and recomputes every value's producer, after ops were inserted, removed or reordered.
  void Renumber();

 private:
  std::map<std::string, int, std::less<>> ids_;
};

/// The whole graph as text; ParseGraph(Print(g)) prints the same text.
///
///   value ids : i32[4{dp_shard},128] input microbatch chunk 0
///   x = embedding(ids, table) @ F layer 0 chunk 0 : bf16[4{dp_shard},128,64]+sum{tp}
///   y = matmul(x, w) {spec="bsk,nk->bsn"} @ F layer 1 chunk 0 : bf16[4,128,64] layout batch,stream,embed
///   result y
///
/// A parameter that no gradient trains has the word `untrained` after its chunk; a value in the memory of the host has
/// `host` there. What copy_out makes is on the host. A cheap op is marked there: `y =
/// swiglu(g, u) @ F layer 1 chunk 0 cheap : type`. Several outputs: `a, b = op(...) ... : type, type`. An op that
/// writes a declared value (state or accumulator) has it on the left; its type is printed again.
std::string Print(const Graph& graph);
/// Throws InvariantError with line number and text.
Graph ParseGraph(std::string_view text);

}  // namespace espalier
