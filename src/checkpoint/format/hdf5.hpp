// HDF5 with handles that close themselves. Every failure is an exception with the message of HDF5. HDF5 is used for the
// layout of files and for attributes; tensor bytes are written and read directly (shard.hpp).
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "espalier/util/types.hpp"

namespace espalier {

/// The lock under which this process calls HDF5. Initializes the library on first use.
std::unique_lock<std::mutex> LockHdf5();

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

/// A new file: format of HDF5 1.10 (metadata with checksums), objects from 1 MiB on aligned to 1 MiB, no timestamps.
Hdf5Handle CreateHdf5File(const std::string& path);

/// Properties of a new dataset, without timestamps.
Hdf5Handle DatasetProperties();

/// A simple dataspace.
Hdf5Handle Dataspace(const Shape& shape);

/// Creates the parent groups of the dataset `name` ("a/b/c": a, a/b) that do not exist.
void MakeGroups(hid_t file, const std::string& name);

void WriteAttribute(hid_t object, const char* name, const Shape& values);
void WriteAttribute(hid_t object, const char* name, int64_t value);
void WriteAttribute(hid_t object, const char* name, const std::string& text);

/// A fixed-length string type of at least one character.
Hdf5Handle TextType(const std::string& text);

}  // namespace espalier
