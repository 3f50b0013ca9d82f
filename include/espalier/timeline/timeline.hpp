// When every instruction of a step ran, on some or all ranks. The simulator predicts a timeline and a run measures one;
// both are broken down, drawn and written by the same functions.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/program/instruction.hpp"
#include "espalier/svg/svg.hpp"

namespace espalier {

/// One instruction in one step. Times are in microseconds from the start of the step.
struct Span {
  int instruction = -1;  ///< in Program::instructions; the lane is there
  double ready_us = 0;   ///< its waits are met and its lane is free
  double begin_us = 0;   ///< a kernel starts; all peers of a transfer are ready, so bytes begin to flow
  double end_us = 0;
};

/// The step of one rank.
struct Track {
  int rank = 0;
  int ranks = 1;  ///< number of ranks with the same times; `rank` is the lowest of them
  std::shared_ptr<const Program> program;
  std::vector<Span> spans;  ///< by the end of each instruction, then by its index
};

struct Timeline {
  std::string title;          ///< "llama 8b on 16 x H100, predicted"
  std::string origin;         ///< "predicted" or "measured"
  double step_us = 0;         ///< the end of the last rank
  std::vector<Track> tracks;  ///< by rank
};

/// Sets the begin of every transfer in measured tracks; a rank alone knows only when it was ready itself. A transfer
/// begins when its last member is ready. Clocks of ranks must agree. A send that ended before its receiver was ready
/// was buffered, and begins at once. Members without a track are ignored.
void MeetPeers(std::vector<Track>& tracks);

/// The step of a rank by activity: compute + exposed of all axes + idle is the whole step.
struct Breakdown {
  double compute_us = 0;
  /// A lane of the axis transfers while the compute lane waits for it, directly or through another lane.
  ByCommAxis<double> exposed_us{};
  ByCommAxis<double> hidden_us{};  ///< all other time in which a lane of the axis transfers
  double idle_us = 0;              ///< the rest: other stages or ranks are awaited
};

/// Communication of a step by axis, in milliseconds.
struct CommTimes {
  ByCommAxis<double> exposed_ms{};  ///< as in Breakdown, or by the rank's own clock (src/executor/comm_clock.hpp)
  ByCommAxis<double> hidden_ms{};
  double ExposedMs() const;  ///< sum over all axes
};
CommTimes CommTimesOf(const Breakdown& breakdown);

/// The instructions that the compute lane of a rank may wait for at one moment.
struct LaneHeads {
  ByLane<std::optional<Instruction>> head{};  ///< the next or current instruction of each lane; none at its end
  ByLane<int> done{};                         ///< finished instructions of each lane
  ByLane<bool> transferring{};                ///< its head has begun; for the compute lane: a kernel runs
};

/// The axis whose transfer blocks the compute lane at this moment, or -1: the first transferring lane, in lane order,
/// among the lanes that the next compute instruction waits for and the lanes that their heads wait for. At its end the
/// compute lane waits for all lanes.
int ExposedAxis(const LaneHeads& heads);

/// The breakdown of one track, of a step that ends at `step_us`.
Breakdown BreakDown(const Track& track, double step_us);

/// A picture: one row per rank and lane group, one coloured bar per job, the warm-up, the steady state and the end
/// visible, with a legend and a time axis. Several timelines are drawn below one another on the same scale.
Drawing DrawTimelines(const std::vector<Timeline>& timelines);
/// The same as a file.
inline std::string DrawSvg(const std::vector<Timeline>& timelines) { return SvgFile(DrawTimelines(timelines)); }

/// JSON of Chrome's trace event format, for Perfetto: one process per rank, one thread per lane, an arrow from each
/// send to its recv.
std::string TraceJson(const Timeline& timeline);

/// Reads what TraceJson wrote, to nanoseconds. `program_of(rank)` is the program of a traced rank, or null if the rank
/// does not exist. Throws UserError (kData), with `path` in the message, if the text is damaged or its instructions
/// differ from the programs.
Timeline ReadTrace(const std::string& text, const std::string& path,
                   const std::function<std::shared_ptr<const Program>(int rank)>& program_of);

}  // namespace espalier
