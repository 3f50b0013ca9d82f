// The instructions of a program, and offsets by liveness in the arenas of the device and of the host. Persistent
// buffers are at the bottom. A scan over the program requests memory for each value from the instruction that makes it
// to its last use, and around messages for a little longer (FirstNeed, LastUse). An op that can work in place takes
// over the request of an input that is dead afterwards. Neighbours (GraphFacts::blocks) are adjacent in memory and
// begin together; each ends by itself. Pack finds places for all requests (packing.hpp).
#include <algorithm>
#include <map>
#include <utility>

#include "emitted_ops.hpp"
#include "espalier/device_memory/workspace.hpp"
#include "espalier/graph/local_range.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "in_flight.hpp"
#include "next_uses.hpp"
#include "packing.hpp"
#include "planners.hpp"

namespace espalier {
namespace {

class MemoryPlanner : EmittedOps {
 public:
  MemoryPlanner(Program& program, const Emission& emission, const GraphFacts& facts, const Coordinate& coordinate,
                const BySpace<int64_t>& reserved_bytes, MemoryTimeline* course)
      : EmittedOps(program, emission, facts),
        program_(program),
        coordinate_(coordinate),
        reserved_bytes_(reserved_bytes),
        course_(course),
        bytes_(graph_.values.size(), -1),
        workspaces_(static_cast<size_t>(facts.signatures), -1),
        number_(graph_.values.size(), -1) {}

  void Run() {
    NumberValues();
    PlacePersistent();
    FindOverlapEnds();
    FindNextCopies();
    SizeSharedWorkspaces();
    FindLastUsesOfStep();
    program_.instructions.Reserve(ops_.size(), program_.microbatches);
    for (int i = 0; i < std::ssize(ops_); ++i) {
      Open(OpAt(i).microbatch, i);
      Add(i);
      last_on_lane_[LaneOf(i)] = i;
      NoteMemory(i);
      Free(i);
    }
    PackRequests();
  }

 private:
  /// Index of a value of one microbatch, or of the step, in `buffers_`.
  using Key = int;
  static constexpr int kNone = -1;
  /// Until all requests have places, a request stands for an offset: this number and its index.
  static constexpr int64_t kRequests = 4 * kMaxBytes;

  struct Buffer {
    int64_t offset = 0;  // or a request
    int value = -1;
    int last_use = -1;
    MemoryClass memory_class = MemoryClass::kActivations;
    bool placed = false;  // has memory
    bool exists = false;  // has been made
    bool reused = false;  // another value has the memory now
  };
  struct Workspace {
    Operand place;
    MemoryClass memory_class;
  };
  /// For the collectives of a role on a lane.
  struct SharedWorkspace {
    int64_t bytes = 0;    // of the largest
    int64_t offset = -1;  // or a request; -1: before the first
    int last = -1;        // instruction
  };
  struct SharedWorkspaces {
    SharedWorkspace of_p, of_s;  // by role
  };

  /// Numbers the values of this stage: those of the step, and those of a microbatch.
  void NumberValues() {
    for (size_t id = 0; id < graph_.values.size(); ++id)
      if (LivesHere(graph_.values[id])) number_[id] = facts_.values[id].of_step ? step_values_++ : microbatch_values_++;
    buffers_.resize(static_cast<size_t>(step_values_));
  }
  Key FirstKey(int slot) const { return step_values_ + slot * microbatch_values_; }
  Key KeyOf(int value, int microbatch) const {
    const int number = number_[value];
    const bool of_step = FactsOf(value).of_step;
    CHECK(number >= 0 && (of_step || (microbatch >= 0 && microbatch < program_.microbatches)),
          "{} of microbatch {} is not on stage {}", ValueOf(value).name, microbatch, program_.stage);
    if (of_step) return number;
    CHECK(slots_.Of(microbatch) != kNone, "{} of microbatch {} has no buffer now", ValueOf(value).name, microbatch);
    return FirstKey(slots_.Of(microbatch)) + number;
  }
  /// Before instruction `i`: a microbatch that begins gets buffers, which know their last uses.
  void Open(int microbatch, int i) {
    if (microbatch < 0 || first_of_microbatch_[microbatch] != i) return;
    const auto first = static_cast<size_t>(FirstKey(slots_.Take(microbatch)));
    const size_t end = first + static_cast<size_t>(microbatch_values_);
    buffers_.resize(std::max(buffers_.size(), end));
    std::fill(buffers_.begin() + static_cast<std::ptrdiff_t>(first),
              buffers_.begin() + static_cast<std::ptrdiff_t>(end), Buffer{});
    for (const auto& [value, offsets] : copies_) {
      Buffer& buffer = At(KeyOf(value, microbatch));
      buffer.offset = offsets[microbatch];
      buffer.value = value;
      buffer.placed = buffer.exists = true;
    }
    int last = i;
    for (int k = i; k != kNone; k = next_of_microbatch_[k]) {
      const int use = LastUse(k);
      last = std::max(last, use);
      const auto note = [&](const std::vector<int>& values) {
        for (int value : values)
          if (!FactsOf(value).of_step) NoteUse(KeyOf(value, microbatch), use);
      };
      note(InputsOf(k));
      note(OpOf(k).outputs);
    }
    closed_.Add(last, microbatch);
  }
  void NoteUse(Key key, int use) { At(key).last_use = std::max(At(key).last_use, use); }
  Buffer& At(Key key) { return buffers_[key]; }

