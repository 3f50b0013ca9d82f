// The HDF5 library: its lock, and handles that close themselves. Every failure is an exception with the message of
// HDF5.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

namespace espalier {

/// Before the first use of HDF5 and before threads start: sets the library's switches.
void InitializeHdf5();

/// The lock under which this process calls HDF5. Initializes the library on first use.
std::unique_lock<std::mutex> LockHdf5();

/// HDF5's innermost message about the call that failed last on this thread.
std::string Hdf5Cause();

[[noreturn]] void FailHdf5(const char* expression);

/// HDF5_CALL(H5Fopen(...)): the result, or UserError with the expression and HDF5's innermost message.
template <typename T>
T CheckHdf5(T result, const char* expression) {
  if (result < 0) FailHdf5(expression);
  return result;
}
#define HDF5_CALL(call) ::espalier::CheckHdf5(call, #call)

/// Owns an HDF5 identifier.
class Hdf5Handle {
 public:
  Hdf5Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  operator hid_t() const { return id_; }
  /// Closes now; throws on failure.
  void Close() { HDF5_CALL(close_(std::exchange(id_, -1))); }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

}  // namespace espalier
