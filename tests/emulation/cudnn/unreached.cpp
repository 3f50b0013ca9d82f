// Functions that cuDNN's front end refers to, and that attention does not reach: for convolutions, for engines of its
// own, which it compiles by NVRTC, and for autotuning. Two are called: no driver is below the emulated runtime, and a
// capture has no modes. None looks at an argument, so that no header of the toolkit is needed.
namespace espalier::emulation {

[[noreturn]] void Fail(const char* what);

}  // namespace espalier::emulation

extern "C" {

int cudaGetDriverEntryPointByVersion() {
  constexpr int kNotSupported = 801;
  return kNotSupported;
}
int cudaThreadExchangeStreamCaptureMode() { return 0; }

#define UNREACHED(name) \
  void name() { espalier::emulation::Fail(#name " is not emulated"); }
UNREACHED(cudaDeviceSynchronize)
UNREACHED(cudaEventCreate)
UNREACHED(cudaKernelSetAttributeForDevice)
UNREACHED(cudaLaunchKernel)
UNREACHED(cudaLibraryGetKernel)
UNREACHED(cudaLibraryLoadData)
UNREACHED(cudaLibraryUnload)
UNREACHED(cudaPointerGetAttributes)
UNREACHED(cudnnCreateFilterDescriptor)
UNREACHED(cudnnDestroyFilterDescriptor)
UNREACHED(cudnnReorderFilterAndBias)
UNREACHED(cudnnSetFilterNdDescriptor)
UNREACHED(nvrtcCompileProgram)
UNREACHED(nvrtcCreateProgram)
UNREACHED(nvrtcDestroyProgram)
UNREACHED(nvrtcGetCUBIN)
UNREACHED(nvrtcGetCUBINSize)
UNREACHED(nvrtcGetProgramLog)
UNREACHED(nvrtcGetProgramLogSize)
#undef UNREACHED
}
