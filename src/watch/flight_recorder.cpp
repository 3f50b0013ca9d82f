#include "espalier/watch/flight_recorder.hpp"

#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <vector>

#include "espalier/util/write_whole.hpp"

namespace espalier {
namespace {

constexpr int kDoneShown = 12, kNextShown = 4;  ///< instructions of each lane

using InstructionsByLane = ByLane<std::vector<int>>;

InstructionsByLane InstructionsOfLanes(const Program& program) {
  InstructionsByLane lanes;
  for (int i = 0; i < std::ssize(program.instructions); ++i)
    lanes[program.instructions[static_cast<size_t>(i)].lane].push_back(i);
  return lanes;
}

/// The group of a message, this rank among them; empty for others.
std::vector<int> MembersOf(const Program& program, const Instruction& instruction, int rank) {
  if (!IsMessageLane(instruction.lane)) return {};
  const Op& op = program.graph->op(instruction.op);
  Coordinate here = program.mesh.CoordinateOf(rank);
  if (op.kind != OpKind::kSend && op.kind != OpKind::kRecv) return program.mesh.GroupRanks(op.Axes(), here);
  here[Axis::kPp] = op.Peer();
  return {rank, program.mesh.RankOf(here)};
}

int FinishedOn(const Heartbeat& beat, Lane lane) { return beat.done[static_cast<size_t>(lane)]; }

/// The number of each call within its step, by lane and group: peers must have the same numbers.
std::string Communicators(const Program& program, const InstructionsByLane& lanes, const Heartbeat& beat) {
  struct Calls {
    int done = 0, all = 0;
  };
  std::map<std::pair<Lane, std::vector<int>>, Calls> communicators;
  for (const Lane lane : kLanes)
    for (int place = 0; place < std::ssize(lanes[lane]); ++place) {
      const int index = lanes[lane][static_cast<size_t>(place)];
      const std::vector<int> group = MembersOf(program, program.instructions[static_cast<size_t>(index)], beat.rank);
      if (group.empty()) continue;
      Calls& calls = communicators[{lane, group}];
      calls.done += place < FinishedOn(beat, lane);
      ++calls.all;
    }
  std::string text;
  for (const auto& [key, calls] : communicators)
    text += fmt::format("communicator {:8} {:>6} of {:<6} ranks {}\n", Name(key.first), calls.done, calls.all,
                        fmt::join(key.second, ","));
  return text;
}

/// "done", "next" for what runs or may run, or the first lane that it waits for.
std::string StateOf(const Instruction& instruction, const Heartbeat& beat, int places_behind_done) {
  if (places_behind_done < 0) return "done";
  for (const Wait& wait : instruction.waits)
    if (FinishedOn(beat, wait.lane) < wait.count) return fmt::format("waits {}:{}", Name(wait.lane), wait.count);
  return places_behind_done == 0 ? "next" : "queued";
}

/// `place` may be negative: the end of the step before.
std::string Line(const Program& program, const Heartbeat& beat, Lane lane, const std::vector<int>& list, int place) {
  const int index = list[static_cast<size_t>(place < 0 ? place + std::ssize(list) : place)];
  const Instruction& instruction = program.instructions[static_cast<size_t>(index)];
  const Op& op = program.graph->op(instruction.op);
  std::string text =
      fmt::format("{:8} step {:<7} {:18} {:>6} {:16} {:3} microbatch {:<3} layer {:<3}", Name(lane),
                  beat.step - (place < 0 ? 1 : 0), StateOf(instruction, beat, place - FinishedOn(beat, lane)), index,
                  op.kind, Name(op.role), instruction.microbatch, op.layer);
  if (const std::vector<int> group = MembersOf(program, instruction, beat.rank); !group.empty())
    text += fmt::format(" ranks {}", fmt::join(group, ","));
  return text + "\n";
}

}  // namespace

std::string FlightFolder(const std::string& run_dir) { return (std::filesystem::path(run_dir) / "flight").string(); }

std::string LastInstructions(const Program& program, const Heartbeat& beat) {
  const InstructionsByLane lanes = InstructionsOfLanes(program);
  std::string text = Communicators(program, lanes, beat);
  for (const Lane lane : kLanes) {
    const std::vector<int>& list = lanes[lane];
    const int size = static_cast<int>(list.size()), done = std::min(FinishedOn(beat, lane), size);
    const int first = std::max(done - kDoneShown, beat.step > 1 ? -size : 0);
    for (int place = first; place < std::min(done + kNextShown, size); ++place)
      text += Line(program, beat, lane, list, place);
  }
  return text;
}

FlightRecorder::FlightRecorder(std::string folder, const HeartbeatRecord& mine, HeartbeatTable heartbeats,
                               OwnProgram program_of)
    : folder_(std::move(folder)), mine_(mine), heartbeats_(std::move(heartbeats)), program_of_(std::move(program_of)) {}

void FlightRecorder::Note() {
  const std::lock_guard lock(mutex_);
  readings_[noted_++ % kReadings] = {Clock::now(), Read(mine_)};
}

std::string FlightRecorder::Write(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  const Heartbeat now = Read(mine_);
  const std::string path = PathOf(now.rank);
  if (written_ && written_->SamePlace(now)) return path;
  try {
    std::filesystem::create_directories(folder_);
    WriteWhole(path, Text(now, reason));
  } catch (const std::exception&) {
    return "";
  }
  written_ = now;
  return path;
}

std::string FlightRecorder::PathOf(int rank) const { return fmt::format("{}/rank-{:05}.txt", folder_, rank); }

bool FlightRecorder::HasRecord(int rank, std::chrono::steady_clock::duration age) const {
  namespace fs = std::filesystem;
  std::error_code none;
  const fs::file_time_type written = fs::last_write_time(PathOf(rank), none);
  return !none && fs::file_time_type::clock::now() - written < age;
}

std::string FlightRecorder::Text(const Heartbeat& now, const std::string& reason) const {
  const std::time_t time = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("rank {} of {}, process {} on {}, {:%FT%TZ}\n{}\nstep {}, {}\n\n{}\n{}\n{}", now.rank,
                     heartbeats_.Ranks(), now.process, now.host, fmt::gmtime(time), reason, now.step,
                     Name(now.activity), LastInstructions(program_of_(std::max<int64_t>(1, now.step)), now), Readings(),
                     OtherRanks());
}

std::string FlightRecorder::Readings() const {
  std::string text;
  const Clock::time_point now = Clock::now();
  for (size_t i = noted_ > kReadings ? noted_ - kReadings : 0; i < noted_; ++i) {
    const Reading& reading = readings_[i % kReadings];
    text += fmt::format("{:7.2f} s before: step {}, {}, done {}\n",
                        std::chrono::duration<double>(now - reading.time).count(), reading.beat.step,
                        Name(reading.beat.activity), fmt::join(reading.beat.done, " "));
  }
  return text;
}

std::string FlightRecorder::OtherRanks() const {
  std::string text;
  for (const std::optional<Heartbeat>& beat : heartbeats_.ReadAll())
    if (beat && beat->rank != mine_.rank)
      text += fmt::format("rank {} on {}: step {}, {}, done {}\n", beat->rank, beat->host, beat->step,
                          Name(beat->activity), fmt::join(beat->done, " "));
  return text;
}

}  // namespace espalier
