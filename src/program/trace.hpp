// The part of each program that the world checker reads: its communication, by communicator, by peer and in the order
// of issue.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "espalier/program/instruction.hpp"

namespace espalier {

/// A communication instruction. Two members agree on it if it is the same op of the graph at the same microbatch.
struct Event {
  int op, microbatch;
  int index;  ///< of the instruction, for messages
  bool operator==(const Event& o) const { return op == o.op && microbatch == o.microbatch; }
};

size_t HashOf(const std::vector<Event>& events);

/// An op's attributes as they are read, once for all instructions.
struct OpTraits {
  OpKind kind = OpKind::kNone;
  AxisSet axes;   ///< of collectives, ring shifts and gathers of scalars
  int peer = -1;  ///< of sends and receives
};

struct Trace {
  std::map<std::pair<Lane, AxisSet>, std::vector<Event>> collectives;  ///< by lane and group
  std::map<int, std::vector<Event>> sends, receives;                   ///< by stage of the peer
  std::vector<Event> issued;                                           ///< all communication; only for GPUs
  ByLane<std::vector<int>> lanes;                                      ///< indices of instructions
  const std::vector<OpTraits>* traits = nullptr;                       ///< by op
};

/// Reads programs; keeps the traits of their graphs, to which traces point.
class TraceReader {
 public:
  Trace Read(const Program& program);

 private:
  const std::vector<OpTraits>& TraitsOf(const Graph& graph);

  std::map<const Graph*, std::vector<OpTraits>> traits_;
};

/// The distinct programs of a world.
struct RankClasses {
  std::vector<const Program*> programs;
  std::vector<int> of_rank;  ///< by rank: index of its program
};
RankClasses ClassesOf(const Mesh& mesh, const std::function<const Program&(int rank)>& program_of);

/// The first member of a rank's group, for any rank.
class FirstMembers {
 public:
  FirstMembers(const Mesh& mesh, AxisSet axes);
  int Of(int rank) const {
    int first = rank;
    for (const auto& [stride, degree] : axes_) first -= rank / stride % degree * stride;
    return first;
  }

 private:
  std::vector<std::pair<int, int>> axes_;  // stride in ranks, degree
};

}  // namespace espalier
