// From a deck to the programs of all ranks: model, passes, schedule, instructions, memory. Pure and deterministic: any
// number of ranks compiles in one process.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/model/model.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/program/instruction.hpp"
#include "espalier/schedule/schedule.hpp"
#include "espalier/util/alignment.hpp"

namespace espalier {

/// The parts that the programs of all ranks have in common.
struct Compilation {
  Deck deck;
  Mesh mesh;
  Purpose purpose = Purpose::kTrain;
  DeviceKind device = DeviceKind::kCpu;  ///< that the programs run on: workspaces and the order of messages differ
  BatchShape batch;                      ///< of one step of the program; one microbatch in a proof and in sampling
  Schedule schedule;
  std::shared_ptr<const Graph> graph;   ///< after all passes
  std::vector<std::string> parameters;  ///< in model order
  std::vector<ParameterInit> inits;     ///< by parameter
  std::vector<StoredPart> stored;       ///< by parameter
  int64_t parameter_count = 0;

  /// The pipeline stage of a chunk; CHECKs that it is not kAllChunks.
  int StageOf(int chunk) const;
};

/// The device that a deck names: CPUs unless run.device is "cuda". CHECKs that it is not "sleep", whose programs are
/// those of the cluster in run.cluster.
DeviceKind DeviceOf(const Deck& deck);

/// Compiles for `ranks` ranks of a device. `observe` sees the graph of the model, and the graph after every pass.
/// Throws UserError (kDeck) if the degrees do not fit the ranks, the model or the batch. It takes less time with
/// Verification::kAtTheEnd.
Compilation Compile(const Deck& deck, int ranks, Purpose purpose, DeviceKind device, const PassObserver& observe = {},
                    Verification verification = Verification::kEveryPass);
/// The same for the device of the deck.
inline Compilation Compile(const Deck& deck, int ranks, Purpose purpose, const PassObserver& observe = {},
                           Verification verification = Verification::kEveryPass) {
  return Compile(deck, ranks, purpose, DeviceOf(deck), observe, verification);
}

/// Compiles the forward of `tokens` adjacent tokens of one sequence, on one CPU rank. The programs of all numbers of
/// tokens have their weights and caches at the same offsets.
Compilation CompileSampling(const Deck& deck, int64_t tokens);

/// The program of the rank at `coordinate`: its instructions in the order of the schedule's jobs, with memory and waits
/// planned. Persistent buffers come first in each arena: parameters, caches, other states, then all others, each in
/// graph order. So all programs of a deck have their shared states and copies at the same offsets. `reserved_bytes` at
/// the bottom are kept free for states that this program does not have (evaluation next to training: StateBytes of the
/// training program).
Program MakeProgram(const Compilation& compilation, const Coordinate& coordinate,
                    const BySpace<int64_t>& reserved_bytes = {});

/// The memory of the device while a program runs, in bytes by class: what is allocated while each instruction runs, in
/// program order. Holes between buffers are not counted.
struct MemoryTimeline {
  std::vector<ByMemoryClass<int64_t>> allocated;  ///< by instruction
  int peak = -1;                                  ///< the instruction of Program::peak_by_class; -1: before the first
};

/// Makes the programs of several ranks of one compilation: what they have in common is found once. Threads may make
/// programs at the same time. The compilation must outlive it.
class ProgramMaker {
 public:
  explicit ProgramMaker(const Compilation& compilation);
  ~ProgramMaker();
  /// MakeProgram. Writes the memory of the program to `course` unless it is null.
  Program Make(const Coordinate& coordinate, const BySpace<int64_t>& reserved_bytes = {},
               MemoryTimeline* course = nullptr) const;
  /// The bytes of the arenas of that program, which take less time than the program.
  BySpace<int64_t> ArenaBytes(const Coordinate& coordinate, const BySpace<int64_t>& reserved_bytes = {}) const;

 private:
  Program WithMemory(const Coordinate& coordinate, const BySpace<int64_t>& reserved_bytes,
                     MemoryTimeline* course) const;
  struct Common;
  std::unique_ptr<const Common> common_;
};

/// Bytes at the bottom of each arena that hold the program's states and caches.
BySpace<int64_t> StateBytes(const Program& program);

/// Ranks of a stage share a program if their shards of all values of the stage have equal shapes. Returns for each rank
/// the lowest rank of its class.
std::vector<int> ClassRepresentatives(const Compilation& compilation);

/// The programs of all classes, by representative, made by up to `threads` threads (0: one per processor). The same for
/// any number of threads.
std::map<int, Program> MakePrograms(const Compilation& compilation, const std::vector<int>& representative,
                                    int threads = 0);

/// No value and no arena is larger: the relations of a deck ensure it (src/deck/sizes.cpp). Sums of these do not wrap.
inline constexpr int64_t kMaxBytes = int64_t{1} << 60;

/// Gradients whose messages the end of a job leaves open are added after so many layers with matmuls of the next job.
inline constexpr int kLayersUnderLateSums = 2;

/// Orders the lanes: an instruction waits for the last writer of the bytes it reads, and for the last readers and
/// writer of the bytes it overwrites, if these run on other lanes.
void PlanWaits(Program& program);

/// "instruction 12 (matmul, role F, microbatch 2, layer 5)".
std::string Describe(const Program& program, int instruction);

/// One line per instruction: index, lane, op, microbatch, buffers, waits.
std::string Print(const Program& program);

/// Proves that the programs of all ranks match: the members of a group issue the same collectives in the same order
/// with equal shards, sends and receives of a pair have the same order and shapes, and a replay in which every send
/// waits for its receive reaches the end. For GPUs also: the communication of all ranks, each in program order, merges
/// into one order over all communicators, i.e. a replay in which every call waits for the calls of its peers reaches
/// the end. `program_of(rank)` may return one program for all ranks of a class. Throws InvariantError naming ranks and
/// instructions.
void CheckWorld(const Mesh& mesh, const std::function<const Program&(int rank)>& program_of);

/// Messages and bytes that one rank sends in a step, by lane name ("tp", "dp", "pp-send", ...).
struct MessageCount {
  int64_t count = 0;
  int64_t bytes = 0;
};
std::vector<std::pair<std::string, MessageCount>> CountMessages(const Program& program, const Coordinate& coordinate);

/// The same messages by lane, group, op kind and role. A receive counts as the message of its sender.
struct MessageRow {
  Lane lane = Lane::kCompute;
  AxisSet group;
  OpKind kind = OpKind::kNone;
  Role role = Role::kUnset;
  MessageCount total;
};
std::vector<MessageRow> ListMessages(const Program& program, const Coordinate& coordinate);

}  // namespace espalier
