// The program of one rank for one step: a list of instructions with lanes, waits and byte offsets. The executor runs it
// and `espalier plan` prints it; neither decides anything. Ranks of one class share a program: rank coordinates enter
// only through groups (axes), relative peers and the boxes of local shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/graph/graph.hpp"
#include "espalier/mesh/mesh.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/util/enum_array.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// Instructions of one lane run in program order; lanes run concurrently. kCopyOut copies to the memory of the host,
/// kCopyIn from there.
enum class Lane : uint8_t { kCompute, kTp, kCp, kEp, kDp, kPpSend, kPpRecv, kCopyOut, kCopyIn };
inline constexpr int kLaneCount = 9;
template <typename T>
using ByLane = EnumArray<Lane, T, kLaneCount>;
inline constexpr ByLane<Lane> kLanes = {Lane::kCompute, Lane::kTp,     Lane::kCp,      Lane::kEp,    Lane::kDp,
                                        Lane::kPpSend,  Lane::kPpRecv, Lane::kCopyOut, Lane::kCopyIn};
std::string_view Name(Lane lane);

constexpr bool IsCopyLane(Lane lane) { return lane == Lane::kCopyOut || lane == Lane::kCopyIn; }
/// Its instructions are messages of other ranks, too.
constexpr bool IsMessageLane(Lane lane) { return lane != Lane::kCompute && !IsCopyLane(lane); }

/// The communication that a lane carries. CHECKs that it is not the compute lane.
constexpr CommAxis CommAxisOf(Lane lane) {
  constexpr ByLane<CommAxis> kCarried = {{CommAxis{}, CommAxis::kTp, CommAxis::kCp, CommAxis::kEp, CommAxis::kDp,
                                          CommAxis::kPp, CommAxis::kPp, CommAxis::kHost, CommAxis::kHost}};
  CHECK(lane != Lane::kCompute, "the compute lane has no communication axis");
  return kCarried[lane];
}

/// The purpose of a buffer, as `espalier plan` reports it.
enum class MemoryClass : uint8_t { kParameters, kGradients, kOptimizer, kActivations, kCommunication, kWorkspace };
inline constexpr int kMemoryClassCount = 6;
template <typename T>
using ByMemoryClass = EnumArray<MemoryClass, T, kMemoryClassCount>;
std::string_view Name(MemoryClass memory_class);

/// The part of a value that this rank holds, at its place in the arena of the value's space.
struct Operand {
  int value = -1;      ///< in Program::graph
  int64_t offset = 0;  ///< bytes from the start of that arena
  int64_t bytes = 0;
  bool operator==(const Operand&) const = default;
};

/// "Do not start before the first `count` instructions of `lane` are finished." Counts restart with every step.
struct Wait {
  Lane lane = Lane::kCompute;
  int count = 0;
};

/// Visits a list that makes its elements on the way: list[0], list[1], ...
template <typename List, typename Element>
class IndexIterator {
 public:
  using value_type = Element;
  using difference_type = std::ptrdiff_t;
  using reference = Element;
  using pointer = void;
  using iterator_category = std::input_iterator_tag;
  using iterator_concept = std::random_access_iterator_tag;

  IndexIterator() = default;
  IndexIterator(const List* list, std::ptrdiff_t at) : list_(list), at_(at) {}
  Element operator*() const { return (*list_)[static_cast<size_t>(at_)]; }
  Element operator[](std::ptrdiff_t n) const { return (*list_)[static_cast<size_t>(at_ + n)]; }
  IndexIterator& operator++() { return *this += 1; }
  IndexIterator& operator--() { return *this -= 1; }
  IndexIterator operator++(int) { return std::exchange(*this, *this + 1); }
  IndexIterator operator--(int) { return std::exchange(*this, *this - 1); }
  IndexIterator& operator+=(std::ptrdiff_t n) { return at_ += n, *this; }
  IndexIterator& operator-=(std::ptrdiff_t n) { return at_ -= n, *this; }
  friend IndexIterator operator+(IndexIterator i, std::ptrdiff_t n) { return i += n; }
  friend IndexIterator operator+(std::ptrdiff_t n, IndexIterator i) { return i += n; }
  friend IndexIterator operator-(IndexIterator i, std::ptrdiff_t n) { return i -= n; }
  friend std::ptrdiff_t operator-(IndexIterator a, IndexIterator b) { return a.at_ - b.at_; }
  friend bool operator==(IndexIterator a, IndexIterator b) { return a.at_ == b.at_; }
  friend auto operator<=>(IndexIterator a, IndexIterator b) { return a.at_ <=> b.at_; }

