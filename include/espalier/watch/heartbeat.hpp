// The heartbeat of a rank: a record of where it is, which costs a store per instruction, and a small file in the run
// directory to which the watchdog copies it, so that the others can name a rank that is stopped.
#pragma once

#include <optional>
#include <string>

#include "espalier/comm/progress.hpp"

namespace espalier {

/// What a rank is at.
enum class Activity : int32_t {
  kStart,       ///< before and in the first step: everything may take its time
  kStep,        ///< in a training step
  kBetween,     ///< data and reports between steps
  kAgreeing,    ///< exchanging flags with all ranks between steps
  kSaving,      ///< a checkpoint is written or read: storage may take its time
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
  int64_t pulse = 0;           ///< how often the file was written
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
  int64_t pulse = 0;
  int64_t step = 0;
  Activity activity = Activity::kStart;
  std::array<int, kLaneCount> done{};     ///< of the training program
  std::array<int, kLaneCount> forward{};  ///< of proof and validation
  int runs = 0;                           ///< of all programs
  int alive = 0;                          ///< of the training program's device

  /// True if a process id of the other one means the same here.
  bool SharesProcesses(const Heartbeat& other) const {
    return host == other.host && process_table == other.process_table;
  }
  /// True if nothing has finished between the two: all is equal but the pulse.
  bool SamePlace(const Heartbeat& other) const;
};

/// `run.dir`/heartbeat.
std::string HeartbeatFolder(const std::string& run_dir);

/// Makes the folder, if need be, and removes the heartbeats of a run that was killed: they would be taken for ours.
/// Other files in it stay. Throws UserError (kFault) if the folder is a link, or a name that a heartbeat needs cannot
/// be removed.
void PrepareHeartbeatFolder(const std::string& folder);

/// This rank's record and its file, which is removed with the object. Whatever happens to the file does no harm to the
/// record.
class HeartbeatFile {
 public:
  /// Writes the file; throws UserError (kFault) if it is there or cannot be made.
  HeartbeatFile(const std::string& folder, int rank);
  ~HeartbeatFile();
  HeartbeatFile(const HeartbeatFile&) = delete;
  HeartbeatFile& operator=(const HeartbeatFile&) = delete;

  HeartbeatRecord& record() { return record_; }
  const HeartbeatRecord& record() const { return record_; }
  /// Copies the record to the file; true if that could be done. One thread at a time.
  bool Publish();
  /// Takes the file away: its rank ends in order. The record stays.
  void Remove();

 private:
  std::string path_;
  HeartbeatRecord record_;
  int file_ = -1;
};

/// A copy of what a record says now.
Heartbeat Read(const HeartbeatRecord& record);
/// A rank's heartbeat; none if the file is missing, truncated or no heartbeat.
std::optional<Heartbeat> ReadHeartbeat(const std::string& folder, int rank);

}  // namespace espalier