  int64_t AddRequest(Space space, int64_t bytes, int i, bool behind = false) {
    bytes = Aligned(bytes);
    if (bytes == 0) return 0;
    CHECK(bytes > 0 && bytes <= kMaxBytes, "{} bytes of memory", bytes);
    requests_[space].push_back({bytes, FirstNeed(i), i, behind});
    return kRequests + std::ssize(requests_[space]) - 1;
  }
  void EndRequest(Space space, int64_t offset, int i) {
    if (offset >= kRequests) requests_[space][offset - kRequests].end = i;
  }
  /// The instruction from which on memory is kept free for what instruction `i` makes. A message that overlaps with
  /// kernels should not wait for one that has just used its memory. So that is kept free since the message before on
  /// its lane, at most since the beginning of the job before. Messages of dp bring whole layers, and would take too
  /// much.
  int FirstNeed(int i) const {
    const Lane lane = LaneOf(i);
    if (!IsMessageLane(lane) || lane == Lane::kDp || OpAt(i).microbatch < 0) return i;
    return std::max(last_on_lane_[lane], StartOfJobBefore(i));
  }
  void PackRequests() {
    BySpace<Packing> packings;
    for (const Space space : kSpaces) packings[space] = Pack(requests_[space], job_ends_, base_[space]);
    program_.instructions.MapOffsets([&](int value, int64_t offset) {
      const Space space = value < 0 ? Space::kDevice : SpaceOf(value);
      return offset < kRequests ? offset : packings[space].offsets[offset - kRequests];
    });
    program_.arena_bytes = packings[Space::kDevice].peak;
    program_.host_bytes = packings[Space::kHost].peak;
  }

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

  /// Buffers that all programs of a deck have at the same offsets: parameters and caches. Then the states of training
  /// alone.
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
    if (HasPlace(id, microbatch)) return;
    const int64_t& base = base_[SpaceOf(id)];
    int64_t end = base;
    for (int neighbour : facts_.blocks[block]) {
      CHECK(SpaceOf(neighbour) == SpaceOf(id) && base == end && FactsOf(neighbour).persistent,
            "{} has no place beside {}", ValueOf(neighbour).name, ValueOf(id).name);
      AddPersistent(neighbour, microbatch);
      end += BytesOf(neighbour);
    }
  }
  bool HasPlace(int id, int microbatch) const {
    if (microbatch < 0) return buffers_[KeyOf(id, microbatch)].placed;
    const auto copies = copies_.find(id);
    return copies != copies_.end() && copies->second[microbatch] >= 0;
  }
  void AddPersistent(int id, int microbatch) {
    int64_t& base = base_[SpaceOf(id)];
    const Operand place{id, base, BytesOf(id)};
    CHECK(base <= kMaxBytes, "{} is at byte {}", ValueOf(id).name, base);
    const MemoryClass memory_class = FactsOf(id).memory_class;
    program_.persistent.push_back({id, microbatch, place, memory_class});
    if (microbatch < 0) {
      Buffer& buffer = At(KeyOf(id, microbatch));
      buffer.offset = base;
      buffer.value = id;
      buffer.placed = buffer.exists = true;
    } else {
      copies_.try_emplace(id, program_.microbatches, -1).first->second[microbatch] = base;
    }
    Count(SpaceOf(id), memory_class, place.bytes, +1);
    base += Aligned(place.bytes);
  }

