// Memory of this node and of this process, as the system tells it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace espalier {

/// Something that limits the memory of one process, or of several together.
struct MemoryLimit {
  std::string id;         ///< processes that name the same one share it; "": of this process alone
  std::string what;       ///< "free memory of the node", "control group /job_7 (limit 1.5 GB)"
  int64_t available = 0;  ///< bytes that new buffers can take without swapping or being ended
};

/// All that limit this process: free memory of the node, control groups (version 1 and 2) up to the root, RLIMIT_AS and
/// RLIMIT_DATA, and the commit limit where the system does not overcommit. Page cache counts as free.
std::vector<MemoryLimit> MemoryLimits();

/// What is available under the tightest of them; the largest number if the system does not say.
int64_t AvailableMemory();

/// As MemoryLimits, of the control groups of a process as the files under `root` tell them ("" for the system's own).
std::vector<MemoryLimit> GroupLimits(const std::string& root);

/// "1.5 GB": three significant digits, decimal units.
std::string Gigabytes(int64_t bytes);

/// Resident memory of this process at its highest, in bytes; 0 if the system does not say.
int64_t PeakResidentMemory();

}  // namespace espalier
