#include "train/measuring/transfer_times.hpp"

#include <algorithm>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/median.hpp"
#include "train/measuring/kernel_times.hpp"

namespace espalier {
namespace {

constexpr int kStepBarriers = 9;  ///< an odd number, for the median

}  // namespace

void AddTransfers(const Timeline& step, int ranks_per_node, TransferSamples& samples) {
  for (const Track& track : step.tracks) {
    const Program& program = *track.program;
    const Coordinate coordinate = program.mesh.CoordinateOf(track.rank);
    for (const Span& span : track.spans) {
      const Instruction& instruction = program.instructions[static_cast<size_t>(span.instruction)];
      if (!IsMessageLane(instruction.lane) || program.graph->op(instruction.op).kind == OpKind::kSend) continue;
      const TransferKey transfer = KeyOfTransfer(program, instruction, coordinate, ranks_per_node);
      if (transfer.key.place.ranks > 1)
        samples[transfer.key][transfer.bytes].push_back(std::max(0.0, span.end_us - span.begin_us));
    }
  }
}

std::map<CollectiveKey, std::map<int64_t, Measured>> RowsOf(const TransferSamples& samples) {
  std::map<CollectiveKey, std::map<int64_t, Measured>> rows;
  for (const auto& [key, by_bytes] : samples)
    for (const auto& [bytes, us] : by_bytes) rows[key][bytes] = {MedianOf(us), std::ssize(us)};
  return rows;
}

TransferTimes::TransferTimes(const Programs& programs, World& world)
    : world_(world), measured_(TracedRanks(programs.compilation().mesh, kMaxRanks)) {}

void TransferTimes::Before() {
  barriers_us_.clear();
  for (int i = 0; i < kStepBarriers && world_.Size() > 1; ++i) {
    world_.Barrier();
    barriers_us_.push_back(SteadyMicroseconds());
  }
}

void TransferTimes::Add(const Training& training) {
  if (world_.Size() == 1) return;
  const Executor& executor = training.executor();
  MeasuredRank step{NodeKey(), barriers_us_, executor.TimedStepBegan(), {}, {}};
  if (std::ranges::find(measured_, world_.Rank()) != measured_.end())
    for (const Span& span : executor.spans()) {
      step.ready_us.push_back(span.ready_us);
      step.end_us.push_back(span.end_us);
    }
  steps_.push_back({&training, std::move(step)});
}

std::map<CollectiveKey, std::map<int64_t, Measured>> TransferTimes::Rows(int ranks_per_node) const {
  std::map<std::pair<const Training*, int>, std::shared_ptr<const Program>> programs;
  TransferSamples samples;
  for (const TimedStep& step : steps_) {
    const auto program_of = [&](int rank) {
      const Compilation& compilation = step.training->compilation;
      std::shared_ptr<const Program>& program = programs[{step.training, rank}];
      if (program == nullptr)
        program = std::make_shared<const Program>(MakeProgram(compilation, compilation.mesh.CoordinateOf(rank)));
      return program;
    };
    const std::vector<MeasuredRank> ranks = Gathered(world_, step.measured);
    if (world_.Rank() == 0) AddTransfers(MeasuredTimeline("", ranks, measured_, program_of), ranks_per_node, samples);
  }
  return RowsOf(samples);
}

}  // namespace espalier
