// A profiler for tests: NVTX loads it by NVTX_INJECTION64_PATH, and it appends "push NAME" and "pop", with the thread
// first, to the file that NVTX_LOG names.
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace {

thread_local int depth = 0;

void Append(const std::string& line) {
  std::ofstream(std::getenv("NVTX_LOG"), std::ios::app) << std::to_string(gettid()) + " " + line + "\n";
}

int Push(const char* name) {
  Append(std::string("push ") + name);
  return depth++;
}

int Pop() {
  Append("pop");
  return --depth;
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(Push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(Pop);
  return 1;
}
