// espalier info: properties of this executable and of this host.
#include <fmt/core.h>

#include "commands.hpp"
#include "espalier/executor/cuda_module.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/environment.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The properties of the CPU that decide how fast kernels are.
std::string CpuText() {
  const bool capped = CpuLevel() != UncappedCpuLevel();
  return fmt::format("instruction level {}{}, bf16 matmuls {}", CpuLevel(),
                     capped ? fmt::format(" by ESPALIER_ISA instead of {}", UncappedCpuLevel()) : "",
                     CpuWidensBf16() ? "in fp32, since the level has no instructions for them" : "in bf16");
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

/// The GPUs that the CUDA module finds on this host, one per line, or why it could not be loaded.
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
  fmt::print("reference  built in\n");
  fmt::print("cpu        {}\n", CpuText());
  fmt::print("cuda       {}\n", CudaText());
  fmt::print("mpi        built in ({})\n", kMpiVersion);
  fmt::print("hdf5       built in ({})\n", kHdf5Version);
  fmt::print("libraries  {}\n", kLibraries);
  for (const std::string& variable : DescribeEnvironment()) fmt::print("set        {}\n", variable);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
