// Offsets by liveness. Persistent buffers are at the bottom of the arena. Above them a scan over the program gives each
// value the smallest hole that fits when it is produced, and frees it after its last use. An op that can work in place
// reuses the buffer of an input that is dead afterwards.
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

class MemoryPlanner {
 public:
  MemoryPlanner(Program& program, const Coordinate& coordinate, const std::vector<int>& job_ends,
                int64_t reserved_bytes)
      : program_(program),
        graph_(*program.graph),
        coordinate_(coordinate),
        job_ends_(job_ends),
        reserved_bytes_(reserved_bytes),
        bytes_(graph_.values.size(), -1),
        workspaces_(graph_.ops.size(), -1) {}

  void Run() {
    PlacePersistent();
    FindOverlapEnds();
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

  const Value& ValueOf(int id) const { return graph_.value(id); }
  Key KeyOf(int value, int microbatch) const {
    return {value, ValueOf(value).frequency == Frequency::kStep ? -1 : microbatch};
  }
  int64_t BytesOf(int value) {
    int64_t& bytes = bytes_[value];
    if (bytes < 0) {
      const Type& type = ValueOf(value).type;
      bytes = Volume(LocalShape(type, program_.mesh, coordinate_)) * SizeOf(type.dtype);
      CHECK(bytes >= 0 && bytes <= kMaxBytes, "{} has {} bytes", ValueOf(value).name, bytes);
    }
    return bytes;
  }
  int64_t WorkspaceOf(int op) {
    int64_t& bytes = workspaces_[op];
    const Op& o = graph_.op(op);
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
    const Op& maker = graph_.op(v.producer);
    if (maker.role == Role::kP || GathersParameters(maker)) return MemoryClass::kParameters;
    return maker.role == Role::kS ? MemoryClass::kGradients : MemoryClass::kActivations;
  }

  /// A reshard per microbatch of step values.
  bool GathersParameters(const Op& op) const {
    return IsReshard(op.kind) && op.frequency() == Frequency::kMicrobatch && !op.inputs.empty() &&
           ValueOf(op.inputs[0]).frequency == Frequency::kStep;
  }

  bool LivesHere(const Value& v) const {
    return v.chunk == kAllChunks || program_.stage_of_chunk[v.chunk] == program_.stage;
  }
  bool IsPersistent(int id) const {
    return ValueOf(id).kind != ValueKind::kActivation ||
           std::find(graph_.results.begin(), graph_.results.end(), id) != graph_.results.end();
  }

  /// States first, so that all programs of a deck have them at the same offsets.
  void PlacePersistent() {
    AddAllPersistent(true);
    base_ = std::max(base_, reserved_bytes_);
    AddAllPersistent(false);
    peak_live_ = live_total_;
    program_.peak_by_class = live_;
  }
  void AddAllPersistent(bool states) {
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      const Value& v = graph_.value(id);
      if (!LivesHere(v) || !IsPersistent(static_cast<int>(id)) || (v.kind == ValueKind::kState) != states) continue;
      const bool copies = v.frequency == Frequency::kMicrobatch;
      for (int k = 0; k < (copies ? program_.microbatches : 1); ++k)
        AddPersistent(static_cast<int>(id), copies ? k : -1);
    }
  }
  void AddPersistent(int id, int microbatch) {
    const Operand place{id, base_, BytesOf(id)};
    CHECK(base_ <= kMaxBytes, "{} is at byte {}", ValueOf(id).name, base_);
    program_.persistent.push_back({id, microbatch, place, ClassOf(id)});
    buffers_[{id, microbatch}] = {place, ClassOf(id)};
    Count(ClassOf(id), place.bytes, +1);
    base_ += Aligned(place.bytes);
  }

