// From a deck to the programs of all ranks: model, passes, schedule, instructions, memory. Pure and deterministic: any
// number of ranks compiles in one process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/model/model.hpp"
#include "espalier/program/instruction.hpp"
#include "espalier/schedule/schedule.hpp"

namespace espalier {

/// What all ranks share.
struct Compilation {
  Deck deck;
  Mesh mesh;
  Purpose purpose = Purpose::kTrain;
  int64_t microbatches = 1;
  Schedule schedule;
  std::shared_ptr<const Graph> graph;   ///< after all passes
  std::vector<std::string> parameters;  ///< in model order
  std::vector<ParameterInit> inits;     ///< by parameter
  std::vector<StoredPart> stored;       ///< by parameter
  int64_t parameter_count = 0;

  /// Pipeline stage that owns a value or op; CHECKs that it is not on all of them.
  int StageOf(int chunk) const;
};

/// Compiles for `ranks` ranks. `observe` sees the graph after every pass. Throws UserError (kDeck) for impossible
/// numbers.
Compilation Compile(const Deck& deck, int ranks, Purpose purpose,
                    const std::function<void(const std::string& pass, const Graph&)>& observe = {});

/// The program of the rank at `coordinate`: its instructions woven from the schedule's jobs, with memory and waits
/// planned. Persistent buffers come first in the arena, states before all others, in graph order: so programs of one
/// deck agree on the places of the states they share. `reserved_bytes` are kept free for states that this program does
/// not know (evaluation beside training: StateBytes of the training program).
Program MakeProgram(const Compilation& compilation, const Coordinate& coordinate, int64_t reserved_bytes = 0);

/// Bytes at the bottom of the arena that hold the program's states.
int64_t StateBytes(const Program& program);

/// Ranks whose local types are all equal share a program. Returns for each rank the lowest rank of its class.
std::vector<int> ClassRepresentatives(const Compilation& compilation);

/// Offsets in the arena, and messages packed in a workspace, are multiples of this many bytes.
inline constexpr int64_t kAlignment = 64;
/// No value and no arena has more: a deck's relations see to that (src/deck/sizes.cpp), and sums of these do not wrap.
inline constexpr int64_t kMostBytes = int64_t{1} << 60;
constexpr int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Gives every buffer of the program its offset and finds the peak.
void PlanMemory(Program& program, const Coordinate& coordinate, const std::vector<int>& job_ends,
                int64_t reserved_bytes);

/// Orders the lanes: an instruction waits for the last writer of what it reads and the last readers and writer of what
/// it overwrites, if they run on other lanes.
void PlanWaits(Program& program);

/// "instruction 12 (matmul, role F, microbatch 2, layer 5)".
std::string Describe(const Program& program, int instruction);

/// One line per instruction: index, lane, op, microbatch, buffers, waits.
std::string Print(const Program& program);

/// Proves that the programs of all ranks fit together: members of a group issue the same collectives in the same order
/// with equal pieces, sends meet receives in order per pair with equal types, and a replay in which every send waits
/// for its receive reaches the end. For GPUs also that all ranks' communication, each in program order, merges into one
/// order over all communicators: a replay in which every call waits for its peers' reaches the end. `program_of(rank)`
/// may return one program for all ranks of a class. Throws InvariantError naming ranks and instructions.
void CheckWorld(const Mesh& mesh, const std::function<const Program&(int rank)>& program_of);

/// Messages and bytes that one rank sends in a step, by lane name ("tp", "dp", "pp-send", ...).
struct MessageCount {
  int64_t count = 0;
  int64_t bytes = 0;
};
std::vector<std::pair<std::string, MessageCount>> CountMessages(const Program& program, const Coordinate& coordinate);

/// The same messages by lane, group, op kind and role. Receives are their senders' messages.
struct MessageRow {
  Lane lane = Lane::kCompute;
  AxisSet group;
  std::string kind;
  Role role = Role::kUnset;
  MessageCount total;
};
std::vector<MessageRow> ListMessages(const Program& program, const Coordinate& coordinate);

}  // namespace espalier
