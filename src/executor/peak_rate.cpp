#include "espalier/executor/peak_rate.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "espalier/kernels/kernel_table.hpp"
#include "espalier/util/attributes.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/units.hpp"

namespace espalier {
namespace {

/// Dense TFLOP/s from NVIDIA's datasheets: bf16 on tensor cores with fp32 sums, fp32 on the other cores.
struct GpuRates {
  std::string_view name;  ///< words of the name that the driver reports
  double bf16, fp32;
};
constexpr GpuRates kGpus[] = {
    {"GB200", 2500, 80}, {"B200", 2250, 75},     {"H200 NVL", 835.5, 60}, {"GH200", 989.4, 67},
    {"H200", 989.4, 67}, {"H100 PCIe", 756, 51}, {"H100 NVL", 835.5, 60}, {"H100 80GB HBM3", 989.4, 67},
    {"A100", 312, 19.5}, {"A40", 149.7, 37.4},   {"A30", 165, 10.3},      {"A10", 125, 31.2},
    {"L40S", 362, 91.6}, {"L40", 181, 90.5},     {"L4", 121, 30.3},
};

/// True if `words` are in `name` as whole words: "A10" is not in "A100".
bool HasWords(std::string_view name, std::string_view words) {
  const auto in_word = [&](size_t i) {
    return i < name.size() && std::isalnum(static_cast<unsigned char>(name[i])) != 0;
  };
  for (size_t at = name.find(words); at != name.npos; at = name.find(words, at + 1))
    if ((at == 0 || !in_word(at - 1)) && !in_word(at + words.size())) return true;
  return false;
}

/// Side of the square matrices: larger for more threads, so that each has enough work.
int64_t SideFor(int threads) {
  const auto side = static_cast<int64_t>(512 * std::sqrt(static_cast<double>(threads)));
  return std::clamp<int64_t>(side / 64 * 64, 512, 4096);
}

/// Seconds of the fastest of the matmuls that fit into about 25 ms, at least two; the first one warms up.
double FastestGemm(const KernelCall& call) {
  constexpr double kMilliseconds = 25;
  const Kernel matmul = FindCpuKernel("matmul");
  matmul(call);
  const auto began = std::chrono::steady_clock::now();
  double fastest = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 2 || MillisecondsSince(began) < kMilliseconds; ++round) {
    const auto before = std::chrono::steady_clock::now();
    matmul(call);
    fastest = std::min(fastest, MillisecondsSince(before) * 1e-3);
  }
  return fastest;
}

}  // namespace

PeakRate GpuPeak(std::string_view name, Dtype compute) {
  const auto* found = std::ranges::find_if(kGpus, [&](const GpuRates& gpu) { return HasWords(name, gpu.name); });
  // A MIG slice has only a fraction of the rate.
  if (found == std::end(kGpus) || HasWords(name, "MIG")) return {0, fmt::format("no peak is known of \"{}\"", name)};
  const double tera = compute == Dtype::kBf16 ? found->bf16 : found->fp32;
  return {tera * kTera, fmt::format("data sheet of {}: {} TFLOP/s in {}", found->name, tera, Name(compute))};
}

PeakRate MeasureCpuPeak(Dtype compute, int threads) {
  const int64_t side = SideFor(threads);
  // Processors multiply zeros as fast as other numbers.
  std::vector<float> memory(static_cast<size_t>(3 * side * side));
  Attributes attributes;
  attributes.texts["spec"] = "bsk,nk->bsn";
  Tensor a{memory.data(), compute, {1, side, side}, {0, 0, 0}},
      b{a.As<float>() + side * side, compute, {side, side}, {0, 0}}, c = a;
  c.data = b.As<float>() + side * side;
  const Tensor inputs[] = {a, b}, outputs[] = {c};
  const double seconds = FastestGemm({.inputs = inputs, .outputs = outputs, .attributes = &attributes});
  const double flops = 2 * std::pow(static_cast<double>(side), 3) / seconds;
  return {flops, fmt::format("measured at the start: {0} x {0} GEMMs in {1} by {2} thread{3} reach {4:.4g} TFLOP/s",
                             side, Name(compute), threads, threads == 1 ? "" : "s", flops / kTera)};
}

}  // namespace espalier
