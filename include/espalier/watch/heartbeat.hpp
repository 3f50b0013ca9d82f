// The heartbeat of a rank: a record of its position, at the cost of one store per instruction. The watchdog copies it
// to a small file in the run directory, so that other ranks can name a rank that is stopped. All ranks of a node share
// a file, in which each writes its own record: a parallel file system then has one writer per node.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "espalier/comm/progress.hpp"

namespace espalier {

/// The activity of a rank.
enum class Activity : int32_t {
  kStart,       ///< before and in the first step, which may be slow
  kStep,        ///< in a training step
  kBetween,     ///< between steps: data and reports
  kAgreeing,    ///< between steps: exchanging flags with all ranks
  kSaving,      ///< writing or reading a checkpoint: storage may be slow
  kEvaluating,  ///< validation
  kEnded,       ///< all steps done
  kEndingJob,   ///< its watchdog reports why it ends the job, so that no other rank needs to
};
std::string_view Name(Activity activity);  ///< "in a step", "between steps", ...

/// One record of a file. All processes of a job run one executable, so this struct is the layout.
struct HeartbeatRecord {
  static constexpr uint64_t kMagic = 0x3154'4145'4250'5345;  // "ESPBEAT1"

  uint64_t magic = kMagic;
  int32_t rank = 0;
  int32_t process = 0;
  char host[64] = {};
  uint64_t process_table = 0;    ///< inode of the namespace of process ids: containers on one host may have several
  int64_t pulse = 0;             ///< how often the file was written
  std::atomic<int64_t> step{0};  ///< the current step or, between steps, the last one; 1 is the first
  std::atomic<Activity> activity{Activity::kStart};
  Progress training, forward;  ///< progress of the training program, and of proof and validation
};

/// A copy of a record in plain numbers.
struct Heartbeat {
  int rank = 0;
  int process = 0;
  std::string host;
  uint64_t process_table = 0;
  int64_t pulse = 0;
  int64_t step = 0;
  Activity activity = Activity::kStart;
  std::array<int, kLaneCount> done{};     ///< counts of the training program
  std::array<int, kLaneCount> forward{};  ///< counts of proof and validation
  int runs = 0;                           ///< runs of all programs
  int alive = 0;                          ///< sign of life of the training program's device

  /// True if the process ids of both ranks are from the same namespace.
  bool SharesProcesses(const Heartbeat& other) const {
    return host == other.host && process_table == other.process_table;
  }
  /// True if nothing has finished between the two: all fields except the pulse are equal.
  bool SamePlace(const Heartbeat& other) const;
};

/// `run.dir`/heartbeat.
std::string HeartbeatFolder(const std::string& run_dir);

/// Creates the folder if necessary, and removes the heartbeats of a killed run, which would be taken for ours. Other
/// files stay. Throws UserError (kFault) if the folder is a link, or a name that a heartbeat needs cannot be removed.
void PrepareHeartbeatFolder(const std::string& folder);

/// Where the heartbeats of all ranks are.
class HeartbeatTable {
 public:
  /// `leaders`: for each rank the lowest rank of its node.
  HeartbeatTable(std::string folder, std::vector<int> leaders);

  int Ranks() const { return static_cast<int>(leaders_.size()); }
  bool IsLeader(int rank) const { return LeaderOf(rank) == rank; }
  /// The ranks of the node of `rank`, ascending.
  std::vector<int> NodeOf(int rank) const;
  /// The file of a rank: folder/node-00000, by the lowest rank of its node.
  std::string PathOf(int rank) const;
  /// Position of a rank's record in its file, bytes.
  int64_t OffsetOf(int rank) const;

  /// Makes the file of the node of `rank`, without heartbeats. Throws UserError (kFault) if it exists or cannot be
  /// created.
  void MakeFile(int rank) const;
  /// The heartbeat of a rank; nullopt if it was removed, or its file is missing, truncated or not of heartbeats.
  std::optional<Heartbeat> Read(int rank) const;
  /// As above, for several ranks. Opens each file once.
  std::vector<std::optional<Heartbeat>> Read(const std::vector<int>& ranks) const;
  std::vector<std::optional<Heartbeat>> ReadAll() const;

 private:
  int LeaderOf(int rank) const { return leaders_.at(static_cast<size_t>(rank)); }

  std::string folder_;
  std::vector<int> leaders_;
  std::vector<int> places_;  ///< of each rank among the ranks of its node
};

/// The record of this rank, and its copy in the file of its node, which is removed with the object. Problems with the
/// file do not affect the record.
class HeartbeatFile {
 public:
  /// Writes the record to the file, which was made. Throws UserError (kFault) if it cannot.
  HeartbeatFile(const HeartbeatTable& table, int rank);
  ~HeartbeatFile();
  HeartbeatFile(const HeartbeatFile&) = delete;
  HeartbeatFile& operator=(const HeartbeatFile&) = delete;

  HeartbeatRecord& record() { return record_; }
  const HeartbeatRecord& record() const { return record_; }
  /// Copies the record to the file; true on success. One thread at a time.
  bool Publish();
  /// This rank exits in an orderly way: removes its heartbeat from the file, and the file if that was the last one. The
  /// record stays.
  void Remove();

 private:
  bool Write(const void* record);
  bool IsLast() const;

  HeartbeatTable table_;
  std::string path_;
  int64_t offset_;
  HeartbeatRecord record_;
  int file_ = -1;
};

/// A copy of the current record.
Heartbeat Read(const HeartbeatRecord& record);
}  // namespace espalier
