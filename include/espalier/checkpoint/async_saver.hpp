// Saves while training continues: the state is copied into a staging buffer, and one thread per rank writes the copy.
// One save at a time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "espalier/checkpoint/copies.hpp"
#include "espalier/checkpoint/memory_copies.hpp"
#include "espalier/executor/arena.hpp"

namespace espalier {

/// Bytes of the staging buffer of each rank: the shards that it writes, each 64-byte aligned.
std::vector<int64_t> StagingBytes(const std::vector<StateTensor>& tensors, const Mesh& mesh);

/// The places that a save writes to.
enum class SaveTo : uint8_t { kDisk, kMemory, kMemoryAndDisk };

/// The outcome of a save at one place; the same on every rank except for the times.
struct SaveOutcome {
  int64_t step = 0;
  bool in_memory = false;
  bool committed = false;
  SaveResult result;                 ///< valid if committed; blocked_ms is always valid
  std::vector<std::string> reasons;  ///< why it is not committed
};

class AsyncSaver {
 public:
  struct Options {
    std::string checkpoints_dir;
    int64_t keep = 1;
    /// Allocates the staging buffer; not set: plain memory.
    std::function<std::unique_ptr<Arena>(int64_t bytes)> make_staging = {};
    const MemoryNodes* memory = nullptr;  ///< for saves in memory; must outlive the saver
  };

  /// Collective. `writers` is a separate world for the writer threads, over the same ranks; without it saves are
  /// synchronous. Saves are also synchronous, on every rank, if one rank has no room for its staging buffer, whose
  /// memory is touched here. A state on a device is always staged: UserError (kDoesNotFit) if there is no room.
  /// `tensors`, `mesh` and the memory of `local` must outlive it.
  AsyncSaver(Options options, const std::vector<StateTensor>& tensors, const std::vector<LocalTensor>& local,
             const Mesh& mesh, World& world, std::unique_ptr<World> writers);
  /// Waits for the save in flight.
  ~AsyncSaver();

  bool Asynchronous() const { return asynchronous_; }
  /// Why saves are synchronous although `writers` was given; otherwise empty.
  const std::string& refusal() const { return refusal_; }
  int64_t staging_bytes() const { return staging_ == nullptr ? 0 : staging_->bytes(); }

  /// Sets the checkpoint that the state was loaded from, and the one given to the run with -r; empty: none. The next
  /// save records both; later saves record the save before them.
  void Follow(Lineage lineage) { lineage_ = std::move(lineage); }
  /// Id of the checkpoint that was loaded or committed last.
  const std::string& parent() const { return lineage_.parent; }

  /// Saves the current state; keeps `keep` checkpoints (0: Options::keep). Collective. Waits for the previous save,
  /// copies, and returns while the copy is written, first in memory; then the state may change. The written bytes must
  /// have these `checksums`; empty: any. A failed save throws nothing: if the ranks agree on the failure it is the
  /// outcome, otherwise it ends the job.
  void Save(Metadata metadata, int64_t keep = 0, const StateChecksums& checksums = {}, SaveTo to = SaveTo::kDisk);
  /// True while a save of this rank is in flight.
  bool Busy() const { return busy_; }
  /// Outcomes of the saves that have ended since the last call, in order.
  std::vector<SaveOutcome> Ended();
  /// Waits until no save is in flight.
  void Wait();

 private:
  /// A shard that this rank writes, and its offset in the staging buffer.
  struct Staged {
    LocalTensor tensor;
    int64_t bytes, offset;
  };
  /// Pieces that are adjacent in memory and in the staging buffer.
  struct Run {
    const LocalTensor* first;  ///< the first shard
    int64_t bytes, offset;
  };

  void Plan(const std::vector<LocalTensor>& local);
  bool OnHost() const;
  void Place();
  void MakeRoom();
  std::vector<LocalTensor> Copy() const;
  std::vector<SaveOutcome> Write(const Metadata& metadata, const std::vector<LocalTensor>& local, World& world,
                                 int64_t keep, SaveTo to) const;

  const Options options_;
  const std::vector<StateTensor>& tensors_;
  const Mesh& mesh_;
  World& world_;
  std::unique_ptr<World> writers_;
  std::vector<Staged> pieces_;
  std::vector<Run> runs_;
  int64_t bytes_ = 0;  ///< size of the staging buffer
  std::unique_ptr<Arena> staging_;
  bool asynchronous_ = false;
  Lineage lineage_;
  std::string refusal_;

  std::atomic<bool> busy_ = false;
  double blocked_ms_ = 0;               ///< how long the save in flight has blocked training
  std::vector<SaveOutcome> in_flight_;  ///< by place; owned by the writer thread while busy_
  std::vector<SaveOutcome> ended_;
  std::thread writer_;
};

}  // namespace espalier
