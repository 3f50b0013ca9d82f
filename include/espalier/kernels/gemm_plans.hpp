// The file of measured GEMMs: which algorithm of the library is quickest for each, on one kind of GPU. `espalier
// calibrate` writes it, and run.gemm_plans names it; or starts write it, and time what it lacks.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/kernels/gemm.hpp"
#include "espalier/kernels/measurements.hpp"

namespace espalier {

/// The value of run.gemm_plans with which starts measure.
inline constexpr std::string_view kMeasuredAtStart = "auto";

struct GemmPlan {
  static const MeasurementsFormat kFormat;

  Gemm gemm;
  std::string algorithm;        ///< the library's own description, as hexadecimal digits
  int64_t workspace_bytes = 0;  ///< workspace that it needs
  double microseconds = 0;
  double first_microseconds = 0;  ///< time of the library's own first choice

  bool IsOf(const Gemm& other) const { return gemm == other; }
  bool IsOf(const GemmPlan& other) const { return IsOf(other.gemm); }
};

/// Algorithms may not run on another platform.
using GemmPlans = Measurements<GemmPlan>;

/// A GEMM that programs ask for, and the memory that its kernel may use besides its operands.
struct GemmDemand {
  Gemm gemm;
  int64_t workspace_bytes = 0;
  auto operator<=>(const GemmDemand&) const = default;
};

/// Bytes as hexadecimal digits and back.
std::string ToHex(std::span<const std::byte> bytes);
std::vector<std::byte> FromHex(std::string_view digits);

}  // namespace espalier
