// HDF5 behind handles that close themselves; every failure is an exception with HDF5's own words. HDF5 lays files out
// and describes them for people; tensor bytes are written and read beside it (shard.hpp).
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "espalier/util/types.hpp"

namespace espalier {

/// The one lock under which this process calls HDF5. Also prepares the library on the first use.
std::unique_lock<std::mutex> LockHdf5();

[[noreturn]] void FailHdf5(const char* expression);

/// HDF5_CALL(H5Fopen(...)): the result, or UserError with the expression and HDF5's innermost message.
template <typename T>
T CheckHdf5(T result, const char* expression) {
  if (result < 0) FailHdf5(expression);
  return result;
}
#define HDF5_CALL(call) ::espalier::CheckHdf5(call, #call)

/// An identifier and how to close it.
class Hdf5Handle {
 public:
  Hdf5Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  operator hid_t() const { return id_; }
  /// Closes now; a failure is an exception.
  void Close() { HDF5_CALL(close_(std::exchange(id_, -1))); }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// A new file: format of HDF5 1.10 (checksummed metadata), objects of 1 MiB and more aligned to 1 MiB, no times.
Hdf5Handle CreateHdf5File(const std::string& path);

/// Dataset creation list without times.
Hdf5Handle DatasetProperties();

/// Simple dataspace.
Hdf5Handle Dataspace(const Shape& shape);

/// Makes the groups above the dataset `name` ("a/b/c": a, a/b) where they do not exist.
void MakeGroups(hid_t file, const std::string& name);

void WriteAttribute(hid_t object, const char* name, const Shape& values);
void WriteAttribute(hid_t object, const char* name, int64_t value);
void WriteAttribute(hid_t object, const char* name, const std::string& text);

/// Fixed-length string type; at least one character.
Hdf5Handle TextType(const std::string& text);

}  // namespace espalier
