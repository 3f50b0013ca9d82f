// Tensors that own their memory, and kernel calls on them: for the tests and the benchmark of the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "espalier/kernels/kernel_table.hpp"
#include "kernels/fp8.hpp"

namespace espalier::testing {

/// A tensor with its own memory, filled with zeros, and guards before and after it.
class OwnedTensor {
 public:
  OwnedTensor(Dtype dtype, Shape shape, Shape start = {})
      : dtype_(dtype),
        shape_(std::move(shape)),
        start_(std::move(start)),
        count_(Volume(shape_)),
        first_(kGuardBytes),
        bytes_(static_cast<size_t>(count_ * SizeOf(dtype) + 2 * kGuardBytes), kGuard) {
    if (start_.empty()) start_.assign(shape_.size(), 0);
    std::memset(Data(), 0, DataBytes());
  }

  Tensor View() const { return {Data(), dtype_, shape_, start_}; }
  /// The same tensor, with its first element `elements` elements after a boundary of 16 bytes.
  OwnedTensor Shifted(int64_t elements) const {
    OwnedTensor shifted = *this;
    shifted.first_ = kGuardBytes + elements * SizeOf(dtype_);
    shifted.bytes_.assign(bytes_.size() + static_cast<size_t>(elements * SizeOf(dtype_)), kGuard);
    std::memcpy(shifted.Data(), Data(), DataBytes());
    return shifted;
  }
  /// Rows [begin, end) of its first dim.
  OwnedTensor Rows(int64_t begin, int64_t end) const {
    Shape shape = shape_, start = start_;
    shape[0] = end - begin;
    start[0] += begin;
    OwnedTensor rows(dtype_, shape, start);
    const int64_t bytes = count_ / shape_[0] * SizeOf(dtype_);
    std::memcpy(rows.Data(), Data() + begin * bytes, static_cast<size_t>((end - begin) * bytes));
    return rows;
  }
  int64_t Count() const { return count_; }
  Dtype dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }

  double operator[](int64_t i) const {
    if (dtype_ == Dtype::kI32) return At<int32_t>(i);
    if (IsFp8(dtype_)) return FromFp8(dtype_, At<uint8_t>(i));
    if (dtype_ == Dtype::kF8E8M0) return FromE8M0(At<uint8_t>(i));
    return dtype_ == Dtype::kF32 ? At<float>(i) : ToFloat(At<Bf16>(i));
  }
  /// Any type but fp8 and its scales, which kernels write.
  void Set(int64_t i, double value) {
    if (dtype_ == Dtype::kI32) {
      At<int32_t>(i) = static_cast<int32_t>(value);
    } else if (dtype_ == Dtype::kF32) {
      At<float>(i) = static_cast<float>(value);
    } else {
      At<Bf16>(i) = ToBf16(static_cast<float>(value));
    }
  }
  bool SameBits(const OwnedTensor& o) const { return std::memcmp(Data(), o.Data(), DataBytes()) == 0; }
  /// False if something was written before the first element or after the last.
  bool IsIntact() const {
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    return std::all_of(bytes_.begin(), bytes_.begin() + first_, is_guard) &&
           std::all_of(bytes_.end() - kGuardBytes, bytes_.end(), is_guard);
  }
  double Largest() const {
    double largest = 0;
    for (int64_t i = 0; i < Count(); ++i) {
      if (std::isfinite((*this)[i])) largest = std::max(largest, std::abs((*this)[i]));
    }
    return largest;
  }

 private:
  static constexpr int64_t kGuardBytes = 64;
  static constexpr std::byte kGuard{0xa5};

  std::byte* Data() const { return const_cast<std::byte*>(bytes_.data() + first_); }
  template <typename T>
  T& At(int64_t i) const {
    return reinterpret_cast<T*>(Data())[i];
  }
  size_t DataBytes() const { return static_cast<size_t>(count_ * SizeOf(dtype_)); }

  Dtype dtype_;
  Shape shape_, start_;
  int64_t count_, first_;  ///< elements, and the byte of the first one
  std::vector<std::byte> bytes_;
};

/// Random tensors from one seed.
class Random {
 public:
  explicit Random(unsigned seed = 1) : engine_(seed) {}

  OwnedTensor Real(Dtype dtype, Shape shape, double low = -1, double high = 1, Shape start = {}) {
    OwnedTensor x(dtype, std::move(shape), std::move(start));
    std::uniform_real_distribution<double> values(low, high);
    for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, values(engine_));
    return x;
  }
  /// Integers in [low, high].
  OwnedTensor Integer(Shape shape, int low, int high) {
    OwnedTensor x(Dtype::kI32, std::move(shape));
    std::uniform_int_distribution<int> values(low, high);
    for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, values(engine_));
    return x;
  }

 private:
  std::mt19937 engine_;
};

inline void Run(Kernel kernel, const std::vector<const OwnedTensor*>& inputs, const std::vector<OwnedTensor*>& outputs,
                const Attributes& attributes = {}, bool accumulate = false) {
  std::vector<Tensor> in, out;
  for (const OwnedTensor* x : inputs) in.push_back(x->View());
  for (OwnedTensor* y : outputs) out.push_back(y->View());
  kernel({.inputs = in, .outputs = out, .attributes = &attributes, .accumulate = accumulate});
}

}  // namespace espalier::testing
