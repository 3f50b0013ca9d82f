// What the compiler knows of each op, one definition per op: letters, shapes, gradient, cost. Adding an op is one
// file in src/ops and one line in op_table.cpp, plus one kernel per backend.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/graph/graph.hpp"

namespace espalier {

/// The dims of each tensor of an op in letters ("bsk", "nk" -> "bsn"). A letter in an input but in no dim of an output
/// is contracted there: where it is sharded, that output is partial. A letter only in an output may be sharded freely.
/// A capital letter is the small one in a tensor with fewer heads: sharded on the same axes, but kv_replicate.
struct Letters {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::string shardable;       ///< letters that may be sharded at all
  Reduce join = Reduce::kSum;  ///< how contracted pieces are joined
};

/// An op with the types of its inputs.
struct OpContext {
  const Op& op;
  std::vector<Type> inputs;

  const Shape& Extents(int input) const { return inputs[static_cast<size_t>(input)].shape; }
  Dtype ElementType(int input) const { return inputs[static_cast<size_t>(input)].dtype; }
};

/// What an op's gradient may do (src/passes/differentiate.cpp).
class GradientBuilder {
 public:
  virtual ~GradientBuilder() = default;
  /// Value ids of the forward op.
  virtual int Input(int i) const = 0;
  virtual int Output(int i) const = 0;
  /// The forward op's attributes.
  virtual const Attributes& ForwardAttributes() const = 0;
  /// Value id of the adjoint of output `i`. For a loss it is kSeed: an adjoint of 1 that no tensor holds.
  virtual int Adjoint(int output) const = 0;
  /// Emits a backward op whose output j is (a part of) the adjoint of forward input `adjoint_of[j]`: in role W if that
  /// input is a weight, else in role B. Emits nothing if no gradient is wanted there.
  virtual void Emit(std::string_view kind, std::vector<int> inputs, Attributes attributes,
                    std::vector<int> adjoint_of) = 0;
  /// The adjoint of input `i` receives `adjoint` itself (a value, or kSeed).
  virtual void Pass(int i, int adjoint) = 0;

  static constexpr int kSeed = -2;
};

/// Local shapes of one op on one rank, for costs.
struct LocalOp {
  const Op& op;
  std::vector<Shape> inputs;
  std::vector<Shape> outputs;
  Dtype dtype = Dtype::kF32;  ///< of the first input
};

/// An output that may take the memory of an input that nobody reads later.
struct InPlace {
  int output, input;
};

struct OpDefinition {
  std::string_view kind;
  std::string_view summary;  ///< one sentence
  /// Letters of every tensor.
  Letters (*letters)(const OpContext&);
  /// Element types and global shapes of the outputs; placements follow from the letters.
  std::vector<Type> (*infer)(const OpContext&);
  /// Backward ops; nullptr: nothing flows back through it.
  void (*gradient)(GradientBuilder&) = nullptr;
  /// Floating-point operations on one rank; nullptr: bound by memory alone.
  double (*flops)(const LocalOp&) = nullptr;
  /// Outputs that may take an input's memory, best first; passed over where an op has not both.
  std::vector<InPlace> in_place = {};
  /// Addition (and passing on): linear in all inputs together, so all may be partial at once and the results are.
  bool jointly_linear = false;
  /// The first so many inputs: linear in each of them alone, so that one that is a partial sum on kv_replicate makes
  /// the outputs so.
  int linear_inputs = 0;
  /// Adds to its outputs, which are accumulators.
  bool accumulates = false;
  /// One op over any number of tensors: behind the inputs that all share, so many inputs and outputs of each. Letters
  /// and types are those of one tensor, with what is shared. 0 inputs: the op is no such op.
  struct PerTensor {
    size_t shared = 0, inputs = 0, outputs = 0;
  } per_tensor = {};
};

/// The definition of a kind; CHECKs that it exists.
const OpDefinition& Define(std::string_view kind);
/// All definitions, in the order of the table.
const std::vector<OpDefinition>& AllOps();

/// "abc...": letters for element-wise ops, by rank.
std::string LettersOfRank(size_t rank);

/// The axes of a letter, given those of small letters: a capital one leaves out kv_replicate.
std::vector<Axis> AxesOfLetter(const std::map<char, std::vector<Axis>>& axes, char letter);

/// Types of an op's outputs: shapes from its definition, placements from the letters of its inputs. `free` gives the
/// axes of letters that only outputs have. CHECKs that inputs agree on every letter and that only shardable ones are
/// sharded.
std::vector<Type> InferOutputs(const Graph& graph, const Op& op, const std::vector<Placements>& free = {});

/// True for `reshard` and what it lowers to: ops whose output placements are stated.
bool IsReshard(std::string_view kind);

OpContext ContextOf(const Graph& graph, const Op& op);

/// The op with the shapes of its tensors on the rank at `coordinate`; it has an input at least.
LocalOp LocalOpOf(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

}  // namespace espalier
