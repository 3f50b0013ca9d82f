// Offsets by liveness. Persistent buffers lie at the bottom of the arena; above them a scan over the program gives each
// value the smallest hole that fits when it is made and takes it back after its last use. An op that may work in place
// takes over the memory of an input that nobody reads later.
#include <algorithm>
#include <unordered_map>

#include "espalier/device_memory/workspace.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "heap.hpp"
#include "transfer_text.hpp"

namespace espalier {
namespace {

class Planner {
 public:
  Planner(Program& program, const Coordinate& coordinate, const std::vector<int>& job_ends, int64_t reserved_bytes)
      : program_(program),
        graph_(*program.graph),
        coordinate_(coordinate),
        job_ends_(job_ends),
        reserved_bytes_(reserved_bytes),
        bytes_(graph_.values.size(), -1),
        workspaces_(graph_.ops.size(), -1) {}

  void Run() {
    PlacePersistent();
    FindTravelEnds();
    FindLastUses();
    Heap heap(base_);
    std::vector<std::vector<Key>> deaths(program_.instructions.size() + 1);
    released_.resize(program_.instructions.size());
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      Place(program_.instructions[i], static_cast<int>(i), heap, deaths);
      NotePeak(heap);
      Free(static_cast<int>(i), heap, deaths);
    }
    program_.arena_bytes = std::max(base_, heap.peak());
  }

 private:
  using Key = std::pair<int, int>;  // value, microbatch (-1: step)
  struct Hash {
    size_t operator()(const Key& key) const { return std::hash<int64_t>{}(int64_t{key.first} << 32 ^ key.second); }
  };
  template <typename T>
  using ByKey = std::unordered_map<Key, T, Hash>;
  struct Buffer {
    Operand place;
    MemoryClass memory_class;
  };

  const Value& ValueOf(int id) const { return graph_.values[static_cast<size_t>(id)]; }
  Key KeyOf(int value, int microbatch) const {
    return {value, ValueOf(value).frequency == Frequency::kStep ? -1 : microbatch};
  }
  int64_t BytesOf(int value) {
    int64_t& bytes = bytes_[static_cast<size_t>(value)];
    if (bytes < 0) {
      const Type& type = ValueOf(value).type;
      bytes = Volume(LocalShape(type, program_.mesh, coordinate_)) * SizeOf(type.dtype);
      CHECK(bytes >= 0 && bytes <= kMostBytes, "{} has {} bytes", ValueOf(value).name, bytes);
    }
    return bytes;
  }
  int64_t WorkspaceOf(int op) {
    int64_t& bytes = workspaces_[static_cast<size_t>(op)];
    const Op& o = graph_.ops[static_cast<size_t>(op)];
    if (bytes < 0) bytes = IsCommunication(o.kind) ? CommunicationWorkspaceOf(o) : KernelWorkspaceOf(o);
    return bytes;
  }
  int64_t CommunicationWorkspaceOf(const Op& op) {
    const auto [it, fresh] = transfers_.try_emplace(TransferText(graph_, op), 0);
    if (fresh) it->second = CommWorkspaceBytes(graph_, op, program_.mesh, coordinate_);
    return it->second;
  }
  int64_t KernelWorkspaceOf(const Op& op) const {
    const WorkspaceFormula formula = CudaWorkspaceFormula(op.kind);
    if (program_.device != DeviceKind::kCuda || formula == nullptr) return 0;
    return formula(LocalOpOf(graph_, op, program_.mesh, coordinate_));
  }

  MemoryClass ClassOf(int value) const {
    const Value& v = ValueOf(value);
    if (v.kind == ValueKind::kState)
      return v.name.starts_with("parameters/") ? MemoryClass::kParameters : MemoryClass::kOptimizer;
    if (v.kind == ValueKind::kAccumulator || v.name.starts_with("gradients/")) return MemoryClass::kGradients;
    if (v.producer < 0) return MemoryClass::kActivations;
    const Op& maker = graph_.ops[static_cast<size_t>(v.producer)];
    if (maker.role == Role::kP || GathersParameters(maker)) return MemoryClass::kParameters;
    return maker.role == Role::kS ? MemoryClass::kGradients : MemoryClass::kActivations;
  }

  /// A microbatch's reshard of step values.
  bool GathersParameters(const Op& op) const {
    return IsReshard(op.kind) && op.frequency() == Frequency::kMicrobatch && !op.inputs.empty() &&
           ValueOf(op.inputs[0]).frequency == Frequency::kStep;
  }