  /// A value is dead after the last instruction that reads it, but for LastUse. Open finds those of microbatches.
  void FindLastUsesOfStep() {
    for (int i = 0; i < std::ssize(ops_); ++i) {
      const int use = LastUse(i);
      const auto note = [&](const std::vector<int>& values) {
        for (int value : values)
          if (FactsOf(value).of_step) NoteUse(KeyOf(value, -1), use);
      };
      note(InputsOf(i));
      note(OpOf(i).outputs);
    }
  }
  /// How long an instruction keeps its operands. Messages that others should not wait for keep them longer, so that no
  /// kernel gets their memory and waits: the input of a send lives for one more job; the operands of a microbatch's
  /// collective, until the first use of what it brings; what waits on the host for backward, until the next layer's
  /// leaves; what is reduced twice during the last backward, until the last
  /// reduction.
  int LastUse(int i) {
    const Lane lane = LaneOf(i);
    if (lane == Lane::kPpSend) return EndOfNextJob(i);
    if (lane == Lane::kCopyOut && OpAt(i).microbatch >= 0) return std::min(next_copy_out_.at(i), EndOfNextJob(i));
    if (HasCollectives(lane) && OpAt(i).microbatch >= 0) return overlap_ends_[i];
    const bool in_a_job = job_ends_.size() > 1 && i < job_ends_[job_ends_.size() - 2];
    return in_a_job && RoleOf(i) == Role::kS && SharesWorkspace(i) ? SharedBy(i).last : i;
  }
  /// By copy to the host: the next one.
  void FindNextCopies() {
    int next = static_cast<int>(ops_.size()) - 1;
    for (int i = next; i >= 0; --i)
      if (LaneOf(i) == Lane::kCopyOut) next_copy_out_[i] = std::exchange(next, i);
  }

  /// The last instruction that may run concurrently with a collective of a microbatch, or of role P: the one before the
  /// first reader of its outputs, or of their rows in its strip. A collective that passes them on is no reader: whoever
  /// reads what it brings waits for both. Any other instruction has ended when the next one begins.
  void FindOverlapEnds() {
    const auto n = static_cast<int>(ops_.size());
    overlap_ends_.resize(ops_.size());
    NextReaders next(n);
    next.Forget(0, step_values_);
    ByLane<NextReduction> next_reduction{};
    for (const Lane lane : kLanes) next_reduction[lane].first = n;
    for (int i = n - 1; i >= 0; --i) {
      const auto [op, microbatch] = OpAt(i);
      const Lane lane = LaneOf(i);
      const int strip = facts_.ops[op].strip;
      if (microbatch >= 0 && slots_.Of(microbatch) == kNone)
        next.Forget(FirstKey(slots_.Take(microbatch)), microbatch_values_);
      int first = n;
      if ((RoleOf(i) == Role::kP && SharesWorkspace(i)) || (HasCollectives(lane) && microbatch >= 0))
        for (int output : OpOf(i).outputs) first = std::min(first, next.Of(KeyOf(output, microbatch), strip));
      overlap_ends_[i] = first < n ? first - 1 : i;
      if (ReducesOnlyMicrobatch(i))
        overlap_ends_[i] = std::min(overlap_ends_[i], next_reduction[lane].AfterLayer(OpOf(i).layer, i) - 1);
      const int read = HasCollectives(lane) ? overlap_ends_[i] + 1 : i;
      for (int input : InputsOf(i)) next.Add(KeyOf(input, microbatch), strip, read);
      if (microbatch >= 0 && first_of_microbatch_[microbatch] == i) slots_.Give(microbatch);
    }
  }
  /// With one microbatch only the update reads what these bring, and whole gradients of all layers would be kept until
  /// then. So a reduction overlaps with the layer after it and no more, as where gradients are added up.
  bool ReducesOnlyMicrobatch(int i) const {
    const bool data = LaneOf(i) == Lane::kDp || LaneOf(i) == Lane::kCp;
    return data && program_.microbatches == 1 && HandlesGradients(graph_, OpOf(i));
  }
  /// Collectives of role S overlap with backward, and may take longer. So those of a lane, which run one after the
  /// other, share one workspace from the first to the last: no kernel gets it and waits for them. Collectives of role P
  /// overlap with the first forward. On the first stage, for which the others wait, they share one until the first
  /// reader of what the last of them brings or the end of the first job.
  bool SharesWorkspace(int i) const {
    const bool of_p = RoleOf(i) == Role::kP && program_.stage == 0;
    return HasCollectives(LaneOf(i)) && (RoleOf(i) == Role::kS || of_p);
  }
  SharedWorkspace& SharedBy(int i) {
    SharedWorkspaces& of_lane = shared_[LaneOf(i)];
    return RoleOf(i) == Role::kP ? of_lane.of_p : of_lane.of_s;
  }
  void SizeSharedWorkspaces() {
    for (int i = 0; i < std::ssize(ops_); ++i) {
      if (!SharesWorkspace(i)) continue;
      SharedWorkspace& shared = SharedBy(i);
      shared.bytes = std::max(shared.bytes, WorkspaceOf(OpAt(i).op));
      shared.last = RoleOf(i) == Role::kS ? i : std::max(i, std::min(job_ends_.at(1) - 1, overlap_ends_[i]));
    }
  }