  /// A value is dead after the last instruction that reads it. Two exceptions: the input of a send is live for one more
  /// job, so that the stage need not wait for the receiver; buffers of a ring shift stay live until the first use of
  /// the received block.
  void FindLastUses() {
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      const bool ring = graph_.op(instruction.op).kind == OpKind::kRingShift;
      const int end = instruction.lane == Lane::kPpSend ? EndOfNextJob(static_cast<int>(i))
                      : ring                            ? overlap_ends_[i]
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

  /// The last instruction that may run concurrently with a collective of a microbatch: the one before the first reader
  /// of its outputs. Any other instruction has ended when the next one begins.
  void FindOverlapEnds() {
    const auto n = static_cast<int>(program_.instructions.size());
    overlap_ends_.resize(n);
    ByKey<int> next_reader;
    for (int i = n - 1; i >= 0; --i) {
      const Instruction& instruction = program_.instructions[i];
      int first = n;
      for (const Operand& output : instruction.outputs)
        if (const auto it = next_reader.find(KeyOf(output.value, instruction.microbatch)); it != next_reader.end())
          first = std::min(first, it->second);
      const bool overlaps = HasCollectives(instruction.lane) && instruction.microbatch >= 0 && first < n;
      overlap_ends_[i] = overlaps ? first - 1 : i;
      for (const Operand& input : instruction.inputs) next_reader[KeyOf(input.value, instruction.microbatch)] = i;
    }
  }
  static bool HasCollectives(Lane lane) { return lane == Lane::kTp || lane == Lane::kCp || lane == Lane::kDp; }

  void Place(Instruction& instruction, int i, Heap& heap, std::vector<std::vector<Key>>& deaths) {
    const Op& op = graph_.op(instruction.op);
    for (Operand& input : instruction.inputs) input = Lookup(input.value, instruction.microbatch);
    for (size_t o = 0; o < instruction.outputs.size(); ++o) {
      const Key key = KeyOf(instruction.outputs[o].value, instruction.microbatch);
      if (buffers_.count(key) == 0) {
        if (!ReuseInput(op, instruction, i, o, key)) Allocate(key, heap);
        deaths[last_use_.at(key)].push_back(key);
      }
      instruction.outputs[o] = buffers_.at(key).place;
    }
    if (const int64_t workspace = WorkspaceOf(instruction.op); workspace > 0) {
      instruction.workspace = {-1, heap.Take(workspace), workspace};
      const Buffer buffer{instruction.workspace,
                          instruction.lane == Lane::kCompute ? MemoryClass::kWorkspace : MemoryClass::kCommunication};
      Count(buffer.memory_class, workspace, +1);
      released_[overlap_ends_[i]].push_back(buffer);
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
  bool ReuseInput(const Op& op, const Instruction& instruction, int i, size_t output, const Key& key) {
    const std::vector<InPlace>& pairs = Define(op.kind).in_place;
    return std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& pair) {
      return pair.output == static_cast<int>(output) && pair.input < static_cast<int>(op.inputs.size()) &&
             ReuseBufferOf(op.inputs[pair.input], op, instruction, i, key);
    });
  }
  bool ReuseBufferOf(int value, const Op& op, const Instruction& instruction, int i, const Key& key) {
    const Key donor = KeyOf(value, instruction.microbatch);
    if (IsPersistent(value) || last_use_.at(donor) != i || BytesOf(value) != BytesOf(key.first)) return false;
    if (std::count_if(op.inputs.begin(), op.inputs.end(), [&](int input) { return input == value; }) > 1) return false;
    Buffer buffer = buffers_.at(donor);
    buffer.place.value = key.first;
    buffers_[key] = buffer;
    reused_[donor] = true;
    return true;
  }

  void Free(int i, Heap& heap, const std::vector<std::vector<Key>>& deaths) {
    for (const Buffer& workspace : released_[i]) {
      heap.Give(workspace.place.offset, workspace.place.bytes);
      Count(workspace.memory_class, workspace.place.bytes, -1);
    }
    for (const Key& key : deaths[i]) {
      const Buffer buffer = buffers_.at(key);
      buffers_.erase(key);
      if (reused_.erase(key) > 0) continue;
      heap.Give(buffer.place.offset, buffer.place.bytes);
      Count(buffer.memory_class, buffer.place.bytes, -1);
    }
  }

  void Count(MemoryClass memory_class, int64_t bytes, int sign) {
    live_[memory_class] += sign * Aligned(bytes);
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
  std::vector<int64_t> bytes_;       // by value; -1: not computed yet
  std::vector<int64_t> workspaces_;  // by op; -1: not computed yet
  std::unordered_map<std::string, int64_t> transfers_;
  int64_t base_ = 0;
  ByKey<Buffer> buffers_;
  ByKey<int> last_use_;
  ByKey<bool> reused_;
  std::vector<int> overlap_ends_;              // by instruction: the last one that may overlap with it
  std::vector<std::vector<Buffer>> released_;  // by instruction: workspaces that are freed after it
  ByMemoryClass<int64_t> live_{};
  int64_t live_total_ = 0, peak_live_ = 0, peak_seen_ = 0;
};

}  // namespace

void PlanMemory(Program& program, const Coordinate& coordinate, const std::vector<int>& job_ends,
                int64_t reserved_bytes) {
  MemoryPlanner(program, coordinate, job_ends, reserved_bytes).Run();
}

int64_t StateBytes(const Program& program) {
  int64_t end = 0;
  for (const PersistentBuffer& buffer : program.persistent)
    if (program.graph->value(buffer.value).kind == ValueKind::kState)
      end = std::max(end, Aligned(buffer.place.offset + buffer.place.bytes));
  return end;
}

}  // namespace espalier