  bool LivesHere(const Value& v) const {
    return v.chunk == kAllChunks || program_.stage_of_chunk[static_cast<size_t>(v.chunk)] == program_.stage;
  }
  bool IsPersistent(int id) const {
    return ValueOf(id).kind != ValueKind::kActivation ||
           std::find(graph_.results.begin(), graph_.results.end(), id) != graph_.results.end();
  }

  /// States first, so that all programs of a deck agree on their places.
  void PlacePersistent() {
    AddAllPersistent(true);
    base_ = std::max(base_, reserved_bytes_);
    AddAllPersistent(false);
    peak_live_ = live_total_;
    program_.peak_by_class = live_;
  }
  void AddAllPersistent(bool states) {
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      const Value& v = graph_.values[id];
      if (!LivesHere(v) || !IsPersistent(static_cast<int>(id)) || (v.kind == ValueKind::kState) != states) continue;
      const bool copies = v.frequency == Frequency::kMicrobatch;
      for (int k = 0; k < (copies ? program_.microbatches : 1); ++k)
        AddPersistent(static_cast<int>(id), copies ? k : -1);
    }
  }
  void AddPersistent(int id, int microbatch) {
    const Operand place{id, base_, BytesOf(id)};
    CHECK(base_ <= kMostBytes, "{} lies at byte {}", ValueOf(id).name, base_);
    program_.persistent.push_back({id, microbatch, place, ClassOf(id)});
    buffers_[{id, microbatch}] = {place, ClassOf(id)};
    Count(ClassOf(id), place.bytes, +1);
    base_ += Aligned(place.bytes);
  }

