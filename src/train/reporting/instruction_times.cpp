#include "train/reporting/instruction_times.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "espalier/ops/op.hpp"
#include "espalier/util/environment.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

struct Sum {
  int count = 0;
  double ms = 0, flops = 0;
  int64_t bytes = 0;
};

/// Bytes that an instruction reads and writes, every operand once; an output that it accumulates into counts twice.
int64_t WireBytesOf(const Instruction& instruction) {
  int64_t bytes = 0;
  for (const Operand& input : instruction.inputs) bytes += input.bytes;
  for (const Operand& output : instruction.outputs) bytes += output.bytes * (instruction.accumulate ? 2 : 1);
  return bytes;
}

bool Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  return static_cast<bool>(file.flush());
}

}  // namespace

InstructionTimes::InstructionTimes(const Deck& deck, const Programs& programs, int rank)
    : programs_(programs), device_(DeckName(deck.run.device)), rank_(rank), last_(deck.run.steps) {
  const auto file = FromEnvironment("ESPALIER_INSTRUCTION_TIMES");
  if (!file) return;
  path_ = fmt::format("{}.{}", *file, rank);
  if (!Write(path_, ""))
    throw UserError(
        ExitStatus::kFault,
        fmt::format("ESPALIER_INSTRUCTION_TIMES: {}: cannot be written; name a file in a folder that is there", path_));
}

void InstructionTimes::Before(int64_t step) const {
  if (!path_.empty() && step == last_) programs_.TrainingOf(step).executor().TimeNextStep();
}

/// A table that cannot be written only causes a warning: the other ranks continue to train.
void InstructionTimes::After(int64_t step, const StepTimes& times) const {
  if (!path_.empty() && step == last_ && !Write(path_, Table(step, times)))
    spdlog::warn("ESPALIER_INSTRUCTION_TIMES: {}: cannot be written", path_);
}

std::string InstructionTimes::Table(int64_t step, const StepTimes& times) const {
  const Training& training = programs_.TrainingOf(step);
  const Program& program = training.program();
  const std::vector<double> instruction_ms = training.executor().instruction_ms();
  std::map<std::tuple<std::string_view, std::string_view, std::string_view>, Sum> sums;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    const Op& op = program.graph->ops[static_cast<size_t>(instruction.op)];
    Sum& sum = sums[{Name(instruction.lane), Name(op.role), Name(op.kind)}];
    ++sum.count;
    sum.ms += instruction_ms[i];
    sum.flops += FlopsOf(program, instruction);
    sum.bytes += WireBytesOf(instruction);
  }
  nlohmann::ordered_json table = {{"step", step},
                                  {"rank", rank_},
                                  {"device", device_},
                                  {"wall_s", times.step_ms / 1e3},
                                  {"instructions", nlohmann::json::array()}};
  for (const auto& [key, sum] : sums)
    table["instructions"].push_back(nlohmann::ordered_json{{"lane", std::get<0>(key)},
                                                           {"role", std::get<1>(key)},
                                                           {"kind", std::get<2>(key)},
                                                           {"count", sum.count},
                                                           {"seconds", sum.ms / 1e3},
                                                           {"flops", sum.flops},
                                                           {"bytes", sum.bytes}});
  return table.dump(1) + "\n";
}

/// FLOPs with this rank's shapes; 0 for messages and for ops without a cost.
double InstructionTimes::FlopsOf(const Program& program, const Instruction& instruction) const {
  const Op& op = program.graph->ops[static_cast<size_t>(instruction.op)];
  if (instruction.lane != Lane::kCompute || Define(op.kind).kernel.work.flops == nullptr) return 0;
  return Define(op.kind).kernel.work.flops(LocalOpOf(*program.graph, op, program.mesh, programs_.coordinate()));
}

}  // namespace espalier
