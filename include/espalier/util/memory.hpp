// Memory of this node and of this process, as the system reports it.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace espalier {

/// A limit on the memory of one process, or of several together.
struct MemoryLimit {
  std::string id;         ///< processes with the same id share the limit; "": for this process only
  std::string what;       ///< "free memory of the node", "control group /job_7 (limit 1.5 GB)"
  int64_t available = 0;  ///< bytes that can be allocated without swapping or being killed

  auto Fields() { return std::tie(id, what, available); }
};

/// All limits of this process: free memory of the node, control groups (version 1 and 2) up to the root, RLIMIT_AS and
/// RLIMIT_DATA, and the commit limit where the system does not overcommit. Page cache counts as free.
std::vector<MemoryLimit> MemoryLimits();

/// The smallest of the available bytes; the largest int64 if the system reports no limit.
int64_t AvailableMemory();

/// Like MemoryLimits, for the control groups of a process, read from files under `root` ("" for the system's).
std::vector<MemoryLimit> GroupLimits(const std::string& root);

/// "1.5 GB": three significant digits, decimal units.
std::string Gigabytes(int64_t bytes);

/// The peak resident memory of this process, in bytes; 0 if the system does not report it.
int64_t PeakResidentMemory();

/// The resident memory of this process now, in bytes, in some microseconds; 0 if the system does not report it.
int64_t ResidentMemory();

}  // namespace espalier
