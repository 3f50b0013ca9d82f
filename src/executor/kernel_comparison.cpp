#include "espalier/executor/kernel_comparison.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"
#include "spoil.hpp"

namespace espalier {
namespace {

/// fp32 sums differ by their order; a bf16 result may be rounded twice. Wrong kernels differ by far more.
double BoundOf(Dtype dtype) { return dtype == Dtype::kF32 ? 1e-4 : dtype == Dtype::kBf16 ? 1.0 / 64 : 0; }

double ElementOf(const Tensor& tensor, int64_t i) {
  if (tensor.dtype == Dtype::kF32) return tensor.As<float>()[i];
  if (tensor.dtype == Dtype::kBf16) return ToFloat(tensor.As<Bf16>()[i]);
  return tensor.dtype == Dtype::kI32 ? tensor.As<int32_t>()[i] : tensor.As<uint8_t>()[i];
}

std::vector<double> ElementsOf(const Tensor& tensor) {
  std::vector<double> elements;
  for (int64_t i = 0; i < Volume(tensor.shape); ++i) elements.push_back(ElementOf(tensor, i));
  return elements;
}

std::vector<std::byte> BytesOf(const Tensor& tensor) {
  const auto* begin = tensor.As<std::byte>();
  return {begin, begin + Volume(tensor.shape) * SizeOf(tensor.dtype)};
}

double LargestOf(const std::vector<double>& elements) {
  double largest = 0;
  for (double x : elements)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  return largest;
}

bool IsSame(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// A result with fewer elements than the first input may consist of sums that cancel, such as the gradient of the keys'
/// bias: rounding is then relative to the terms.
double RoundingOfSums(const Tensor& input, const Tensor& output) {
  const double terms = static_cast<double>(Volume(input.shape)) / static_cast<double>(Volume(output.shape));
  return terms > 1 ? terms * LargestOf(ElementsOf(input)) / (1 << 23) : 0;
}

/// The largest deviation from `expected` in units of its bound. `absolute` is added to the bound.
double ShareOf(const Tensor& actual, const std::vector<double>& expected, double absolute) {
  const double bound = BoundOf(actual.dtype) * LargestOf(expected) + absolute;
  double worst = 0;
  for (int64_t i = 0; i < std::ssize(expected); ++i) {
    const double a = ElementOf(actual, i), e = expected[static_cast<size_t>(i)];
    if (IsSame(a, e)) continue;
    const double share = std::abs(a - e) / bound;
    worst = std::max(worst, std::isfinite(share) ? share : std::numeric_limits<double>::infinity());
  }
  return worst;
}

}  // namespace

KernelComparison::KernelComparison(const Program& program, const Coordinate& coordinate, Arena& arena)
    : Executor(program, coordinate, arena, FindCpuKernel, {}) {
  CHECK(exchanges_.empty() && copies_.empty(), "kernels are compared in programs that neither communicate nor copy");
}

void KernelComparison::Begin() {
  UseMemory();
  for (const Call& call : calls_) {
    arena_.Use(call.end);
    for (const Operands& block : call.blocks) Compare(call, block);
  }
}

void KernelComparison::Fill(const Operand& place, const void* data, int64_t bytes) {
  arena_.Write(arena_.At(place.offset, bytes), data, bytes);
}

/// Outputs may be inputs too, or be accumulated into: both kernels start from the same contents.
void KernelComparison::Compare(const Call& call, const Operands& block) {
  const std::string name(Name(OpOf(call.index).kind));
  const Kernel reference = FindReferenceKernel(name);
  CHECK(reference != nullptr, "no reference for {}", Describe(call.index));
  std::vector<std::vector<std::byte>> before;
  std::vector<double> absolute;
  for (const Tensor& output : block.outputs) {
    before.push_back(BytesOf(output));
    absolute.push_back(RoundingOfSums(block.inputs[0], output));
  }
  reference(ArgumentsOf(call, block));
  std::vector<std::vector<double>> expected;
  for (size_t i = 0; i < before.size(); ++i) {
    expected.push_back(ElementsOf(block.outputs[i]));
    std::memcpy(block.outputs[i].data, before[i].data(), before[i].size());
  }
  call.kernel(ArgumentsOf(call, block));
  if (FaultAtInstruction(call.index) == InstructionFault::kNan) Spoil(block.outputs);
  for (size_t i = 0; i < expected.size(); ++i)
    if (const double share = ShareOf(block.outputs[i], expected[i], absolute[i]); share >= worst_.share)
      worst_ = {Describe(call.index), share};
  kernels_.insert(name);
  ++compared_;
}

}  // namespace espalier
