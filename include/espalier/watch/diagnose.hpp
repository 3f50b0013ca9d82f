// Finds which rank blocks which, from the positions of the ranks in their programs. A pure function.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "espalier/program/compile.hpp"
#include "espalier/watch/heartbeat.hpp"

namespace espalier {

/// The state of a rank's process, as the system reports it.
enum class ProcessState : uint8_t {
  kUnknown,  ///< on another host
  kSilent,   ///< on another host, and its heartbeat is no longer written
  kRunning,
  kStopped,  ///< stopped by a signal or a debugger
  kGone,
};

/// The status of a rank when instructions no longer finish.
struct RankStatus {
  Heartbeat heartbeat;
  ProcessState process = ProcessState::kUnknown;
  bool present = true;  ///< the rank has a heartbeat
  bool moving = false;  ///< some instruction of the rank has finished recently
};

enum class Fault : uint8_t {
  kStopped,  ///< the culprit's process is stopped
  kGone,     ///< the culprit's process is gone
  kAbsent,   ///< the culprit's heartbeat is missing
  kSilent,   ///< the culprit's host, or its connection to the file system, does not answer
  kLost,  ///< a message between hosts has not arrived: `missing` sent it, `waiting` waits for it; there is no culprit
  kWentPast,    ///< the culprit has passed an instruction in which others wait for it
  kNotArrived,  ///< the culprit blocks others, and waits for nobody itself
  kInKernel,    ///< all have arrived, but only the culprit is in a kernel: messages that wait for it do not complete
  kNobody,      ///< no rank is at fault: all have arrived, or they wait in a cycle
};

struct Diagnosis {
  Fault fault = Fault::kNobody;
  int culprit = -1;  ///< rank; -1 for kNobody and kLost
  int waiting = -1;  ///< a rank that waits, and the instruction of its program in which it waits; -1: between steps
  int instruction = -1;
  std::vector<int> group;    ///< ranks that take part in that instruction
  std::vector<int> missing;  ///< ranks of the group that have not arrived; for kLost, ranks that have sent
  std::string text;          ///< the diagnosis in words, a few lines
};

/// The training program that a rank runs in a step.
using ProgramFinder = std::function<const Program&(int rank, int64_t step)>;

/// `statuses` by rank. `program_of` is called only for the ranks involved, with their current step.
Diagnosis Diagnose(const std::vector<RankStatus>& statuses, const ProgramFinder& program_of);

}  // namespace espalier
