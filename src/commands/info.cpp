// espalier info: what this executable is and what it can use here.
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <fmt/format.h>

#include "commands.hpp"
#include "espalier/executor/cuda_module.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/environment.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

#if defined(__x86_64__)
/// CPUID leaf 7, EDX bit 22 (Intel SDM, vol. 2A); compilers before clang 16 have no name for it.
bool HasAmxBf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0;
}
#endif

/// The processor features that decide how fast matmuls are.
std::string CpuFeatures() {
  std::string text;
#if defined(__x86_64__)
  const std::pair<const char*, bool> features[] = {{"avx2", __builtin_cpu_supports("avx2") != 0},
                                                   {"avx512f", __builtin_cpu_supports("avx512f") != 0},
                                                   {"avx512_bf16", __builtin_cpu_supports("avx512bf16") != 0},
                                                   {"amx_bf16", HasAmxBf16()}};
  for (const auto& [name, has] : features)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, has ? "yes" : "no");
#else
  text = "not an x86-64 processor";
#endif
  return text;
}

constexpr const char* kNextLine = "\n           ";

std::string GpusText(const CudaModule& module) try {
  std::string text;
  const std::vector<Gpu> gpus = module.Gpus();
  for (const Gpu& gpu : gpus)
    text += fmt::format("{}GPU {}: {}, {}, {:.1f} GiB", kNextLine, gpu.index, gpu.name, gpu.bus_id,
                        static_cast<double>(gpu.bytes) / (1 << 30));
  return gpus.empty() ? std::string(kNextLine) + "no GPU is visible" : text;
} catch (const UserError& error) {
  return std::string(kNextLine) + error.what();
}

/// What the CUDA module finds on this host, one GPU per line, or why it could not be loaded.
std::string CudaText() try {
  const CudaModule& module = LoadCudaModule();
  return fmt::format("module loaded ({})", module.Versions()) + GpusText(module);
} catch (const UserError& error) {
  return fmt::format("not available: {}", error.what());
}

}  // namespace

int VersionCommand() {
  fmt::print("espalier {} ({})\n", kVersion, kGitHash);
  return static_cast<int>(ExitStatus::kDone);
}

int InfoCommand() {
  fmt::print("espalier   {} ({})\n", kVersion, kGitHash);
  fmt::print("compiler   {}, {}, {}\n", kCompiler, kBuildType, *kCompilerFlags ? kCompilerFlags : "no extra flags");
  fmt::print("processor  {}\n", CpuFeatures());
  fmt::print("reference  built in\n");
  fmt::print("cpu        built in (oneDNN {})\n", kOneDnnVersion);
  fmt::print("cuda       {}\n", CudaText());
  fmt::print("mpi        built in ({})\n", kMpiVersion);
  fmt::print("hdf5       built in ({})\n", kHdf5Version);
  fmt::print("libraries  {}\n", kLibraries);
  for (const std::string& variable : DescribeEnvironment()) fmt::print("set        {}\n", variable);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
