// An operation graph of cuDNN as a list of steps, and the loops that compute them.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace espalier::emulation::cudnn {

using Uid = int64_t;
using Dims = std::array<int64_t, 4>;

/// A tensor of the graph. Virtual ones exist only while the graph runs.
struct Tensor {
  Uid uid;
  cudnnDataType_t type;
  Dims dims, strides;
  bool is_virtual, by_value;
};

enum class StepKind : uint8_t {
  kMatmul,     ///< c[m,n] = a[m,k] b[k,n]
  kPointwise,  ///< by a cudnnPointwiseMode_t
  kReduction,  ///< by a cudnnReduceTensorOp_t; dims of the result divide the operand's
  kTranspose,  ///< the last two dims, without a copy
};

/// Dims of operands divide those of the result: heads of queries share a head of keys in consecutive groups.
struct Step {
  StepKind kind;
  int mode;
  int64_t axis;  ///< of CUDNN_POINTWISE_GEN_INDEX
  std::vector<Uid> inputs;
  Uid output;
};

/// Memory that a virtual tensor has in the workspace, in bf16.
struct Kept {
  int64_t offset;
  Dims strides;
};

struct Program {
  std::map<Uid, Tensor> tensors;
  std::vector<Step> steps;  ///< each after those that make its operands
  std::map<Uid, Kept> kept = {};
  int64_t workspace_bytes = 0;
  bool sums_in_any_order = false;  ///< the library may add up dq as its blocks end

  const Tensor& Find(Uid uid) const { return tensors.at(uid); }
};

/// Finds a place in the workspace for what cuDNN 9 keeps there on compute capability 9.x, byte by byte: dS, which two
/// matmuls read, unless one of them adds to fp32 memory; and dK and dV of all query heads before they are added.
void PlaceInWorkspace(Program& program);

/// Memory of a call: device memory by uid, the host's for tensors by value.
using Pointers = std::map<Uid, void*>;

/// Values of the tensors by value, read as long as the caller keeps them.
std::map<Uid, float> ReadValues(const Program& program, const Pointers& pointers);

/// Runs the steps in fp32, in an order of sums that depends on no extent but the contracted one. Every tensor is
/// rounded to its type, and operands of a matmul to bf16 if the other one is bf16. The workspace is overwritten first.
void Run(const Program& program, const Pointers& pointers, const std::map<Uid, float>& values, std::byte* workspace);

/// The attention that a program computes, for logs: extents, mask and order of sums.
std::string Describe(const Program& program, const std::map<Uid, float>& values);

}  // namespace espalier::emulation::cudnn
