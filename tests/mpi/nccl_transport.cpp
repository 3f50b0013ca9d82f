// The tests of the MPI transport once more, over emulated NCCL: one thread issues communication in program order, and
// each call waits for its peers.
#include <thread>

#include "espalier/comm/stream_communication.hpp"
#include "harness.hpp"

namespace espalier::test {
namespace {

class PreparedInOrder final : public PreparedComm {
 public:
  std::unique_ptr<PreparedComm> prepared;
  std::vector<Instruction> instructions;
};

/// Stream communication for an executor that expects a thread: streams whose work is done when it is issued.
class InOrder final : public Communication {
 public:
  explicit InOrder(std::unique_ptr<StreamCommunication> streams) : streams_(std::move(streams)) {}

  std::unique_ptr<PreparedComm> Prepare(const Program& program, const Coordinate& coordinate,
                                        std::vector<CommInstruction> instructions) override {
    auto prepared = std::make_unique<PreparedInOrder>();
    for (const CommInstruction& i : instructions) prepared->instructions.push_back(i.instruction);
    prepared->prepared = streams_->Prepare(program, coordinate, std::move(instructions));
    return prepared;
  }

  void Start(PreparedComm& prepared, LaneCounts& lanes) override {
    auto& work = dynamic_cast<PreparedInOrder&>(prepared);
    thread_ = std::thread([this, &work, &lanes] {
      try {
        IssueAll(work, lanes);
      } catch (...) {
        failure_ = std::current_exception();
        lanes.Fail();
      }
    });
  }

  void Finish() override {
    if (thread_.joinable()) thread_.join();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    streams_->CheckErrors();
  }

 private:
  void IssueAll(PreparedInOrder& work, LaneCounts& lanes) {
    for (size_t k = 0; k < work.instructions.size(); ++k) {
      for (const Wait& wait : work.instructions[k].waits) lanes.Await(wait);
      streams_->Issue(*work.prepared, k, nullptr);
      lanes.Raise(work.instructions[k].lane);
    }
  }

  std::unique_ptr<StreamCommunication> streams_;
  std::thread thread_;
  std::exception_ptr failure_;
};

}  // namespace

std::unique_ptr<Communication> MakeCommunication(const Mesh& mesh, const std::vector<Channel>& channels,
                                                 MpiCommunicationOptions) {
  return std::make_unique<InOrder>(MakeNcclCommunication(TheWorld(), mesh, channels, {}));
}

}  // namespace espalier::test
