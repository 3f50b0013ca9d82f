// Named ranges on the host's timeline of a profiler (NVTX: Nsight Systems shows them, and projects them onto the GPU).
// Without a profiler a range only tests a null pointer.
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else  // some distributions have NVTX in a separate package; without it there are no ranges
inline int nvtxRangePushA(const char*) { return 0; }
inline int nvtxRangePop() { return 0; }
#endif

#include <string>

#include "espalier/program/compile.hpp"

namespace espalier::cuda {

/// A range of this thread, to the end of the scope.
class Range {
 public:
  explicit Range(const char* name) { nvtxRangePushA(name); }
  ~Range() { nvtxRangePop(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

/// The jobs of a program while its instructions are issued in order: "F0", "B2", "W2", "U". Weight gradients among the
/// instructions of their own backward pass belong to its range.
class JobRanges {
 public:
  explicit JobRanges(const Program& program) : program_(program) {}
  ~JobRanges() { End(); }
  JobRanges(const JobRanges&) = delete;
  JobRanges& operator=(const JobRanges&) = delete;

  /// The instruction `index` is issued next: a range for its job begins, unless it has begun.
  void Enter(int index) {
    const Instruction& instruction = program_.instructions[static_cast<size_t>(index)];
    const Role role = program_.graph->op(instruction.op).role;
    const bool same = role == role_ || (role_ == Role::kB && role == Role::kW);
    if (open_ && same && instruction.microbatch == microbatch_) return;
    End();
    role_ = role;
    microbatch_ = instruction.microbatch;
    const std::string number = microbatch_ < 0 ? "" : std::to_string(microbatch_);
    nvtxRangePushA((std::string(Name(role)) + number).c_str());
    open_ = true;
  }

 private:
  void End() {
    if (open_) nvtxRangePop();
    open_ = false;
  }

  const Program& program_;
  bool open_ = false;
  Role role_ = Role::kUnset;
  int microbatch_ = -1;
};

}  // namespace espalier::cuda
