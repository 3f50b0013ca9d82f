// Saving while training goes on: the state is copied into a staging buffer, and one thread a rank writes the copy. One
// save at a time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/executor/arena.hpp"

namespace espalier {

/// Bytes that each rank copies when it saves: the pieces that it writes, each on a 64-byte line.
std::vector<int64_t> StagingBytes(const std::vector<StateTensor>& tensors, const Mesh& mesh);

/// How a save ended; the same on every rank but for the times.
struct SaveOutcome {
  int64_t step = 0;
  bool committed = false;
  SaveResult result;                 ///< if it is committed; blocked_ms is filled in any case
  std::vector<std::string> reasons;  ///< why not, else
};

class Saver {
 public:
  struct Options {
    std::string checkpoints_dir;
    int64_t keep = 1;
    /// Takes the staging buffer; null: plain memory.
    std::function<std::unique_ptr<Arena>(int64_t bytes)> make_staging = {};
  };

  /// Collective. `writers` is a world of its own for the writer threads, over the same ranks; without it saves are
  /// synchronous. So they are, on every rank, if one has no room for its staging buffer; the buffer is touched here.
  /// What lies on a device is staged in any case: UserError (kDoesNotFit) if there is no room then. `tensors`, `mesh`
  /// and the memory of `local` must outlive it.
  Saver(Options options, const std::vector<StateTensor>& tensors, const std::vector<LocalTensor>& local,
        const Mesh& mesh, World& world, std::unique_ptr<World> writers);
  /// Waits for the save in flight.
  ~Saver();

  bool Asynchronous() const { return asynchronous_; }
  /// Why saves are synchronous although `writers` was given; empty if they are not.
  const std::string& refusal() const { return refusal_; }
  int64_t staging_bytes() const { return staging_ == nullptr ? 0 : staging_->bytes(); }

  /// The checkpoint that the state was loaded from, and the one that the run was told to start from; empty: none. The
  /// next save names both, and what comes after it names it.
  void Follow(Lineage lineage) { lineage_ = std::move(lineage); }
  /// Id of the checkpoint that was followed or committed last.
  const std::string& parent() const { return lineage_.parent; }

  /// Saves the state as it is now; keeps `keep` checkpoints (0: Options::keep). Collective. Waits for the save before
  /// it, copies, and returns while the copy is written; afterwards the state may change. Never throws what failed in
  /// the save: that is its outcome if the ranks have agreed on it; else it ends the job.
  void Save(Metadata metadata, int64_t keep = 0);
  /// A save of this rank is not yet finished.
  bool Busy() const { return busy_; }
  /// Outcomes of the saves that have ended since the last call, in their order.
  std::vector<SaveOutcome> Ended();
  /// Returns when nothing is in flight.
  void Wait();

 private:
  /// A piece that this rank writes, and its place in the staging buffer.
  struct Staged {
    LocalTensor tensor;
    int64_t bytes, offset;
  };
  /// Pieces that lie side by side in both.
  struct Run {
    const LocalTensor* first;  ///< begins with it
    int64_t bytes, offset;
  };

  void Plan(const std::vector<LocalTensor>& local);
  bool OnHost() const;
  void Place();
  void MakeRoom();
  std::vector<LocalTensor> Copy() const;
  SaveOutcome Write(const Metadata& metadata, const std::vector<LocalTensor>& local, World& world, int64_t keep) const;

  const Options options_;
  const std::vector<StateTensor>& tensors_;
  const Mesh& mesh_;
  World& world_;
  std::unique_ptr<World> writers_;
  std::vector<Staged> pieces_;
  std::vector<Run> runs_;
  int64_t bytes_ = 0;  ///< of the staging buffer
  std::unique_ptr<Arena> staging_;
  bool asynchronous_ = false;
  Lineage lineage_;
  std::string refusal_;

  std::atomic<bool> busy_ = false;
  double blocked_ms_ = 0;  ///< of the save in flight
  SaveOutcome in_flight_;  ///< the writer's while busy_
  bool unread_ = false;    ///< in_flight_ has not been taken by Ended
  std::vector<SaveOutcome> ended_;
  std::thread writer_;
};

}  // namespace espalier
