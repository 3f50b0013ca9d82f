// The ranks of an MPI job. One object a process, made first and destroyed last: it starts and ends MPI.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "espalier/comm/world.hpp"

namespace espalier {

struct MpiState;

/// True if mpirun or srun started this process; otherwise it is a world of its own (SelfWorld) and needs no MPI.
bool StartedByLauncher();

/// Starts MPI with MPI_THREAD_SERIALIZED: several threads call MPI (the communication thread within steps, others
/// outside), but every call holds one lock, so that no more is asked of the library, and none but the making of
/// communicators blocks inside it. MPI's errors end the job.
class MpiWorld final : public World {
 public:
  MpiWorld();
  /// Ends MPI; waits for all ranks. While an exception unwinds, ends the job instead, since the others would wait for
  /// ever.
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

  /// Another World over the same ranks, for another thread: calls on one never meet those on the other. Collective,
  /// outside a step. It must not outlive this one.
  std::unique_ptr<World> Duplicate();

  /// The ranks that share this node's memory in rising order, this one's position among them, and their number.
  const std::vector<int>& NodeMembers() const;
  int NodeRank() const;
  int NodeRanks() const;
  /// True if this node has more ranks than this process may use cores.
  bool SharesCores() const;

  /// Ends all ranks now; mpirun exits with `status`. Any thread may call it.
  [[noreturn]] void Abort(int status);
  /// What executors and communication call when a thread fails, too.
  [[noreturn]] void Fail(const std::string& message, ExitStatus status = ExitStatus::kFault) override;

  /// For this room only.
  MpiState& state() { return *state_; }

 private:
  std::unique_ptr<MpiState> state_;
  std::unique_ptr<World> world_;
  int exceptions_at_start_;
};

}  // namespace espalier
