// Faults on purpose, to show what the program does under them (doc/reliability.md). The environment variable
// ESPALIER_FAULT names a stage, what happens there and at which visit: "stage[:action[:n]]". Without it a fault point
// costs one branch.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

namespace espalier {

/// Arms one fault: "" for none, else "stage[:action[:n]]". The action is "kill" (SIGKILL to this process; the default),
/// "stop" (this thread never goes on), "eio" or "enospc" (fails as the system would); n >= 1 counts visits of the stage
/// in this process, 1 if left out; each fault happens once. Throws UserError (kDeck) listing what is allowed.
void ArmFault(const std::string& text);

/// Arms what ESPALIER_FAULT says.
void ArmFaultFromEnvironment();

namespace fault_detail {
extern std::atomic<bool> armed;
void Visit(std::string_view stage, const std::string& where);
}  // namespace fault_detail

/// A place where a fault can happen; `where` is the file or directory at work. The errors are thrown as UserError (kFault).
inline void FaultPoint(std::string_view stage, const std::string& where = {}) {
  if (fault_detail::armed.load(std::memory_order_relaxed)) [[unlikely]]
    fault_detail::Visit(stage, where);
}

}  // namespace espalier
