// Offsets by liveness, in the arena of the device and in that of the host. Persistent buffers are at the bottom. Above
// them a scan over the program gives each value the smallest hole that fits when it is produced, and frees it after its
// last use. An op that can work in place reuses the buffer of an input that is dead afterwards. Neighbours
// (GraphFacts::blocks) get one hole when the first of them is produced; each frees its part.
#include <algorithm>
#include <utility>

#include "espalier/device_memory/workspace.hpp"
#include "espalier/graph/local_range.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "heap.hpp"
#include "next_uses.hpp"
#include "planners.hpp"

namespace espalier {
namespace {

class MemoryPlanner {
 public:
  MemoryPlanner(Program& program, const GraphFacts& facts, const Coordinate& coordinate,
                const std::vector<int>& job_ends, const BySpace<int64_t>& reserved_bytes, MemoryTimeline* course)
      : program_(program),
        graph_(*program.graph),
        facts_(facts),
        coordinate_(coordinate),
        job_ends_(job_ends),
        reserved_bytes_(reserved_bytes),
        course_(course),
        bytes_(graph_.values.size(), -1),
        workspaces_(static_cast<size_t>(facts.signatures), -1),
        number_(graph_.values.size(), -1),
        deaths_(program.instructions.size()),
        released_(program.instructions.size()) {}

  void Run() {
    NumberValues();
    PlacePersistent();
    FindOverlapEnds();
    FindNextCopies();
    SizeSharedWorkspaces();
    FindLastUses();
    Heaps heaps = {Heap(base_[Space::kDevice]), Heap(base_[Space::kHost])};
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      Place(program_.instructions[i], static_cast<int>(i), heaps);
      NoteMemory(static_cast<int>(i), heaps);
      Free(static_cast<int>(i), heaps);
    }
    program_.arena_bytes = std::max(base_[Space::kDevice], heaps[Space::kDevice].peak());
    program_.host_bytes = std::max(base_[Space::kHost], heaps[Space::kHost].peak());
    FindTouchedBytes();
  }

 private:
  using Heaps = BySpace<Heap>;
  /// Index of a value of one microbatch, or of the step, in `buffers_`.
  using Key = int;
  static constexpr int kNone = -1;

  struct Buffer {
    int64_t offset = 0;
    int value = -1;
    int last_use = -1;
    MemoryClass memory_class = MemoryClass::kActivations;
    Key next = kNone;     // in the list of those that die after the same instruction
    bool placed = false;  // has memory
    bool exists = false;  // has been made
    bool reused = false;  // another value has the memory now
  };
  struct Workspace {
    Operand place;
    MemoryClass memory_class;
    int next;  // in the list of those that are freed after the same instruction
  };
  /// For the collectives of a role on a lane.
  struct SharedWorkspace {
    int64_t bytes = 0;    // of the largest
    int64_t offset = -1;  // -1: before the first
    int last = -1;        // instruction
    int64_t below = 0;    // of role P: bytes of what all but the first bring, which come below the workspace
  };
  struct SharedWorkspaces {
    SharedWorkspace of_p, of_s;  // by role
  };
  /// A list in order of arrival, linked through its elements.
  struct List {
    int first = kNone, last = kNone;
  };
  template <typename Elements>
  static void Append(List& list, Elements& elements, int element) {
    (list.last == kNone ? list.first : elements[list.last].next) = element;
    elements[element].next = kNone;
    list.last = element;
  }

  const Value& ValueOf(int id) const { return graph_.value(id); }
  const ValueFacts& FactsOf(int id) const { return facts_.values[id]; }
  Space SpaceOf(int id) const { return ValueOf(id).space; }

  /// Numbers the values of this stage: those of the step, and those of a microbatch.
  void NumberValues() {
    for (size_t id = 0; id < graph_.values.size(); ++id)
      if (LivesHere(graph_.values[id])) number_[id] = facts_.values[id].of_step ? step_values_++ : microbatch_values_++;
    buffers_.resize(static_cast<size_t>(step_values_) +
                    static_cast<size_t>(microbatch_values_) * static_cast<size_t>(program_.microbatches));
  }
  Key KeyOf(int value, int microbatch) const {
    const int number = number_[value];
    const bool of_step = FactsOf(value).of_step;
    CHECK(number >= 0 && (of_step || (microbatch >= 0 && microbatch < program_.microbatches)),
          "{} of microbatch {} is not on stage {}", ValueOf(value).name, microbatch, program_.stage);
    return of_step ? number : step_values_ + microbatch * microbatch_values_ + number;
  }
  Buffer& At(Key key) { return buffers_[key]; }