 private:
  const List* list_ = nullptr;
  std::ptrdiff_t at_ = 0;
};

class Instructions;

/// The operands of an instruction. A view of a list, or of a program's instructions; reads like a constant std::vector.
class OperandList {
 public:
  OperandList() = default;
  OperandList(std::span<const Operand> list) : list_(list.data()), size_(static_cast<uint32_t>(list.size())) {}
  OperandList(const std::vector<Operand>& list) : OperandList(std::span(list)) {}

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  inline Operand operator[](size_t i) const;
  using Iterator = IndexIterator<OperandList, Operand>;
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, static_cast<std::ptrdiff_t>(size_)}; }

 private:
  friend Instructions;
  OperandList(const Instructions& of, uint32_t first, uint32_t size, int microbatch)
      : of_(&of), first_(first), size_(size), microbatch_(microbatch) {}

  const Operand* list_ = nullptr;
  const Instructions* of_ = nullptr;  ///< null: `list_`
  uint32_t first_ = 0, size_ = 0;
  int microbatch_ = -1;
};

/// One op at one microbatch. Communication (IsCommunication of the op's kind) runs on communication lanes, copies to
/// and from the host run on copy lanes; every other op is a kernel on the compute lane. Its lists are views.
struct Instruction {
  int op = -1;          ///< in Program::graph
  int microbatch = -1;  ///< -1: once per step
  Lane lane = Lane::kCompute;
  bool accumulate = false;  ///< add to the accumulators: every microbatch but the first, which overwrites them
  OperandList inputs = {};
  OperandList outputs = {};
  Operand workspace = {};  ///< value -1; bytes 0 if none; of the device
  std::span<const Wait> waits = {};
};

/// Instructions in program order. Most of an instruction is the same in all microbatches, and is stored once for its op
/// (Work). Places are stored by value, not by operand, and once if a value is at the same place in all microbatches
/// (Column). So a further microbatch takes 8 bytes for each instruction, and 8 for each value that moves. Reads like a
/// constant std::vector of Instruction, which it makes on the way; these are valid until the list changes or ends.
class Instructions {
 public:
  Instructions() = default;
  /// Copies the instructions and all their lists.
  explicit Instructions(std::span<const Instruction> list) {
    for (const Instruction& instruction : list) Add(instruction);
  }

  size_t size() const { return places_.size(); }
  bool empty() const { return places_.empty(); }
  Instruction operator[](size_t i) const;
  /// CHECKs the index.
  Instruction at(size_t i) const;
  using Iterator = IndexIterator<Instructions, Instruction>;
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, static_cast<std::ptrdiff_t>(size())}; }

  /// For that many instructions in all.
  void Reserve(size_t instructions, int microbatches);
  /// Appends an instruction, of which it copies the lists.
  void Add(const Instruction& instruction);
  /// Replaces the offset of each operand by `of(value, offset)`; `value` is -1 for workspaces.
  void MapOffsets(const std::function<int64_t(int value, int64_t offset)>& of);
  /// Gives all instructions their waits, at most 255 each: `counts[i]` for instruction i, one after the other.
  void SetWaits(std::vector<Wait> waits, const std::vector<uint8_t>& counts);

 private:
  friend OperandList;
  /// The offsets of a value, or of the workspace of an op.
  struct Column {
    int value = -1;
    bool of_step = false;        ///< known without a microbatch, so the same in all
    int most = -1;               ///< the last microbatch that is known
    int64_t offset = 0;          ///< in all microbatches, if there are no others
    std::vector<int64_t> moves;  ///< by microbatch; -1: not known
    int next = -1;               ///< another column of the value, with other offsets in the same microbatches
    int64_t At(int microbatch) const { return moves.empty() ? offset : moves[static_cast<size_t>(microbatch)]; }
  };
  struct Part {
    uint32_t column = 0;
    int64_t bytes = 0;
    bool operator==(const Part&) const = default;
  };
  /// An instruction without microbatch, places and waits.
  struct Work {
    int op = -1;
    Lane lane = Lane::kCompute;
    bool accumulate = false;
    uint16_t inputs = 0, outputs = 0;  ///< their numbers
    uint32_t first = 0;                ///< inputs, outputs and workspace in parts_
    int next = -1;                     ///< another work of the op
  };
  struct Place {
    uint32_t work = 0;
    int32_t microbatch : 24 = -1;
    uint32_t waits : 8 = 0;  ///< their number
  };
  static constexpr size_t kBlock = 16;  ///< places for which one index of waits is stored

  Operand OperandAt(uint32_t part, int microbatch) const {
    const Column& column = columns_[parts_[part].column];
    return {column.value, column.At(microbatch), parts_[part].bytes};
  }
  uint32_t ColumnOf(int& first, const Operand& operand, int microbatch);
  static bool Takes(Column& column, int microbatch, int64_t offset, int microbatches);
  uint32_t WorkOf(const Instruction& instruction);

  int microbatches_ = 0;
  std::vector<Place> places_;
  std::vector<Work> works_;
  std::vector<Part> parts_;
  std::vector<Column> columns_;
  std::vector<int> works_of_op_, columns_of_value_, columns_of_workspace_;  ///< the first ones; -1: none
  std::vector<Part> made_;                                                  ///< of the instruction that is added
  std::vector<Wait> waits_;
  std::vector<uint32_t> first_wait_;  ///< by block of places
};