  /// A value dies with the last instruction that reads it. What a send reads lives one job longer, so that the stage
  /// does not stand still for the receiver; what travels in a ring, while kernels run on, until the first reader of
  /// what comes.
  void FindLastUses() {
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      const bool ring = graph_.ops[static_cast<size_t>(instruction.op)].kind == "ring_shift";
      const int end = instruction.lane == Lane::kPpSend ? EndOfNextJob(static_cast<int>(i))
                      : ring                            ? travel_ends_[i]
                                                        : static_cast<int>(i);
      for (const std::vector<Operand>* operands : {&instruction.inputs, &instruction.outputs})
        for (const Operand& operand : *operands) {
          int& last = last_use_[KeyOf(operand.value, instruction.microbatch)];
          last = std::max(last, end);
        }
    }
  }
  int EndOfNextJob(int i) const {
    auto job = std::upper_bound(job_ends_.begin(), job_ends_.end(), i);
    if (job != job_ends_.end() && std::next(job) != job_ends_.end()) ++job;
    return (job == job_ends_.end() ? static_cast<int>(program_.instructions.size()) : *job) - 1;
  }

  /// The last instruction that runs beside a microbatch's collective: the one before the first that reads what it
  /// brings. Any other instruction is over when the next begins.
  void FindTravelEnds() {
    const auto n = static_cast<int>(program_.instructions.size());
    travel_ends_.resize(static_cast<size_t>(n));
    ByKey<int> next_reader;
    for (int i = n - 1; i >= 0; --i) {
      const Instruction& instruction = program_.instructions[static_cast<size_t>(i)];
      int first = n;
      for (const Operand& output : instruction.outputs)
        if (const auto it = next_reader.find(KeyOf(output.value, instruction.microbatch)); it != next_reader.end())
          first = std::min(first, it->second);
      const bool travels = IsCollective(instruction.lane) && instruction.microbatch >= 0 && first < n;
      travel_ends_[static_cast<size_t>(i)] = travels ? first - 1 : i;
      for (const Operand& input : instruction.inputs) next_reader[KeyOf(input.value, instruction.microbatch)] = i;
    }
  }
  static bool IsCollective(Lane lane) { return lane == Lane::kTp || lane == Lane::kCp || lane == Lane::kDp; }

  void Place(Instruction& instruction, int i, Heap& heap, std::vector<std::vector<Key>>& deaths) {
    const Op& op = graph_.ops[static_cast<size_t>(instruction.op)];
    for (Operand& input : instruction.inputs) input = Lookup(input.value, instruction.microbatch);
    for (size_t o = 0; o < instruction.outputs.size(); ++o) {
      const Key key = KeyOf(instruction.outputs[o].value, instruction.microbatch);
      if (buffers_.count(key) == 0) {
        if (!TakeOver(op, instruction, i, o, key)) Allocate(key, heap);
        deaths[static_cast<size_t>(last_use_.at(key))].push_back(key);
      }
      instruction.outputs[o] = buffers_.at(key).place;
    }
    if (const int64_t workspace = WorkspaceOf(instruction.op); workspace > 0) {
      instruction.workspace = {-1, heap.Take(workspace), workspace};
      const Buffer buffer{instruction.workspace,
                          instruction.lane == Lane::kCompute ? MemoryClass::kWorkspace : MemoryClass::kCommunication};
      Count(buffer.memory_class, workspace, +1);
      released_[static_cast<size_t>(travel_ends_[static_cast<size_t>(i)])].push_back(buffer);
    }
  }
  Operand Lookup(int value, int microbatch) const {
    const auto it = buffers_.find(KeyOf(value, microbatch));
    CHECK(it != buffers_.end(), "{} (microbatch {}) is read before it is made on stage {}", ValueOf(value).name,
          microbatch, program_.stage);
    return it->second.place;
  }
  void Allocate(const Key& key, Heap& heap) {
    const int64_t bytes = BytesOf(key.first);
    buffers_[key] = {{key.first, heap.Take(bytes), bytes}, ClassOf(key.first)};
    Count(ClassOf(key.first), bytes, +1);
  }
  bool TakeOver(const Op& op, const Instruction& instruction, int i, size_t output, const Key& key) {
    const std::vector<InPlace>& pairs = Define(op.kind).in_place;
    return std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& pair) {
      return pair.output == static_cast<int>(output) && pair.input < static_cast<int>(op.inputs.size()) &&
             TakeOverFrom(op.inputs[static_cast<size_t>(pair.input)], op, instruction, i, key);
    });
  }
  bool TakeOverFrom(int value, const Op& op, const Instruction& instruction, int i, const Key& key) {
    const Key donor = KeyOf(value, instruction.microbatch);
    if (IsPersistent(value) || last_use_.at(donor) != i || BytesOf(value) != BytesOf(key.first)) return false;
    if (std::count_if(op.inputs.begin(), op.inputs.end(), [&](int input) { return input == value; }) > 1) return false;
    Buffer buffer = buffers_.at(donor);
    buffer.place.value = key.first;
    buffers_[key] = buffer;
    taken_over_[donor] = true;
    return true;
  }

  void Free(int i, Heap& heap, const std::vector<std::vector<Key>>& deaths) {
    for (const Buffer& workspace : released_[static_cast<size_t>(i)]) {
      heap.Give(workspace.place.offset, workspace.place.bytes);
      Count(workspace.memory_class, workspace.place.bytes, -1);
    }
    for (const Key& key : deaths[static_cast<size_t>(i)]) {
      const Buffer buffer = buffers_.at(key);
      buffers_.erase(key);
      if (taken_over_.erase(key) > 0) continue;
      heap.Give(buffer.place.offset, buffer.place.bytes);
      Count(buffer.memory_class, buffer.place.bytes, -1);
    }
  }

  void Count(MemoryClass memory_class, int64_t bytes, int sign) {
    live_[static_cast<size_t>(memory_class)] += sign * Aligned(bytes);
    live_total_ += sign * Aligned(bytes);
  }
  void NotePeak(const Heap& heap) {
    if (heap.peak() <= peak_seen_ && live_total_ <= peak_live_) return;
    peak_seen_ = std::max(peak_seen_, heap.peak());
    peak_live_ = live_total_;
    program_.peak_by_class = live_;
  }

  Program& program_;
  const Graph& graph_;
  const Coordinate coordinate_;
  const std::vector<int>& job_ends_;
  const int64_t reserved_bytes_;
  std::vector<int64_t> bytes_;       // by value; -1: not yet asked
  std::vector<int64_t> workspaces_;  // by op; -1: not yet asked
  std::unordered_map<std::string, int64_t> transfers_;
  int64_t base_ = 0;
  ByKey<Buffer> buffers_;
  ByKey<int> last_use_;
  ByKey<bool> taken_over_;
  std::vector<int> travel_ends_;               // by instruction: the last one that runs beside it
  std::vector<std::vector<Buffer>> released_;  // by instruction: workspaces that end with it
  std::array<int64_t, kMemoryClassCount> live_{};
  int64_t live_total_ = 0, peak_live_ = 0, peak_seen_ = 0;
};

}  // namespace

void PlanMemory(Program& program, const Coordinate& coordinate, const std::vector<int>& job_ends,
                int64_t reserved_bytes) {
  Planner(program, coordinate, job_ends, reserved_bytes).Run();
}

int64_t StateBytes(const Program& program) {
  int64_t end = 0;
  for (const PersistentBuffer& buffer : program.persistent)
    if (program.graph->values[static_cast<size_t>(buffer.value)].kind == ValueKind::kState)
      end = std::max(end, Aligned(buffer.place.offset + buffer.place.bytes));
  return end;
}

}  // namespace espalier