  int64_t BytesOf(int value) {
    int64_t& bytes = bytes_[value];
    if (bytes < 0) {
      const Value& v = ValueOf(value);
      const int64_t volume = v.piece.count == 1 ? LocalVolume(v.type, program_.mesh, coordinate_)
                                                : Volume(ExtentsOf(HeldBox(v, program_.mesh, coordinate_)));
      bytes = volume * SizeOf(v.type.dtype);
      CHECK(bytes >= 0 && bytes <= kMaxBytes, "{} has {} bytes", ValueOf(value).name, bytes);
    }
    return bytes;
  }
  int64_t WorkspaceOf(int op) {
    int64_t& bytes = workspaces_[facts_.ops[op].signature];
    const Op& o = graph_.op(op);
    if (bytes < 0)
      bytes =
          IsCommunication(o.kind) ? CommWorkspaceBytes(graph_, o, program_.mesh, coordinate_) : KernelWorkspaceOf(o);
    return bytes;
  }
  int64_t KernelWorkspaceOf(const Op& op) const {
    const WorkspaceFormula formula = CudaWorkspaceFormula(op.kind);
    if (program_.device != DeviceKind::kCuda || formula == nullptr) return 0;
    return formula(LocalOpOf(graph_, op, program_.mesh, coordinate_));
  }

  bool LivesHere(const Value& v) const {
    return v.chunk == kAllChunks || program_.stage_of_chunk[v.chunk] == program_.stage;
  }

  /// Buffers that all programs of a deck have at the same offsets: parameters and caches. Then those of training alone.
  enum class Tier : uint8_t { kParameters, kCaches, kOtherStates, kOfProgram };
  Tier TierOf(int id) const {
    const ValueKind kind = graph_.value(id).kind;
    if (kind == ValueKind::kCache) return Tier::kCaches;
    if (kind != ValueKind::kState) return Tier::kOfProgram;
    return FactsOf(id).memory_class == MemoryClass::kParameters ? Tier::kParameters : Tier::kOtherStates;
  }
  void PlacePersistent() {
    for (const Tier tier : {Tier::kParameters, Tier::kCaches, Tier::kOtherStates}) AddAllPersistent(tier);
    for (const Space space : kSpaces) base_[space] = std::max(base_[space], reserved_bytes_[space]);
    AddAllPersistent(Tier::kOfProgram);
    peak_live_ = live_total_;
    program_.peak_by_class = live_[Space::kDevice];
    program_.host_by_class = live_[Space::kHost];
  }
  void AddAllPersistent(Tier tier) {
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      if (number_[id] < 0 || !facts_.values[id].persistent || TierOf(static_cast<int>(id)) != tier) continue;
      const bool copies = !facts_.values[id].of_step;
      for (int k = 0; k < (copies ? program_.microbatches : 1); ++k)
        AddWithNeighbours(static_cast<int>(id), copies ? k : -1);
    }
  }
  void AddWithNeighbours(int id, int microbatch) {
    const int block = FactsOf(id).block;
    if (block < 0) return AddPersistent(id, microbatch);
    if (At(KeyOf(id, microbatch)).placed) return;
    const int64_t& base = base_[SpaceOf(id)];
    int64_t end = base;
    for (int neighbour : facts_.blocks[block]) {
      CHECK(SpaceOf(neighbour) == SpaceOf(id) && base == end && FactsOf(neighbour).persistent,
            "{} has no place beside {}", ValueOf(neighbour).name, ValueOf(id).name);
      AddPersistent(neighbour, microbatch);
      end += BytesOf(neighbour);
    }
  }
  void AddPersistent(int id, int microbatch) {
    int64_t& base = base_[SpaceOf(id)];
    const Operand place{id, base, BytesOf(id)};
    CHECK(base <= kMaxBytes, "{} is at byte {}", ValueOf(id).name, base);
    const MemoryClass memory_class = FactsOf(id).memory_class;
    program_.persistent.push_back({id, microbatch, place, memory_class});
    Buffer& buffer = At(KeyOf(id, microbatch));
    buffer.offset = base;
    buffer.value = id;
    buffer.placed = buffer.exists = true;
    Count(SpaceOf(id), memory_class, place.bytes, +1);
    base += Aligned(place.bytes);
  }

