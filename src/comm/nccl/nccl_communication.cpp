#include "nccl_communication.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "comm/lowering/library_collective.hpp"
#include "espalier/util/environment.hpp"
#include "espalier/util/error.hpp"
#include "nccl_call.hpp"

namespace espalier::cuda {
namespace {

/// A phase whose copies and reductions are launches. Boxes that stay on this rank are copied by the launch that packs.
struct StreamPhase {
  const Table<CopyJob>* before = nullptr;
  std::vector<Message> sends, receives;
  std::optional<LibraryCollective> collective;
  const Table<CopyJob>* after = nullptr;
  const Table<ReduceJob>* reductions = nullptr;
  int places = 1;  ///< of a rank alone: all-gathers of one shard, each into the place of another member
};

struct StreamInstruction {
  std::string label;
  ncclComm_t comm = nullptr;  ///< null without messages
  std::vector<StreamPhase> phases;
};

class PreparedNccl final : public PreparedComm {
 public:
  std::vector<StreamInstruction> instructions;
  Tables tables;
};

const Op& OpOf(const Program& program, const Instruction& instruction) {
  return program.graph->ops[static_cast<size_t>(instruction.op)];
}

/// The stages of sender and receiver; only for sends and receives.
std::optional<Communicators::Pair> PairOf(const Program& program, const Instruction& instruction) {
  const Op& op = OpOf(program, instruction);
  if (op.kind == OpKind::kSend) return Communicators::Pair{program.stage, op.Peer()};
  if (op.kind == OpKind::kRecv) return Communicators::Pair{op.Peer(), program.stage};
  return std::nullopt;
}

std::vector<Communicators::Pair> PairsOf(const Program& program, const std::vector<CommInstruction>& instructions) {
  std::vector<Communicators::Pair> pairs;
  for (const CommInstruction& i : instructions)
    if (const auto pair = PairOf(program, i.instruction)) pairs.push_back(*pair);
  return pairs;
}

Exchange Lower(const Program& program, const Coordinate& coordinate, const CommInstruction& instruction,
               LibraryCollectives library_collectives) {
  if (library_collectives == LibraryCollectives::kWhereTheyFit)
    if (std::optional<Exchange> collective = LowerToLibraryCollective(program, coordinate, instruction))
      return std::move(*collective);
  return LowerInstruction(program, coordinate, instruction);
}

/// Replaces every peer by this rank, which receives its own messages. If there are more sends than receives, or the
/// reverse, a message uses the same memory on both sides. No memory of a gather may stay unfilled: what it held before
/// may be no number.
void SendToSelf(StreamPhase& phase, int members) {
  if (phase.collective && phase.collective->kind == LibraryCollective::Kind::kAllGather) phase.places = members;
  std::vector<Message>&sends = phase.sends, &receives = phase.receives;
  for (size_t i = sends.size(); i < receives.size(); ++i) sends.push_back(receives[i]);
  for (size_t i = receives.size(); i < sends.size(); ++i) receives.push_back(sends[i]);
  for (size_t i = 0; i < sends.size(); ++i) {
    sends[i].peer = receives[i].peer = 0;
    sends[i].bytes = receives[i].bytes = std::min(sends[i].bytes, receives[i].bytes);
  }
}

void IssueMessages(const StreamPhase& phase, ncclComm_t comm, cudaStream_t stream) {
  NCCL_CALL(ncclGroupStart());
  for (const Message& m : phase.sends)
    NCCL_CALL(ncclSend(m.data, static_cast<size_t>(m.bytes), ncclInt8, m.peer, comm, stream));
  for (const Message& m : phase.receives)
    NCCL_CALL(ncclRecv(m.data, static_cast<size_t>(m.bytes), ncclInt8, m.peer, comm, stream));
  NCCL_CALL(ncclGroupEnd());
}

void IssueCollective(const LibraryCollective& c, int places, ncclComm_t comm, cudaStream_t stream) {
  const auto count = static_cast<size_t>(c.bytes / SizeOf(c.dtype));
  const ncclDataType_t type = c.dtype == Dtype::kBf16 ? ncclBfloat16 : ncclFloat32;
  switch (c.kind) {
    case LibraryCollective::Kind::kAllGather:
      for (int i = 0; i < places; ++i)
        NCCL_CALL(ncclAllGather(c.from, c.to + i * c.bytes, static_cast<size_t>(c.bytes), ncclInt8, comm, stream));
      break;
    case LibraryCollective::Kind::kReduceScatter:
      NCCL_CALL(ncclReduceScatter(c.from, c.to, count, type, ncclSum, comm, stream));
      break;
    case LibraryCollective::Kind::kAllReduce:
      NCCL_CALL(ncclAllReduce(c.from, c.to, count, type, ncclSum, comm, stream));
      break;
  }
}

void IssuePhase(const StreamPhase& phase, ncclComm_t comm, cudaStream_t stream) {
  LaunchCopies(phase.before->d_jobs, static_cast<int>(phase.before->jobs.size()), phase.before->tiles, stream);
  if (phase.collective)
    IssueCollective(*phase.collective, phase.places, comm, stream);
  else if (!phase.sends.empty() || !phase.receives.empty())
    IssueMessages(phase, comm, stream);
  LaunchCopies(phase.after->d_jobs, static_cast<int>(phase.after->jobs.size()), phase.after->tiles, stream);
  LaunchReductions(phase.reductions->d_jobs, static_cast<int>(phase.reductions->jobs.size()), phase.reductions->tiles,
                   stream);
}

/// Prepares the instructions of one program.
class Preparer {
 public:
  Preparer(const Program& program, const Coordinate& coordinate, const Communicators& communicators,
           LibraryCollectives library_collectives)
      : program_(program),
        coordinate_(coordinate),
        communicators_(communicators),
        library_collectives_(library_collectives) {}

