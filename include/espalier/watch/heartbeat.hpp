// The heartbeat of a rank: a small mapped file in the run directory that says where it stands, so that the others can name a
// rank that is stopped. Writing it costs a store an instruction.
#pragma once

#include <optional>
#include <string>

#include "espalier/comm/progress.hpp"

namespace espalier {

/// What a rank is at.
enum class Activity : int32_t {
  kStart,       ///< before and in the first step: everything may take its time
  kStep,        ///< in a training step
  kBetween,     ///< data, agreement and reports between steps
  kSaving,      ///< a checkpoint: storage may take its time
  kEvaluating,  ///< validation
  kEnded,       ///< all steps done
  kEndingJob,   ///< its watchdog says why it ends the job: no other needs to
};
std::string_view Name(Activity activity);  ///< "in a step", "between steps", ...

/// What the file holds. The processes of a job are one executable, so the layout is that of this struct.
struct HeartbeatRecord {
  static constexpr uint64_t kMagic = 0x3154'4145'4250'5345;  // "ESPBEAT1"

  uint64_t magic = kMagic;
  int32_t rank = 0;
  int32_t process = 0;
  char host[64] = {};
  uint64_t process_table = 0;  ///< the namespace of process ids, by its inode: containers of one host may have several
  std::atomic<int64_t> step{0};  ///< the one under way or, between steps, the last one; 1 is the first
  std::atomic<Activity> activity{Activity::kStart};
  Progress training, forward;  ///< of the training program; of proof and validation
};

/// What a reader makes of a record: plain numbers.
struct Heartbeat {
  int rank = 0;
  int process = 0;
  std::string host;
  uint64_t process_table = 0;
  int64_t step = 0;
  Activity activity = Activity::kStart;
  std::array<int, kLaneCount> done{};     ///< of the training program
  std::array<int, kLaneCount> forward{};  ///< of proof and validation
  int runs = 0;                           ///< of all programs
  int alive = 0;                          ///< of the training program's device

  /// True if a process id of the other one means the same here.
  bool SharesProcesses(const Heartbeat& other) const { return host == other.host && process_table == other.process_table; }
  bool operator==(const Heartbeat&) const = default;
};

/// `run.dir`/heartbeat.
std::string HeartbeatFolder(const std::string& run_dir);

/// This rank's file, mapped; removed with the object.
class HeartbeatFile {
 public:
  /// Throws UserError (kFault) if it cannot be made.
  HeartbeatFile(const std::string& folder, int rank);
  ~HeartbeatFile();
  HeartbeatFile(const HeartbeatFile&) = delete;
  HeartbeatFile& operator=(const HeartbeatFile&) = delete;

  HeartbeatRecord& record() { return *record_; }
  /// Lets readers on other hosts see it.
  void Publish();
  /// Takes the file away: its rank ends in order. The record stays.
  void Remove();

 private:
  std::string path_;
  HeartbeatRecord* record_ = nullptr;
};

/// A copy of what a record says now.
Heartbeat Read(const HeartbeatRecord& record);
/// A rank's heartbeat; none if the file is missing or no heartbeat.
std::optional<Heartbeat> ReadHeartbeat(const std::string& folder, int rank);

}  // namespace espalier
