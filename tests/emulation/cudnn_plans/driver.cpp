// A stand-in for NVIDIA's driver, libcuda.so.1, for as long as cuDNN only plans.
//
// Why this is enough: from 9.8 on cuDNN plans for a GPU that is described to it (Graph::set_device_properties) and need
// not be there. It checks a graph, asks its heuristics, says what workspace a plan wants, and compiles the plan's
// kernels by NVRTC, all on the host and from the description alone. It needs three things from the driver. It looks up
// the functions below by name and plans nothing if one is missing; most of them it would call only to run a plan. It
// hands each compiled kernel to the driver (cuLibraryLoadData, cuLibraryGetKernel) and wants handles back, which it
// keeps. And it asks for the driver's version. So each function here returns success, three of them with a value, and
// nothing is computed: what cuDNN answers is its own. Whoever asks for a GPU is told that there is none. The program is
// linked with this library, so that a later dlopen("libcuda.so.1") finds it loaded, even where there is a real driver.
#include <cstdint>

namespace {

constexpr int kSuccess = 0, kNoDevice = 100, kVersion = 13000;

/// Handles that nobody follows.
int8_t library, kernel;

}  // namespace

extern "C" {

int cuInit(unsigned) { return kNoDevice; }
int cuDriverGetVersion(int* version) { return *version = kVersion, kSuccess; }
int cuLibraryLoadData(void** made, ...) { return *made = &library, kSuccess; }
int cuLibraryGetKernel(void** found, ...) { return *found = &kernel, kSuccess; }

#define SUCCEEDS(name) \
  int name() { return kSuccess; }
SUCCEEDS(cuCtxGetCurrent)
SUCCEEDS(cuCtxGetDevice)
SUCCEEDS(cuCtxGetLimit)
SUCCEEDS(cuCtxPopCurrent)
SUCCEEDS(cuCtxPushCurrent)
SUCCEEDS(cuDeviceGet)
SUCCEEDS(cuDeviceGetAttribute)
SUCCEEDS(cuDeviceGetCount)
SUCCEEDS(cuDevicePrimaryCtxRelease)
SUCCEEDS(cuDevicePrimaryCtxReset)
SUCCEEDS(cuDevicePrimaryCtxRetain)
SUCCEEDS(cuFuncGetAttribute)
SUCCEEDS(cuFuncSetAttribute)
SUCCEEDS(cuGetErrorName)
SUCCEEDS(cuGetErrorString)
SUCCEEDS(cuKernelGetAttribute)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuLaunchCooperativeKernel)
SUCCEEDS(cuLaunchKernel)
SUCCEEDS(cuLaunchKernelEx)
SUCCEEDS(cuLibraryLoadFromFile)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuLinkAddData)
SUCCEEDS(cuLinkAddData_v2)
SUCCEEDS(cuLinkAddFile_v2)
SUCCEEDS(cuLinkComplete)
SUCCEEDS(cuLinkCreate)
SUCCEEDS(cuLinkCreate_v2)
SUCCEEDS(cuLinkDestroy)
SUCCEEDS(cuMemcpyDtoH_v2)
SUCCEEDS(cuModuleGetFunction)
SUCCEEDS(cuModuleGetGlobal_v2)
SUCCEEDS(cuModuleLoadData)
SUCCEEDS(cuModuleLoadDataEx)
SUCCEEDS(cuModuleLoadFatBinary)
SUCCEEDS(cuModuleUnload)
SUCCEEDS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
SUCCEEDS(cuStreamGetCtx)
SUCCEEDS(cuStreamSynchronize)
SUCCEEDS(cuTensorMapEncodeTiled)
#undef SUCCEEDS
}
