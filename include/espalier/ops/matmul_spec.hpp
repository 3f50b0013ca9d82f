// The attribute `spec` of ops, parsed: the einsum dims of a matmul, and of an operand that is quantized for one.
//
// b and s are the tokens, k the features of the input, and n those that the weight makes. So "bsn" as an operand is the
// gradient of a result, and a weight is stored as [out, in], "nk", or as [in, out], "kn". Rows of experts are "ebs",
// and a weight of experts is "enk". Elsewhere e counts matrices that are multiplied each by its own.
#pragma once

#include <string>
#include <string_view>

#include "espalier/util/attributes.hpp"

namespace espalier {

/// "bsk,nk->bsn": the dims of both operands and of the result. Contracted dims are adjacent: the first or the last dims
/// of an operand, or of its matrices.
struct MatmulSpec {
  std::string a, b, result;

  std::string Text() const { return a + "," + b + "->" + result; }
  bool IsContracted(char dim) const { return result.find(dim) == result.npos; }
  /// Number of the last dims of an operand that are all contracted, or all not.
  size_t InnerDims(std::string_view operand) const;
  /// Operands and result hold several matrices each, which their first dim counts.
  bool HasMatrices() const { return a.front() == 'e'; }
  /// A matmul that contracts the tokens of a batch makes a weight gradient, in fp32.
  bool MakesWeightGradient() const { return a.find('b') != a.npos && IsContracted('b'); }
  /// An operand of a matmul that is the gradient of another's result.
  static bool IsGradient(std::string_view operand) { return operand == "bsn" || operand == "ebsn"; }
};

/// "bsk->kbs,ky": the dims of a value, of its copy in fp8 and of the copy's scales, of which y counts the shards.
/// Weights of experts have no y, since none of their scales spans a sharded dim. "bsk->kbs,yu": the scales of blocks,
/// of which u counts the bytes of a shard.
struct QuantizeSpec {
  std::string from, to, scales;

  std::string Text() const { return from + "->" + to + "," + scales; }
  bool IsTransposed() const { return from != to; }
  /// Each row of the copy has a scale; else all rows of a rank have one, or all of an expert.
  bool HasRowScales() const { return scales.size() > 1 && !HasBlockScales(); }
  /// Each block along the last dim of the copy has a scale (block_scales.hpp).
  bool HasBlockScales() const { return scales.back() == 'u'; }
  /// Rows of experts, of which each has a scale; the op's second input is the expert of each row.
  bool IsOfExpertRows() const { return from == "ebsk"; }
  /// The weight of experts, of which each is quantized by itself.
  bool IsOfExpertWeights() const { return from == "enk"; }
  /// Values are read from memory a second time, to be rounded. Rows with scales of their own are then in the caches,
  /// and so are blocks.
  bool ReadsTwice() const { return !IsOfExpertRows() && !HasBlockScales() && (!HasRowScales() || IsTransposed()); }
};

/// True for the specs that kernels have.
bool IsMatmulSpec(std::string_view text);
bool IsGroupedSpec(std::string_view text);
bool IsQuantizeSpec(std::string_view text);

/// The attribute `spec`; CHECKs that kernels have it.
MatmulSpec MatmulSpecOf(const Attributes& attributes);
/// The same for a grouped matmul.
MatmulSpec GroupedSpecOf(const Attributes& attributes);
QuantizeSpec QuantizeSpecOf(const Attributes& attributes);

}  // namespace espalier
