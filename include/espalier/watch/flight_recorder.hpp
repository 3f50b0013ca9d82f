// The last instructions of a rank, to read after a hang or crash: run.dir/flight/rank-00003.txt. It costs steps
// nothing: a heartbeat counts the finished instructions of each lane, and the program says which these are. The
// watchdog's thread keeps some of its readings, which show when they finished.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "espalier/watch/heartbeat.hpp"

namespace espalier {

/// `run.dir`/flight.
std::string FlightFolder(const std::string& run_dir);

class FlightRecorder {
 public:
  /// The program of this rank in a training step.
  using OwnProgram = std::function<const Program&(int64_t step)>;

  /// All arguments must outlive it. Nothing is made before Write.
  FlightRecorder(std::string folder, const HeartbeatRecord& mine, HeartbeatTable heartbeats, OwnProgram program_of);

  /// Keeps a reading. Any thread may call this, and Write.
  void Note();
  /// Writes the record of this rank, by one rename, unless it was written at this place of the program. Returns its
  /// path, or "" if it cannot be written: whoever ends a job has no other use for the reason.
  std::string Write(const std::string& reason);
  /// Whether `rank` has written its record within the last `age`.
  bool HasRecord(int rank, std::chrono::steady_clock::duration age) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Reading {
    Clock::time_point time;
    Heartbeat beat;
  };
  static constexpr size_t kReadings = 32;

  std::string PathOf(int rank) const;
  std::string Text(const Heartbeat& now, const std::string& reason) const;
  std::string Readings() const;
  std::string OtherRanks() const;

  const std::string folder_;
  const HeartbeatRecord& mine_;
  const HeartbeatTable heartbeats_;
  const OwnProgram program_of_;
  std::mutex mutex_;
  std::array<Reading, kReadings> readings_;  ///< a ring
  size_t noted_ = 0;
  std::optional<Heartbeat> written_;
};

/// The part of a record that follows from program and counts: a table of communicators, then for each lane the last
/// instructions and the next ones. A pure function.
std::string LastInstructions(const Program& program, const Heartbeat& beat);

}  // namespace espalier