  std::unique_ptr<PreparedNccl> Run(std::vector<CommInstruction>& instructions) {
    for (CommInstruction& instruction : instructions) Add(instruction);
    prepared_->tables.Upload();
    return std::move(prepared_);
  }

 private:
  void Add(CommInstruction& instruction) {
    const Exchange exchange = Lower(program_, coordinate_, instruction, library_collectives_);
    const auto pair = PairOf(program_, instruction.instruction);
    StreamInstruction& prepared = prepared_->instructions.emplace_back();
    prepared.label = std::move(instruction.label);
    if (!exchange.channel.axes.Empty())
      prepared.comm = pair ? communicators_.Of(*pair) : communicators_.Of(exchange.channel);
    for (const Phase& phase : exchange.phases) {
      StreamPhase& next = prepared.phases.emplace_back(OnStream(phase));
      if (pair) SetPairPeers(next);
      if (communicators_.alone()) SendToSelf(next, program_.mesh.GroupSize(exchange.channel.axes));
    }
  }

  StreamPhase OnStream(const Phase& phase) {
    Tables& tables = prepared_->tables;
    return {&tables.Copies({&phase.packs, &phase.own}),
            phase.sends,
            phase.receives,
            phase.collective,
            &tables.Copies({&phase.unpacks}),
            &tables.Reductions(phase.reductions)};
  }

  /// In a communicator of two stages member 0 sends and member 1 receives.
  static void SetPairPeers(StreamPhase& phase) {
    for (Message& message : phase.sends) message.peer = 1;
    for (Message& message : phase.receives) message.peer = 0;
  }

  const Program& program_;
  const Coordinate& coordinate_;
  const Communicators& communicators_;
  LibraryCollectives library_collectives_;
  std::unique_ptr<PreparedNccl> prepared_ = std::make_unique<PreparedNccl>();
};

LibraryCollectives LibraryCollectivesFromEnvironment() {
  return FromEnvironment("ESPALIER_NCCL_NATIVE") == "0" ? LibraryCollectives::kNever
                                                        : LibraryCollectives::kWhereTheyFit;
}

}  // namespace

NcclCommunication::NcclCommunication(World& world, const Mesh& mesh, const std::vector<Channel>& channels,
                                     const NcclOptions& options, LibraryCollectives library_collectives)
    : communicators_(world, mesh, channels, options), library_collectives_(library_collectives) {}

std::unique_ptr<PreparedComm> NcclCommunication::Prepare(const Program& program, const Coordinate& coordinate,
                                                         std::vector<CommInstruction> instructions) {
  communicators_.MakePairs(PairsOf(program, instructions));
  return Preparer(program, coordinate, communicators_, library_collectives_).Run(instructions);
}

void NcclCommunication::Issue(PreparedComm& prepared, size_t k, void* stream) {
  const StreamInstruction& instruction = dynamic_cast<PreparedNccl&>(prepared).instructions.at(k);
  try {
    for (const StreamPhase& phase : instruction.phases)
      IssuePhase(phase, instruction.comm, static_cast<cudaStream_t>(stream));
  } catch (const std::exception& error) {
    throw std::runtime_error(instruction.label + ": " + error.what());
  }
}

}  // namespace espalier::cuda

namespace espalier {

std::unique_ptr<StreamCommunication> MakeNcclCommunication(World& world, const Mesh& mesh,
                                                           const std::vector<Channel>& channels,
                                                           const NcclOptions& options) {
  return std::make_unique<cuda::NcclCommunication>(world, mesh, channels, options,
                                                   cuda::LibraryCollectivesFromEnvironment());
}

}  // namespace espalier
