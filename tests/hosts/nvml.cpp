// A stand-in for NVML with one GPU. NVML_ILL: it reports faults. NVML_BROKEN: the driver does not answer. NVML_HOT: its
// clock falls after a while, since it draws as much power as it may.
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace {

int gpu = 0;

bool IsSet(const char* name) { return std::getenv(name) != nullptr; }

/// Some time after the first call.
bool IsHot() {
  static const auto began = std::chrono::steady_clock::now();
  return IsSet("NVML_HOT") && std::chrono::steady_clock::now() - began > std::chrono::milliseconds(300);
}

struct Pci {
  char old_bus_id[16];
  unsigned numbers[5];
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};

}  // namespace

// NOLINTBEGIN: NVML's names
extern "C" {
int nvmlInit_v2() { return IsSet("NVML_BROKEN") ? 9 : 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
  *device = &gpu;
  return 0;
}
/// The handle of the first emulated GPU, whatever the address.
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  *device = &gpu;
  return std::strcmp(bus_id, "0000:01:00.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = IsHot() ? 699'500 : 512'000;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  *milliwatts = 700'000;
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned size) {
  std::strncpy(name, "a GPU of a test", size);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void*, Pci* pci) {
  std::strcpy(pci->bus_id, "00000000:17:00.0");
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {80'000'000'000, 79'000'000'000, 1'000'000'000};
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int type, unsigned* clock) {
  *clock = type != 1 ? 0 : IsHot() ? 1155 : 1410;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void*, int type, unsigned* clock) {
  *clock = type == 1 ? 1980 : 0;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void*, int kind, int since, unsigned long long* errors) {
  *errors = kind == 1 && since == 0 && IsSet("NVML_ILL") ? 2 : 0;
  return 0;
}
int nvmlDeviceGetRemappedRows(void*, unsigned* corrected, unsigned* uncorrected, unsigned* pending, unsigned* failed) {
  *corrected = 1;
  *uncorrected = 4;
  *pending = IsSet("NVML_ILL") ? 1 : 0;
  *failed = 0;
  return 0;
}
/// Always a power limit, which is no fault; when ill, heat too.
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = IsSet("NVML_ILL") ? 0x44 : 0x4;
  return 0;
}
}
// NOLINTEND
