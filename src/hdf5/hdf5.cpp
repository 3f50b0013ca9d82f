#include "espalier/hdf5/hdf5.hpp"

#include <cstdlib>
#include <string_view>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

herr_t KeepDescription(unsigned, const H5E_error2_t* error, void* text) {
  if (error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

}  // namespace

void InitializeHdf5() {
  static std::once_flag once;
  std::call_once(once, [] {
    // HDF5 would crash at exit on a file that a full disk has truncated.
    H5dont_atexit();
    // Network file systems often refuse locks, and nobody else writes what we read.
    ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);
    H5open();
  });
}

std::unique_lock<std::mutex> LockHdf5() {
  static std::mutex mutex;
  std::unique_lock lock(mutex);
  InitializeHdf5();
  // Messages go into our exceptions, not to the terminal. The setting is per thread.
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  return lock;
}

std::string Hdf5Cause() {
  std::string cause = "no message";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, KeepDescription, &cause);
  return cause;
}

void FailHdf5(const char* expression) {
  throw UserError(ExitStatus::kFault,
                  fmt::format("HDF5: {}: {}", std::string_view(expression).substr(0, 40), Hdf5Cause()));
}

}  // namespace espalier
