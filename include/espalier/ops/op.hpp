// The definition of each op for the compiler: einsum dims, shapes, traits of its kernel, gradient.
// Adding an op is one row in graph/op_list.hpp and one file in src/ops, plus one kernel per backend.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/graph/graph.hpp"
#include "espalier/util/no_default.hpp"

namespace espalier {

/// The dims of each tensor of an op, one letter each, as in einsum ("bsk", "nk" -> "bsn"). A dim of an input that is in
/// no output is contracted: where it is sharded, that output is partial. A dim of an output alone may be sharded
/// freely. An upper-case letter is the lower-case one in a tensor with fewer heads: sharded on the same axes except
/// kv_replicate.
struct Einsum {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::string shardable;         ///< dims that may be sharded at all
  Reduce reduce = Reduce::kSum;  ///< how the partial results of a contracted dim are reduced
  /// Dims of values that cannot be resharded: an axis that shards one of them in an activation stays there, whatever
  /// other inputs ask for. Weights have no say in them.
  std::string anchored = {};
};

/// Attribute of a matmul that precision.matmul = "fp8" selects, until its operands are quantized (pass `quantize`).
inline constexpr std::string_view kFp8Mark = "fp8";

/// An op with the types of its inputs.
struct OpContext {
  const Op& op;
  std::vector<Type> inputs;

  const Shape& Extents(int input) const { return inputs[static_cast<size_t>(input)].shape; }
  Dtype ElementType(int input) const { return inputs[static_cast<size_t>(input)].dtype; }
};

/// The actions of an op's gradient (src/passes/differentiate.cpp).
class GradientBuilder {
 public:
  virtual ~GradientBuilder() = default;
  /// Number of inputs of the forward op.
  virtual int Inputs() const = 0;
  /// Value ids of the forward op.
  virtual int Input(int i) const = 0;
  virtual int Output(int i) const = 0;
  /// Output `i`, or what an op that completes it makes of it (OpDefinition::completes).
  virtual int Completed(int i) const = 0;
  /// The forward op's attributes.
  virtual const Attributes& ForwardAttributes() const = 0;
  /// Value id of the adjoint of output `i`. For a loss it is kSeed: an adjoint of 1 that no tensor holds.
  virtual int Adjoint(int output) const = 0;
  /// Emits a backward op whose output j is a summand of the adjoint of forward input `adjoint_of[j]`: in role W if that
  /// input is a weight, else in role B. Emits nothing if no gradient is wanted there.
  virtual void Emit(OpKind kind, std::vector<int> inputs, Attributes attributes, std::vector<int> adjoint_of) = 0;
  /// The adjoint of input `i` receives `adjoint` itself (a value, or kSeed).
  virtual void Pass(int i, int adjoint) = 0;

  static constexpr int kSeed = -2;
};

/// Local shapes of one op on one rank, for costs. A joined op is the one that it stands for: its joined values are the
/// parts by themselves, its neighbours are one tensor, and `op` has no attribute `columns`.
struct LocalOp {
  Op op;
  std::vector<Shape> inputs;
  std::vector<Shape> outputs;
  Dtype dtype = Dtype::kF32;  ///< of the first input
  std::vector<Dtype> input_dtypes = {}, output_dtypes = {};
  int64_t blocks = 1;  ///< of rows that are not adjacent in memory: a strip may have several
};

/// Bytes of the inputs or outputs of a transfer, whichever are more, tensor by tensor.
double LargerSideBytes(const LocalOp& op);

/// An output that may reuse the buffer of an input that is dead after the op.
struct InPlace {
  int output, input;
};

/// Operands of an op that kernels see as one tensor with all their rows, so that they follow one another in memory.
struct Neighbours {
  struct Operands {
    size_t first = 0, count = 0;
  } inputs = {}, outputs = {};
};

/// kIndependent: an op whose operands have rows (tokens: the first two dims of the first input) computes each from the
/// same row of its inputs, whatever the other rows are, so that it may have strips (ops/strip.hpp). kTogether: rows
/// depend on one another, or are not the first dims, or strips are of no use.
enum class Rows : uint8_t { kIndependent, kTogether };

/// The time of a kernel follows from its floating-point operations on one rank or, if it is memory-bound, from the
/// bytes that it reads and writes. `accumulate`: it adds to its outputs.
struct Work {
  using Flops = double (*)(const LocalOp&);
  using Bytes = double (*)(const LocalOp&, bool accumulate);