  /// A value is dead after the last instruction that reads it, but for LastUse.
  void FindLastUses() {
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      const int end = LastUse(instruction, static_cast<int>(i));
      for (const std::vector<Operand>* operands : {&instruction.inputs, &instruction.outputs})
        for (const Operand& operand : *operands) {
          int& last = At(KeyOf(operand.value, instruction.microbatch)).last_use;
          last = std::max(last, end);
        }
    }
  }
  /// How long an instruction keeps its operands. Messages that others should not wait for keep them longer, so that no
  /// kernel gets their memory and waits: the input of a send lives for one more job; the operands of a microbatch's
  /// collective, until the first use of what it brings; what waits on the host for backward, until the next layer's
  /// leaves; what is reduced twice during the last backward, until the last
  /// reduction.
  int LastUse(const Instruction& instruction, int i) {
    if (instruction.lane == Lane::kPpSend) return EndOfNextJob(i);
    if (instruction.lane == Lane::kCopyOut && instruction.microbatch >= 0)
      return std::min(next_copy_out_[i], EndOfNextJob(i));
    if (HasCollectives(instruction.lane) && instruction.microbatch >= 0) return overlap_ends_[i];
    const bool in_a_job = job_ends_.size() > 1 && i < job_ends_[job_ends_.size() - 2];
    return in_a_job && RoleOf(instruction) == Role::kS && SharesWorkspace(instruction) ? SharedBy(instruction).last : i;
  }
  /// By instruction: the next copy to the host after it.
  void FindNextCopies() {
    next_copy_out_.resize(program_.instructions.size());
    int next = static_cast<int>(program_.instructions.size()) - 1;
    for (int i = next; i >= 0; --i) {
      next_copy_out_[i] = next;
      if (program_.instructions[i].lane == Lane::kCopyOut) next = i;
    }
  }
  int EndOfNextJob(int i) const {
    auto job = std::upper_bound(job_ends_.begin(), job_ends_.end(), i);
    if (job != job_ends_.end() && std::next(job) != job_ends_.end()) ++job;
    return (job == job_ends_.end() ? static_cast<int>(program_.instructions.size()) : *job) - 1;
  }

  /// The last instruction that may run concurrently with a collective of a microbatch, or of role P: the one before the
  /// first reader of its outputs, or of their rows in its strip. A collective that passes them on is no reader: whoever
  /// reads what it brings waits for both. Any other instruction has ended when the next one begins.
  void FindOverlapEnds() {
    const auto n = static_cast<int>(program_.instructions.size());
    overlap_ends_.resize(program_.instructions.size());
    NextReaders next(buffers_.size(), n);
    ByLane<NextReduction> next_reduction{};
    for (const Lane lane : kLanes) next_reduction[lane].first = n;
    for (int i = n - 1; i >= 0; --i) {
      const Instruction& instruction = program_.instructions[i];
      const int strip = facts_.ops[instruction.op].strip;
      int first = n;
      const bool of_p = RoleOf(instruction) == Role::kP && SharesWorkspace(instruction);
      if (of_p || (HasCollectives(instruction.lane) && instruction.microbatch >= 0))
        for (const Operand& output : instruction.outputs)
          first = std::min(first, next.Of(KeyOf(output.value, instruction.microbatch), strip));
      overlap_ends_[i] = first < n ? first - 1 : i;
      if (ReducesOnlyMicrobatch(instruction))
        overlap_ends_[i] = std::min(
            overlap_ends_[i], next_reduction[instruction.lane].AfterLayer(graph_.op(instruction.op).layer, i) - 1);
      const int read = HasCollectives(instruction.lane) ? overlap_ends_[i] + 1 : i;
      for (const Operand& input : instruction.inputs) next.Add(KeyOf(input.value, instruction.microbatch), strip, read);
    }
  }
  /// With one microbatch only the update reads what these bring, and whole gradients of all layers would be kept until
  /// then. So a reduction overlaps with the layer after it and no more, as where gradients are added up.
  bool ReducesOnlyMicrobatch(const Instruction& instruction) const {
    const bool data = instruction.lane == Lane::kDp || instruction.lane == Lane::kCp;
    return data && program_.microbatches == 1 && HandlesGradients(graph_, graph_.op(instruction.op));
  }
  /// Collectives of role S overlap with backward, and may take longer. So those of a lane, which run one after the
  /// other, share one workspace from the first to the last: no kernel gets it and waits for them. Those of role P
  /// overlap with the first forward. Without a pipeline, whose stages wait anyway, they share one, above what they
  /// bring, until the first reader of what the last of them brings or the end of the first job.
  bool SharesWorkspace(const Instruction& instruction) const {
    const bool of_p = RoleOf(instruction) == Role::kP && program_.mesh.Degree(Axis::kPp) == 1;
    return HasCollectives(instruction.lane) && (RoleOf(instruction) == Role::kS || of_p);
  }
  Role RoleOf(const Instruction& instruction) const { return graph_.op(instruction.op).role; }
  SharedWorkspace& SharedBy(const Instruction& instruction) {
    SharedWorkspaces& of_lane = shared_[instruction.lane];
    return RoleOf(instruction) == Role::kP ? of_lane.of_p : of_lane.of_s;
  }
  void SizeSharedWorkspaces() {
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      if (!SharesWorkspace(instruction)) continue;
      SharedWorkspace& shared = SharedBy(instruction);
      shared.bytes = std::max(shared.bytes, WorkspaceOf(instruction.op));
      if (RoleOf(instruction) == Role::kS) {
        shared.last = static_cast<int>(i);
        continue;
      }
      if (shared.last >= 0)
        for (const Operand& output : instruction.outputs)
          if (!FactsOf(output.value).persistent) shared.below += Aligned(BytesOf(output.value));
      shared.last = std::max(static_cast<int>(i), std::min(job_ends_.at(1) - 1, overlap_ends_[i]));
    }
  }
  static bool HasCollectives(Lane lane) {
    return lane == Lane::kTp || lane == Lane::kCp || lane == Lane::kEp || lane == Lane::kDp;
  }

  void Place(Instruction& instruction, int i, Heaps& heaps) {
    RequireSpaces(instruction);
    for (Operand& input : instruction.inputs) {
      const Buffer& buffer = At(KeyOf(input.value, instruction.microbatch));
      CHECK(buffer.exists, "{} (microbatch {}) is read before it is made on stage {}", ValueOf(input.value).name,
            instruction.microbatch, program_.stage);
      input = {buffer.value, buffer.offset, BytesOf(buffer.value)};
    }
    for (size_t o = 0; o < instruction.outputs.size(); ++o) {
      const int value = instruction.outputs[o].value;
      const Key key = KeyOf(value, instruction.microbatch);
      Buffer& buffer = At(key);
      if (!buffer.exists) {
        if (!buffer.placed && !ReuseInput(instruction, i, o, key)) Allocate(value, instruction.microbatch, heaps);
        buffer.exists = true;
        Append(deaths_[buffer.last_use], buffers_, key);
      }
      instruction.outputs[o] = {buffer.value, buffer.offset, BytesOf(value)};
    }
    if (const int64_t workspace = WorkspaceOf(instruction.op); workspace > 0)
      PlaceWorkspace(instruction, i, workspace, heaps[Space::kDevice]);
  }
  /// Kernels and messages have their operands on the device; a copy has one side there, the other on the host.
  void RequireSpaces(const Instruction& instruction) const {
    const OpKind kind = graph_.op(instruction.op).kind;
    const auto require = [&](const std::vector<Operand>& operands, Space space) {
      for (const Operand& operand : operands)
        CHECK(SpaceOf(operand.value) == space, "{} of {} is in the memory of the {}", ValueOf(operand.value).name, kind,
              Name(SpaceOf(operand.value)));
    };
    require(instruction.inputs, kind == OpKind::kCopyIn ? Space::kHost : Space::kDevice);
    require(instruction.outputs, kind == OpKind::kCopyOut ? Space::kHost : Space::kDevice);
  }
  void PlaceWorkspace(Instruction& instruction, int i, int64_t bytes, Heap& heap) {
    if (!SharesWorkspace(instruction)) {
      instruction.workspace = TakeWorkspace(instruction.lane, bytes, overlap_ends_[i], heap);
      return;
    }
    SharedWorkspace& shared = SharedBy(instruction);
    if (shared.offset < 0) {
      const int64_t below = heap.Take(shared.below);
      shared.offset = TakeWorkspace(instruction.lane, shared.bytes, shared.last, heap).offset;
      heap.Give(below, shared.below);
    }
    instruction.workspace = {-1, shared.offset, bytes};
  }
  /// Live until the end of instruction `last`.
  Operand TakeWorkspace(Lane lane, int64_t bytes, int last, Heap& heap) {
    const Operand place = {-1, heap.Take(bytes), bytes};
    const MemoryClass memory_class = lane == Lane::kCompute ? MemoryClass::kWorkspace : MemoryClass::kCommunication;
    Count(Space::kDevice, memory_class, bytes, +1);
    held_.push_back({place, memory_class, kNone});
    Append(released_[last], held_, static_cast<int>(held_.size()) - 1);
    return place;
  }
  /// Memory for a value and its neighbours.
  void Allocate(int value, int microbatch, Heaps& heaps) {
    const int block = FactsOf(value).block;
    const std::vector<int> values = block < 0 ? std::vector{value} : facts_.blocks[block];
    int64_t bytes = 0;
    for (int v : values) {
      CHECK(bytes % kAlignment == 0, "{} has no place beside {}", ValueOf(v).name, ValueOf(values[0]).name);
      bytes += BytesOf(v);
    }
    int64_t offset = heaps[SpaceOf(value)].Take(bytes);
    for (int v : values) {
      GiveMemory(At(KeyOf(v, microbatch)), v, offset);
      offset += BytesOf(v);
    }
  }
  void GiveMemory(Buffer& buffer, int value, int64_t offset) {
    CHECK(!buffer.placed, "{} has memory already", ValueOf(value).name);
    buffer.value = value;
    buffer.offset = offset;
    buffer.memory_class = FactsOf(value).memory_class;
    buffer.placed = true;
    Count(SpaceOf(value), buffer.memory_class, BytesOf(value), +1);
  }
  bool ReuseInput(const Instruction& instruction, int i, size_t output, Key key) {
    const Op& op = graph_.op(instruction.op);
    if (FactsOf(op.outputs[output]).block >= 0) return false;
    const std::vector<InPlace>& pairs = *facts_.ops[instruction.op].in_place;
    return std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& pair) {
      return pair.output == static_cast<int>(output) && pair.input < static_cast<int>(op.inputs.size()) &&
             ReuseBufferOf(op.inputs[pair.input], instruction, i, op.outputs[output], key);
    });
  }
  bool ReuseBufferOf(int value, const Instruction& instruction, int i, int output, Key key) {
    Buffer& donor = At(KeyOf(value, instruction.microbatch));
    if (SpaceOf(value) != SpaceOf(output) || FactsOf(value).persistent || donor.last_use != i ||
        BytesOf(value) != BytesOf(output))
      return false;
    const std::vector<int>& inputs = graph_.op(instruction.op).inputs;
    if (std::count(inputs.begin(), inputs.end(), value) > 1) return false;
    Buffer& buffer = At(key);
    buffer.value = output;
    buffer.offset = donor.offset;
    buffer.placed = true;
    buffer.memory_class = donor.memory_class;
    donor.reused = true;
    return true;
  }

  void Free(int i, Heaps& heaps) {
    for (int w = released_[i].first; w != kNone; w = held_[w].next) {
      const Workspace& workspace = held_[w];
      heaps[Space::kDevice].Give(workspace.place.offset, workspace.place.bytes);
      Count(Space::kDevice, workspace.memory_class, workspace.place.bytes, -1);
    }
    for (Key key = deaths_[i].first; key != kNone; key = At(key).next) {
      Buffer& buffer = At(key);
      buffer.placed = buffer.exists = false;
      if (buffer.reused) continue;
      const int64_t bytes = BytesOf(buffer.value);
      heaps[SpaceOf(buffer.value)].Give(buffer.offset, bytes);
      Count(SpaceOf(buffer.value), buffer.memory_class, bytes, -1);
    }
  }

  void FindTouchedBytes() {
    for (const Instruction& instruction : program_.instructions)
      if (facts_.ops[instruction.op].strip >= 0)
        if (const auto [place, fresh] = program_.touched.try_emplace(instruction.op); fresh)
          place->second = TouchedBytesOf(graph_.op(instruction.op));
  }
  TouchedBytes TouchedBytesOf(const Op& op) const {
    const OperandBoxes boxes = BoxesOf(graph_, op, program_.mesh, coordinate_);
    const auto ranges = [&](const std::vector<int>& values, const std::vector<std::vector<Box>>& boxes_of) {
      std::vector<std::vector<ByteRange>> all;
      for (size_t i = 0; i < values.size(); ++i) {
        std::vector<ByteRange>& of_operand = all.emplace_back();
        for (const Box& box : boxes_of[i])
          of_operand.push_back(espalier::BytesOf(ValueOf(values[i]), box, program_.mesh, coordinate_));
      }
      return all;
    };
    return {ranges(op.inputs, boxes.inputs), ranges(op.outputs, boxes.outputs)};
  }

  void Count(Space space, MemoryClass memory_class, int64_t bytes, int sign) {
    live_[space][memory_class] += sign * Aligned(bytes);
    live_total_[space] += sign * Aligned(bytes);
  }
  void NoteMemory(int i, const Heaps& heaps) {
    if (course_ != nullptr) course_->allocated.push_back(live_[Space::kDevice]);
    if (IsHigher(Space::kHost, heaps)) program_.host_by_class = live_[Space::kHost];
    if (!IsHigher(Space::kDevice, heaps)) return;
    program_.peak_by_class = live_[Space::kDevice];
    if (course_ != nullptr) course_->peak = i;
  }
  /// More memory of the space is in use than ever before.
  bool IsHigher(Space space, const Heaps& heaps) {
    const int64_t peak = heaps[space].peak();
    if (peak <= peak_seen_[space] && live_total_[space] <= peak_live_[space]) return false;
    peak_seen_[space] = std::max(peak_seen_[space], peak);
    peak_live_[space] = live_total_[space];
    return true;
  }

  Program& program_;
  const Graph& graph_;
  const GraphFacts& facts_;
  const Coordinate coordinate_;
  const std::vector<int>& job_ends_;
  const BySpace<int64_t> reserved_bytes_;
  MemoryTimeline* const course_;     // null: not asked for
  std::vector<int64_t> bytes_;       // by value; -1: not computed yet
  std::vector<int64_t> workspaces_;  // by signature of the op; -1: not computed yet
  std::vector<int> number_;          // by value: among those of its frequency on this stage; -1: on another stage
  int step_values_ = 0, microbatch_values_ = 0;
  BySpace<int64_t> base_{};
  std::vector<Buffer> buffers_;    // by key
  std::vector<int> overlap_ends_;  // by instruction: the last one that may overlap with it
  std::vector<int> next_copy_out_;
  std::vector<List> deaths_;  // by instruction: keys that die after it
  std::vector<Workspace> held_;
  ByLane<SharedWorkspaces> shared_{};
  std::vector<List> released_;  // by instruction: workspaces (in held_) that are freed after it
  BySpace<ByMemoryClass<int64_t>> live_{};
  BySpace<int64_t> live_total_{}, peak_live_{}, peak_seen_{};
};

}  // namespace

void PlanMemory(Program& program, const GraphFacts& facts, const Coordinate& coordinate,
                const std::vector<int>& job_ends, const BySpace<int64_t>& reserved_bytes, MemoryTimeline* course) {
  MemoryPlanner(program, facts, coordinate, job_ends, reserved_bytes, course).Run();
}

BySpace<int64_t> StateBytes(const Program& program) {
  BySpace<int64_t> ends{};
  for (const PersistentBuffer& buffer : program.persistent)
    if (IsKept(program.graph->value(buffer.value).kind)) {
      int64_t& end = ends[program.SpaceOf(buffer.place)];
      end = std::max(end, Aligned(buffer.place.offset + buffer.place.bytes));
    }
  return ends;
}

}  // namespace espalier
