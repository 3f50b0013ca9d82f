// The ranks of an MPI job. One object per process, made first and destroyed last: it initializes and finalizes MPI.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "espalier/comm/world.hpp"

namespace espalier {

struct MpiState;

/// True if mpirun or srun started this process; otherwise the process is alone (SelfWorld) and needs no MPI.
bool StartedByLauncher();

/// Initializes MPI with MPI_THREAD_SERIALIZED. Several threads call MPI (the communication thread in steps, others
/// outside of them), but every call holds one lock, so no more thread support is needed. No call blocks while holding
/// it, except those that make communicators. Errors of MPI end the job.
class MpiWorld final : public World {
 public:
  MpiWorld();
  /// Finalizes MPI, which waits for all ranks. While an exception unwinds, ends the job instead, since the others would
  /// wait forever.
  ~MpiWorld() override;
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int Rank() const override;
  int Size() const override;
  void Barrier() override;
  std::vector<std::string> Gather(const std::string& bytes) override;
  std::string Broadcast(const std::string& bytes) override;
  int64_t Max(int64_t value) override;
  uint64_t Or(uint64_t bits) override;
  void Exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) override;

  /// Another World over the same ranks, for another thread: its calls are never confused with those on this one.
  /// Collective, outside a step. It must not outlive this one.
  std::unique_ptr<World> Duplicate();

  /// The ranks on this node in ascending order, the position of this rank among them, and their number.
  const std::vector<int>& NodeMembers() const;
  int NodeRank() const;
  int NodeRanks() const;
  /// True if this node has more ranks than cores that this process may use.
  bool SharesCores() const;

  /// The thread that ends the job calls `work` first, whatever the reason; an empty one is none. No thread of this rank
  /// may fail at the same time as this call.
  void BeforeAbort(std::function<void()> work);
  /// Ends all ranks now; mpirun exits with `status`. Any thread may call it.
  [[noreturn]] void Abort(int status);
  /// Executors and communication also call this when a thread fails.
  [[noreturn]] void Fail(const std::string& message, ExitStatus status = ExitStatus::kFault) override;

  /// For this module only.
  MpiState& state() { return *state_; }

 private:
  std::unique_ptr<MpiState> state_;
  std::unique_ptr<World> world_;
  int exceptions_at_start_;
};

}  // namespace espalier
