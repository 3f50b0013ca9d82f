#include "timeline/picture/jobs.hpp"

#include <algorithm>

namespace espalier {
namespace {

JobKind KindOf(Role role) {
  switch (role) {
    case Role::kF:
      return JobKind::kF;
    case Role::kB:
      return JobKind::kB;
    case Role::kW:
      return JobKind::kW;
    case Role::kS:
      return JobKind::kS;
    case Role::kU:
      return JobKind::kU;
    case Role::kP:
    case Role::kUnset:
      break;
  }
  return JobKind::kP;
}

/// A chunk by its number among the chunks of its stage; 0 for ops of all chunks.
int LocalChunk(const Program& program, int chunk) {
  if (chunk < 0) return 0;
  const auto begin = program.stage_of_chunk.begin();
  return static_cast<int>(std::count(begin, begin + chunk, program.stage_of_chunk[static_cast<size_t>(chunk)]));
}

bool IsBackward(JobKind kind) { return kind == JobKind::kB || kind == JobKind::kW; }

/// A kernel, and the job that it would form alone.
struct Kernel {
  int instruction = 0;
  PictureJob job;
};

std::vector<Kernel> KernelsOf(const Program& program) {
  std::vector<Kernel> kernels;
  for (int i = 0; i < std::ssize(program.instructions); ++i) {
    const Instruction& instruction = program.instructions[static_cast<size_t>(i)];
    if (instruction.lane != Lane::kCompute) continue;
    const Op& op = program.graph->op(instruction.op);
    const bool once = op.frequency() == Frequency::kStep;
    kernels.push_back(
        {i, {KindOf(op.role), once ? -1 : instruction.microbatch, once ? 0 : LocalChunk(program, op.chunk)}});
  }
  return kernels;
}

/// Whether two jobs differ at most in weight gradients: B and W of one microbatch and chunk.
bool Together(const PictureJob& a, const PictureJob& b) {
  return a.microbatch == b.microbatch && a.chunk == b.chunk &&
         (a.kind == b.kind || (IsBackward(a.kind) && IsBackward(b.kind)));
}

/// Number of changes of the kind: alternating B and W are one job, B before W are two.
int Changes(const std::vector<Kernel>& kernels, size_t begin, size_t end) {
  int changes = 0;
  for (size_t k = begin + 1; k < end; ++k) changes += kernels[k].job.kind != kernels[k - 1].job.kind;
  return changes;
}

}  // namespace

PictureJobs JobsOf(const Program& program) {
  PictureJobs all;
  all.of_instruction.assign(program.instructions.size(), -1);
  std::vector<Kernel> kernels = KernelsOf(program);
  for (size_t begin = 0, end = 0; begin < kernels.size(); begin = end) {
    while (end < kernels.size() && Together(kernels[begin].job, kernels[end].job)) ++end;
    if (Changes(kernels, begin, end) > 1)
      for (size_t k = begin; k < end; ++k) kernels[k].job.kind = JobKind::kBw;
    for (size_t k = begin; k < end; ++k) {
      if (k == begin || kernels[k].job.kind != kernels[k - 1].job.kind) all.jobs.push_back(kernels[k].job);
      all.of_instruction[static_cast<size_t>(kernels[k].instruction)] = static_cast<int>(all.jobs.size()) - 1;
    }
  }
  return all;
}

}  // namespace espalier
