// The destination of loaded bytes: a local tensor on the host, or on a device through a window of bounded size.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"

namespace espalier {

/// Takes runs of bytes of one tensor, in ascending order. For a device they are collected in a window of 4 MiB of the
/// tensor, which is read before it is written back if there are gaps between the runs.
class Destination {
 public:
  explicit Destination(const LocalTensor& tensor) : tensor_(tensor) {}

  /// Bytes [to, to + bytes) of the tensor.
  void Put(int64_t to, const char* from, int64_t bytes);
  /// Writes the rest; the last call.
  void Flush();

 private:
  struct Run {
    int64_t to, bytes;
    size_t at;  ///< in held_
  };
  char* Place(int64_t to) const { return static_cast<char*>(tensor_.data) + to; }

  const LocalTensor& tensor_;
  std::vector<Run> runs_;
  std::vector<char> held_, window_;
};

}  // namespace espalier