  constexpr Work(Flops operations) : flops(operations) {}
  constexpr Work(Bytes moved) : bytes(moved) {}

  Flops flops = nullptr;  ///< nullptr: memory-bound
  Bytes bytes = nullptr;
};

/// Attributes that select a kernel or its work: measured times of different ones are kept apart (costs). Others, such
/// as eps, change no time.
struct KeyAttributes {
  std::vector<std::string_view> texts = {}, numbers = {};
};
inline const KeyAttributes kNoAttributes;

/// Properties of a kernel, for costs and passes. No member has a default: a definition without one does not compile.
/// (The workspace of GPU kernels depends on vendors' libraries; device_memory/workspace.hpp has it.)
struct KernelTraits {
  NoDefault<Rows> rows;
  Work work;
  NoDefault<KeyAttributes> key;
};

struct OpDefinition {
  OpKind kind = OpKind::kNone;  ///< filled in by the table
  std::string_view summary;     ///< one sentence
  /// Einsum of every tensor.
  NoDefault<Einsum (*)(const OpContext&)> einsum;
  /// Element types and global shapes of the outputs; placements follow from the einsum dims.
  NoDefault<std::vector<Type> (*)(const OpContext&)> infer;
  KernelTraits kernel;
  /// Backward ops; nullptr: nothing flows back through it.
  void (*gradient)(GradientBuilder&) = nullptr;
  /// Outputs that may reuse an input's buffer, best first. Pairs that an op does not have are skipped.
  std::vector<InPlace> in_place = {};
  /// Linear in all inputs together (add, ring_shift): all may be partial on the same axes, and so are the outputs. A
  /// cast with `parts` is treated likewise.
  bool jointly_linear = false;
  /// The op is linear in each of its first `linear_inputs` inputs. One of them may be a partial sum on kv_replicate;
  /// the outputs are then partial, too.
  int linear_inputs = 0;
  /// The op adds to its outputs, which are accumulators.
  bool accumulates = false;
  /// Its result is differentiated: its first output has the adjoint kSeed.
  bool is_loss = false;
  /// Output i is input i in its final form: the gradient of the op that made the inputs reads the outputs.
  bool completes = false;
  /// A multi-tensor op. Its inputs are `shared` common ones, then `inputs` per tensor; its outputs are `outputs` per
  /// tensor, and a copy with attribute `copy`. `einsum` and `infer` describe one tensor with the shared inputs.
  /// inputs == 0: not a multi-tensor op.
  struct PerTensor {
    size_t shared = 0, inputs = 0, outputs = 0;
  } per_tensor = {};
  /// So many inputs and outputs, from the first, may be one joined value each (graph/columns.hpp): the op then has the
  /// attribute `columns`.
  struct Joinable {
    size_t inputs = 0, outputs = 0;
  } joinable = {};
  /// nullptr: no operands need to be neighbours.
  Neighbours (*neighbours)(const Op&) = nullptr;
};

/// The definition of a kind; CHECKs that it is not kNone.
const OpDefinition& Define(OpKind kind);
/// All definitions, in the order of OpKind.
const std::vector<OpDefinition>& AllOps();

/// OpDefinition::per_tensor of an op, with its copies.
OpDefinition::PerTensor PerTensorOf(const Op& op);

/// The share of the rows of experts that balanced routing fills, of an op on such rows (src/ops/dispatch.cpp).
double FilledShare(const Attributes& attributes);

/// "abc...": the dims of an element-wise op on tensors of this rank.
std::string DimsOfRank(size_t rank);

/// The axes of a dim, given those of the lower-case dims; an upper-case dim leaves out kv_replicate.
std::vector<Axis> AxesOfDim(const std::map<char, std::vector<Axis>>& axes, char dim);

/// Types of an op's outputs: shapes from its definition, placements from the dims of its inputs. `free` gives the axes
/// of dims that only outputs have. CHECKs that inputs agree on the axes of every dim, and that only shardable dims are
/// sharded.
std::vector<Type> InferOutputs(const Graph& graph, const Op& op, const std::vector<Placements>& free = {});

OpContext ContextOf(const Graph& graph, const Op& op);

/// The op with the shapes of its tensors on the rank at `coordinate`; it has at least one input. An op of a strip has
/// the rows of its strip only.
LocalOp LocalOpOf(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

}  // namespace espalier
