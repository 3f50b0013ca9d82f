#include <fmt/core.h>

#include "espalier/program/compile.hpp"

namespace espalier {
namespace {

/// Places on the host have its name.
std::string_view SpaceText(Space space) { return space == Space::kHost ? "host " : ""; }

std::string OperandsText(const Graph& graph, const OperandList& operands) {
  std::string text;
  for (const Operand& o : operands)
    text += fmt::format("{}{}@{}{}+{}", text.empty() ? "" : ", ", graph.value(o.value).name,
                        SpaceText(graph.value(o.value).space), o.offset, o.bytes);
  return text;
}

}  // namespace

std::string Describe(const Program& program, int instruction) {
  const Instruction& i = program.instructions[instruction];
  const Op& op = program.graph->op(i.op);
  const std::string microbatch = i.microbatch < 0 ? "" : fmt::format(", microbatch {}", i.microbatch);
  return fmt::format("instruction {} ({}, role {}{}, layer {})", instruction, op.kind, Name(op.role), microbatch,
                     op.layer);
}

std::string Print(const Program& program) {
  std::string text =
      fmt::format("stage {} microbatches {} arena {}{}\n", program.stage, program.microbatches, program.arena_bytes,
                  program.host_bytes > 0 ? fmt::format(" host {}", program.host_bytes) : "");
  for (const PersistentBuffer& b : program.persistent)
    text += fmt::format("persistent {}{} @{}{}+{} {}\n", program.graph->value(b.value).name,
                        b.microbatch < 0 ? "" : fmt::format(" m{}", b.microbatch), SpaceText(program.SpaceOf(b.place)),
                        b.place.offset, b.place.bytes, Name(b.memory_class));
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    const Op& op = program.graph->op(instruction.op);
    text += fmt::format("{:5} {:8} {}{}{} ({}) -> ({})", i, Name(instruction.lane), Name(op.role),
                        instruction.microbatch < 0 ? " " : fmt::format("{} ", instruction.microbatch), op.kind,
                        OperandsText(*program.graph, instruction.inputs),
                        OperandsText(*program.graph, instruction.outputs));
    if (instruction.workspace.bytes > 0)
      text += fmt::format(" work @{}+{}", instruction.workspace.offset, instruction.workspace.bytes);
    for (const Wait& wait : instruction.waits) text += fmt::format(" wait {}:{}", Name(wait.lane), wait.count);
    text += "\n";
  }
  return text;
}

}  // namespace espalier
