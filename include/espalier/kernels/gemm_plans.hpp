// The file of measured GEMMs: which algorithm of the library is quickest for each, on one kind of GPU. `espalier
// calibrate` writes it, and run.gemm_plans names it; or starts write it, and time what it lacks.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/kernels/gemm.hpp"

namespace espalier {

/// The value of run.gemm_plans with which starts measure.
inline constexpr std::string_view kMeasuredAtStart = "auto";

struct GemmPlan {
  Gemm gemm;
  std::string algorithm;        ///< the library's own description, as hexadecimal digits
  int64_t workspace_bytes = 0;  ///< workspace that it needs
  double microseconds = 0;
  double first_microseconds = 0;  ///< time of the library's own first choice
};

struct GemmPlans {
  std::string gpu;      ///< "NVIDIA H200"
  std::string library;  ///< "cuBLASLt 13.1.0"
  std::vector<GemmPlan> plans;

  /// nullptr if it was not measured.
  const GemmPlan* Find(const Gemm& gemm) const;
};

/// JSON. The reader skips keys that it does not know, so the file may hold other measurements too.
std::string ToText(const GemmPlans& plans);

/// Throws UserError (kData) that names `source` and the error in it.
GemmPlans ParseGemmPlans(std::string_view text, const std::string& source);
GemmPlans ReadGemmPlans(const std::string& path);

/// Throws UserError (kData) with both values if the file was made on another GPU or with another library: its
/// algorithms may not run there.
void CheckMadeFor(const GemmPlans& plans, std::string_view gpu, std::string_view library, const std::string& source);

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
