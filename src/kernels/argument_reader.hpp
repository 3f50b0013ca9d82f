// Access to the operands and attributes of a call, for read_arguments.hpp.
#pragma once

#include <charconv>
#include <span>
#include <string>
#include <string_view>

#include "espalier/kernels/kernel_table.hpp"
#include "espalier/kernels/shapes.hpp"
#include "kernels/arguments.hpp"

namespace espalier {

/// A call's operands by number, each with the type that its op requires.
class Reader {
 public:
  explicit Reader(const KernelCall& call) : call_(call) {}

  size_t Inputs() const { return call_.inputs.size(); }
  const Tensor& In(size_t i) const { return At(call_.inputs, i); }
  const Tensor& Out(size_t i) const { return At(call_.outputs, i); }
  Array InFloats(size_t i) const { return Floats(In(i)); }
  Array OutFloats(size_t i) const { return Floats(Out(i)); }
  /// Optional operands of a call.
  Array InFloatsOrNone(size_t i) const { return i < call_.inputs.size() ? InFloats(i) : Array{}; }
  Array OutFloatsOrNone(size_t i) const { return i < call_.outputs.size() ? OutFloats(i) : Array{}; }
  bool HasCopy() const { return call_.attributes->texts.contains("copy"); }
  /// The copy of a master; none without attribute `copy`.
  Array CopyOrNone(size_t i) const {
    if (!HasCopy()) return {};
    CHECK(Out(i).dtype == Dtype::kBf16, "output {}: {} where bf16 was expected", i, Name(Out(i).dtype));
    return OutFloats(i);
  }
  /// Operands whose type the caller checks.
  Array InAny(size_t i) const { return {In(i).data, In(i).dtype}; }
  Array OutAny(size_t i) const { return {Out(i).data, Out(i).dtype}; }
  const float* InF32(size_t i) const { return F32(In(i)); }
  float* OutF32(size_t i) const { return F32(Out(i)); }
  const int32_t* InI32(size_t i) const {
    CHECK(In(i).dtype == Dtype::kI32, "input {}: {} where i32 was expected", i, Name(In(i).dtype));
    return In(i).As<int32_t>();
  }

  double Number(std::string_view name) const { return call_.attributes->Number(name); }
  double NumberOr(std::string_view name, double otherwise) const { return call_.attributes->NumberOr(name, otherwise); }
  int64_t Integer(std::string_view name) const { return call_.attributes->Integer(name); }
  int64_t IntegerOr(std::string_view name, int64_t otherwise) const {
    return call_.attributes->IntegerOr(name, otherwise);
  }
  std::string_view TextOr(std::string_view name, std::string_view otherwise) const {
    return call_.attributes->TextOr(name, otherwise);
  }
  /// The t-th key of random words in an attribute, which has 16 hex digits for each.
  uint64_t Key(std::string_view name, size_t t) const {
    constexpr size_t kDigits = 16;
    const std::string_view keys = TextOr(name, "");
    CHECK(keys.size() >= (t + 1) * kDigits, "no random bits for parameter {}: {} = \"{}\"", t, name, keys);
    const char* const at = keys.data() + t * kDigits;
    uint64_t key = 0;
    const auto [end, error] = std::from_chars(at, at + kDigits, key, 16);
    CHECK(error == std::errc{} && end == at + kDigits, "{} = \"{}\"", name, keys);
    return key;
  }

 private:
  static const Tensor& At(std::span<const Tensor> tensors, size_t i) {
    CHECK(i < tensors.size(), "operand {} of {}", i, tensors.size());
    return tensors[i];
  }
  static Array Floats(const Tensor& x) {
    CHECK(x.dtype == Dtype::kF32 || x.dtype == Dtype::kBf16, "{} where f32 or bf16 was expected", Name(x.dtype));
    return {x.data, x.dtype};
  }
  static float* F32(const Tensor& x) {
    CHECK(x.dtype == Dtype::kF32, "{} where f32 was expected", Name(x.dtype));
    return x.As<float>();
  }

  const KernelCall& call_;
};

}  // namespace espalier
