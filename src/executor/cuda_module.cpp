#include "espalier/executor/cuda_module.hpp"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "espalier/util/environment.hpp"
#include "espalier/util/error.hpp"
#include "executor/cuda_module_folder.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "espalier_cuda.so";
constexpr const char* kVariable = "ESPALIER_CUDA_MODULE";

[[noreturn]] void Refuse(const std::string& what) { throw UserError(ExitStatus::kFault, "cuda: " + what); }

fs::path FindModule() {
  if (const auto named = FromEnvironment(kVariable)) {
    if (!fs::exists(*named)) Refuse(fmt::format("{} names {}, which is not there", kVariable, *named));
    return *named;
  }
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path installed = (folder / CUDA_MODULE_FOLDER).lexically_normal();
  for (const fs::path& path : {folder / kName, installed / kName})
    if (fs::exists(path)) return path;
  Refuse(
      fmt::format("this build has no {}: it is neither in {} nor in {} (nvcc, cuBLASLt, cuDNN and NCCL are needed to "
                  "build it: meson setup -Dcuda=enabled says what is missing)",
                  kName, folder.string(), installed.string()));
}

CudaModule& Load() {
  const fs::path path = FindModule();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) Refuse(fmt::format("{} cannot be loaded: {}", path.string(), dlerror()));
  using Entry = decltype(&EspalierCudaModule);
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "EspalierCudaModule"));
  if (entry == nullptr) Refuse(fmt::format("{} is no module of this program: {}", path.string(), dlerror()));
  return *entry();
}

}  // namespace

bool NcclToItself() { return FromEnvironment("ESPALIER_NCCL_SELF") == "1"; }

bool MayHaveGpus() {
  return FromEnvironment(kVariable).has_value() || dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr;
}

bool AttentionDemand::IsSameCall(const AttentionDemand& other) const {
  const auto same = [](const Tensor& a, const Tensor& b) {
    return a.dtype == b.dtype && a.shape == b.shape && a.start == b.start;
  };
  return attributes == other.attributes && std::ranges::equal(inputs, other.inputs, same) &&
         std::ranges::equal(outputs, other.outputs, same);
}

CudaModule& LoadCudaModule() {
  static CudaModule& module = Load();
  return module;
}

}  // namespace espalier