  void Add(int i) {
    RequireSpaces(i);
    const auto [op, microbatch] = OpAt(i);
    inputs_.clear();
    for (int value : InputsOf(i)) {
      const Buffer& buffer = At(KeyOf(value, microbatch));
      CHECK(buffer.exists, "{} (microbatch {}) is read before it is made on stage {}", ValueOf(value).name, microbatch,
            program_.stage);
      inputs_.push_back({buffer.value, buffer.offset, BytesOf(buffer.value)});
    }
    outputs_.clear();
    for (size_t o = 0; o < OpOf(i).outputs.size(); ++o) {
      const int value = OpOf(i).outputs[o];
      const Key key = KeyOf(value, microbatch);
      Buffer& buffer = At(key);
      if (!buffer.exists) {
        if (!buffer.placed && !ReuseInput(i, o, key)) Allocate(value, microbatch, i);
        buffer.exists = true;
        deaths_.Add(buffer.last_use, key);
      }
      outputs_.push_back({buffer.value, buffer.offset, BytesOf(value)});
    }
    const int64_t work_bytes = WorkspaceOf(op);
    const OpFacts& facts = facts_.ops[op];
    program_.instructions.Add({.op = op,
                               .microbatch = microbatch,
                               .lane = facts.lane,
                               .accumulate = facts.adds || (facts.sums && microbatch > 0),
                               .inputs = inputs_,
                               .outputs = outputs_,
                               .workspace = work_bytes > 0 ? WorkspaceAt(i, work_bytes) : Operand{}});
  }
  Operand WorkspaceAt(int i, int64_t bytes) {
    if (!SharesWorkspace(i)) return TakeWorkspace(bytes, i, overlap_ends_[i]);
    SharedWorkspace& shared = SharedBy(i);
    if (shared.offset < 0) shared.offset = TakeWorkspace(shared.bytes, i, shared.last).offset;
    return {-1, shared.offset, bytes};
  }
  /// Live from instruction `i` to the end of `last`.
  Operand TakeWorkspace(int64_t bytes, int i, int last) {
    const Operand place = {-1, AddRequest(Space::kDevice, bytes, i), bytes};
    const MemoryClass memory_class =
        LaneOf(i) == Lane::kCompute ? MemoryClass::kWorkspace : MemoryClass::kCommunication;
    Count(Space::kDevice, memory_class, bytes, +1);
    released_.Add(last, {place, memory_class});
    return place;
  }
  /// Memory for a value and its neighbours.
  void Allocate(int value, int microbatch, int i) {
    const int block = FactsOf(value).block;
    int64_t before = 0;
    for (int v : block < 0 ? std::vector{value} : facts_.blocks[block]) {
      CHECK(before % kAlignment == 0, "{} has no place beside {}", ValueOf(v).name, ValueOf(value).name);
      GiveMemory(At(KeyOf(v, microbatch)), v, AddRequest(SpaceOf(v), BytesOf(v), i, before > 0));
      before = BytesOf(v);
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
  bool ReuseInput(int i, size_t output, Key key) {
    const Op& op = OpOf(i);
    if (FactsOf(op.outputs[output]).block >= 0) return false;
    const std::vector<InPlace>& pairs = *facts_.ops[OpAt(i).op].in_place;
    return std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& pair) {
      return pair.output == static_cast<int>(output) && pair.input < static_cast<int>(op.inputs.size()) &&
             ReuseBufferOf(op.inputs[pair.input], i, op.outputs[output], key);
    });
  }
  bool ReuseBufferOf(int value, int i, int output, Key key) {
    Buffer& donor = At(KeyOf(value, OpAt(i).microbatch));
    if (SpaceOf(value) != SpaceOf(output) || FactsOf(value).persistent || donor.last_use != i ||
        BytesOf(value) != BytesOf(output))
      return false;
    const std::vector<int>& inputs = OpOf(i).inputs;
    if (std::count(inputs.begin(), inputs.end(), value) > 1) return false;
    Buffer& buffer = At(key);
    buffer.value = output;
    buffer.offset = donor.offset;
    buffer.placed = true;
    buffer.memory_class = donor.memory_class;
    donor.reused = true;
    return true;
  }

