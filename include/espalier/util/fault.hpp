// Fault injection, to test how the program reacts (doc/dev/fault-injection.md). The environment variable ESPALIER_FAULT
// names a stage, an action and a visit: "stage[:action[:n]]". Without it a fault point costs one branch.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace espalier {

/// The names of a source file's fault points. Each file that has some declares one object of this type, so that
/// ArmFault knows every stage of the program that is linked.
class FaultStages {
 public:
  FaultStages(std::initializer_list<std::string_view> stages);
};

/// Arms one fault: "" for none, else "stage[:action[:n]]". The action is "kill" (SIGKILL to this process; the default),
/// "stop" (this thread never continues), "hold" (it waits while the file ESPALIER_FAULT_HOLD exists), "eio" or "enospc"
/// (fails like a system call), "nomem" (std::bad_alloc). n >= 1 counts visits of the stage in this process, 1 if
/// omitted; each fault happens once. The stage "instruction-K" is instruction K of any program; its actions are also
/// "skip" (it is not run, but counts as finished) and "nan" (kernels: the first element of the first output becomes a
/// NaN). Throws UserError (kDeck) that lists the allowed texts.
void ArmFault(const std::string& text);

/// Arms the fault of ESPALIER_FAULT.
void ArmFaultFromEnvironment();

/// The fault of an instruction.
enum class InstructionFault : uint8_t { kNone, kSkip, kNan };

namespace fault_detail {
extern std::atomic<bool> armed;
void Visit(std::string_view stage, const std::string& where);
InstructionFault VisitInstruction(int index);
}  // namespace fault_detail

/// A place where a fault can happen; `where` is the file or directory in use. Injected system errors are thrown as
/// UserError (kFault).
inline void FaultPoint(std::string_view stage, const std::string& where = {}) {
  if (fault_detail::armed.load(std::memory_order_relaxed)) [[unlikely]]
    fault_detail::Visit(stage, where);
}

/// A fault is armed and has not happened yet.
inline bool FaultsArmed() { return fault_detail::armed.load(std::memory_order_relaxed); }

/// The stage "instruction-`index`".
inline InstructionFault FaultAtInstruction(int index) {
  if (!fault_detail::armed.load(std::memory_order_relaxed)) [[likely]]
    return InstructionFault::kNone;
  return fault_detail::VisitInstruction(index);
}

}  // namespace espalier