inline Operand OperandList::operator[](size_t i) const {
  return of_ == nullptr ? list_[i] : of_->OperandAt(first_ + static_cast<uint32_t>(i), microbatch_);
}

/// A buffer that is live during the whole step: a state, accumulator, input or result.
struct PersistentBuffer {
  int value = -1;
  int microbatch = -1;  ///< inputs have one buffer per microbatch
  Operand place;
  MemoryClass memory_class = MemoryClass::kParameters;
};

/// The bytes of each operand that an op of a strip touches, from the start of the operand.
struct TouchedBytes {
  std::vector<std::vector<ByteRange>> inputs, outputs;
};

struct Program {
  std::shared_ptr<const Graph> graph;
  Mesh mesh;
  DeviceKind device = DeviceKind::kCpu;
  int stage = 0;
  int microbatches = 1;
  std::vector<int> stage_of_chunk;  ///< by global chunk
  std::vector<PersistentBuffer> persistent;
  Instructions instructions;
  /// By op: those that have strips. All other ops touch all bytes of their operands.
  std::map<int, TouchedBytes> touched;
  int64_t arena_bytes = 0;  ///< of the device: the peak, exactly
  int64_t host_bytes = 0;   ///< the same of the arena on the host; 0: nothing is there
  /// Bytes of each class at the moment of the peak.
  ByMemoryClass<int64_t> peak_by_class{}, host_by_class{};

  Space SpaceOf(const Operand& operand) const {
    return operand.value < 0 || graph == nullptr ? Space::kDevice : graph->value(operand.value).space;
  }
  /// The place of a persistent value; CHECKs that it is on this stage.
  const Operand& Find(std::string_view value_name, int microbatch = -1) const;
};

/// Bytes that a copy to or from the host moves: the bytes of its operands on the device.
int64_t CopiedBytes(const Program& program, const Instruction& copy);

/// A box that one member of a communication op sends or receives. The executor and the message counts of `plan` use the
/// same pure function.
///
/// Collectives have n inputs and n outputs; tensor i goes from inputs[i]'s placements to outputs[i]'s, over
/// the group op.Axes(). ring_shift passes every shard on to the next member, and from the last one to the first. All
/// tensors of an op share one message per peer.
struct Transfer {
  int tensor = 0;  ///< which input / output of the op
  int peer = 0;    ///< index in the group
  Box box;         ///< global indices
};

struct TransferPlan {
  AxisSet axes;         ///< the group
  bool reduce = false;  ///< received boxes are reduced over all members in group order, this one included
  Reduce how = Reduce::kSum;
  std::vector<Transfer> sends;     ///< by peer, then tensor; own index included (a local copy, or its contribution)
  std::vector<Transfer> receives;  ///< by peer, then tensor; own index included
};

/// The plan of a collective or ring_shift for the rank at `coordinate`. An all_reduce is planned as whole boxes to and
/// from every member; a backend may do it in two phases (reduce-scatter and all-gather of flat shards).
TransferPlan PlanTransfer(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

/// Bytes that this member sends for a collective, ring_shift or send, own boxes excluded; an all_reduce counts both of
/// its phases. (What gather_stages sends depends on the stage: its instruction lists the scalars.)
int64_t WireBytes(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

/// A box of so many bytes that goes to another member is a message of its own, so that it need not be packed.
constexpr bool IsOwnMessage(int64_t bytes) { return bytes >= int64_t{256} << 10; }

/// Bytes of the workspace that a communication op takes: for messages that are no contiguous box of one tensor, and for
/// what is added up. Each message is aligned to 64 bytes. Backends may not use more.
int64_t CommWorkspaceBytes(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate);

/// Bytes of the slot of each member in a collective of a library, whose messages have these sizes: the largest,
/// aligned. 0: all are empty, or slots would take more than twice the messages. Then it is an exchange.
int64_t SlotBytes(const std::vector<int64_t>& sizes);

}  // namespace espalier
