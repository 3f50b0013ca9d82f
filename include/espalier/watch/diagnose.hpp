// Who keeps whom waiting, from where the ranks stand and what their programs say: a pure function.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "espalier/program/compile.hpp"
#include "espalier/watch/heartbeat.hpp"

namespace espalier {

/// What the system says of a rank's process.
enum class ProcessState : uint8_t {
  kUnknown,  ///< on another host
  kSilent,   ///< there, and its heartbeat is not written any more
  kRunning,
  kStopped,  ///< by a signal or a debugger
  kGone,
};

/// Where a rank stands when no instruction finishes any more.
struct Standing {
  Heartbeat heartbeat;
  ProcessState process = ProcessState::kUnknown;
  bool present = true;  ///< has a heartbeat
  bool moving = false;  ///< something has finished there lately
};

enum class Fault : uint8_t {
  kStopped,  ///< the culprit's process is stopped
  kGone,     ///< the culprit's process is gone
  kAbsent,   ///< the culprit's heartbeat is missing
  kSilent,   ///< the culprit's host, or its way to the file system, does not answer
  kLost,     ///< what was sent between hosts has not arrived: `missing` sent it, `waiting` waits; nobody is the culprit
  kWentPast,    ///< the culprit is behind an instruction in which others wait for it
  kNotArrived,  ///< the culprit keeps others waiting, and waits for nobody itself
  kInKernel,    ///< all have arrived, but the culprit alone stands in a kernel: messages that wait for it do not pass
  kNobody,      ///< no rank can be blamed: all have arrived, or they wait in a circle
};

struct Diagnosis {
  Fault fault = Fault::kNobody;
  int culprit = -1;  ///< rank; -1 for kNobody and kLost
  int waiting = -1;  ///< a rank that waits, and the instruction of its program in which it does; -1: between steps
  int instruction = -1;
  std::vector<int> group;    ///< ranks that meet in that instruction
  std::vector<int> missing;  ///< of these, the ones that have not arrived; for kLost, those that have sent
  std::string text;          ///< all of it in words, some lines
};

/// `standings` by rank. `program_of(rank)` is asked for the ranks that matter alone.
Diagnosis Diagnose(const std::vector<Standing>& standings, const std::function<const Program&(int rank)>& program_of);

}  // namespace espalier