  void Free(int i) {
    while (const std::optional<Workspace> workspace = released_.Take(i)) {
      EndRequest(Space::kDevice, workspace->place.offset, i);
      Count(Space::kDevice, workspace->memory_class, workspace->place.bytes, -1);
    }
    while (const std::optional<Key> key = deaths_.Take(i)) {
      Buffer& buffer = At(*key);
      buffer.placed = buffer.exists = false;
      if (buffer.reused) continue;
      EndRequest(SpaceOf(buffer.value), buffer.offset, i);
      Count(SpaceOf(buffer.value), buffer.memory_class, BytesOf(buffer.value), -1);
    }
    while (const std::optional<int> microbatch = closed_.Take(i)) slots_.Give(*microbatch);
  }

  void Count(Space space, MemoryClass memory_class, int64_t bytes, int sign) {
    live_[space][memory_class] += sign * Aligned(bytes);
    live_total_[space] += sign * Aligned(bytes);
  }
  void NoteMemory(int i) {
    if (course_ != nullptr) course_->allocated.push_back(live_[Space::kDevice]);
    if (IsHigher(Space::kHost)) program_.host_by_class = live_[Space::kHost];
    if (!IsHigher(Space::kDevice)) return;
    program_.peak_by_class = live_[Space::kDevice];
    if (course_ != nullptr) course_->peak = i;
  }
  /// More memory of the space is in use than ever before.
  bool IsHigher(Space space) {
    if (live_total_[space] <= peak_live_[space]) return false;
    peak_live_[space] = live_total_[space];
    return true;
  }

  Program& program_;
  const Coordinate coordinate_;
  const BySpace<int64_t> reserved_bytes_;
  MemoryTimeline* const course_;     // null: not asked for
  std::vector<int64_t> bytes_;       // by value; -1: not computed yet
  std::vector<int64_t> workspaces_;  // by signature of the op; -1: not computed yet
  std::vector<int> number_;          // by value: among those of its frequency on this stage; -1: on another stage
  int step_values_ = 0, microbatch_values_ = 0;
  BySpace<int64_t> base_{};
  std::vector<Buffer> buffers_;  // by key
  Slots slots_{program_.microbatches};
  std::map<int, std::vector<int64_t>> copies_;  // persistent values of microbatches: offsets, by microbatch
  std::vector<int> overlap_ends_;               // by instruction: the last one that may overlap with it
  std::map<int, int> next_copy_out_;            // by copy to the host
  Ends<Key> deaths_;
  Ends<Workspace> released_;
  Ends<int> closed_;                       // slots: their microbatches
  std::vector<Operand> inputs_, outputs_;  // of the instruction that is made
  ByLane<SharedWorkspaces> shared_{};
  BySpace<ByMemoryClass<int64_t>> live_{};
  BySpace<int64_t> live_total_{}, peak_live_{};
  BySpace<std::vector<MemoryRequest>> requests_;
  ByLane<int> last_on_lane_{};  // the latest instruction so far
};

}  // namespace

void PlanMemory(Program& program, const Emission& emission, const GraphFacts& facts, const Coordinate& coordinate,
                const BySpace<int64_t>& reserved_bytes, MemoryTimeline* course) {
  MemoryPlanner(program, emission, facts, coordinate, reserved_bytes, course).Run();
  FindTouchedBytes(program, emission, facts, coordinate);
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
