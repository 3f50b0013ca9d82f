// Runs a program's lanes in random legal orders: a missing wait or an overlap in memory fails the test.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "espalier/program/compile.hpp"

namespace espalier {

/// Runs a program's lanes in a random order that its waits allow, on a memory that records the last writer of each
/// 4-byte word (value and microbatch). A read of any other value is a missing wait or an overlap.
class LaneShuffle {
  using Writer = std::pair<int, int>;  // value and microbatch

 public:
  LaneShuffle(const Program& program, unsigned seed)
      : program_(program),
        random_(seed),
        words_({std::vector<Writer>(static_cast<size_t>(program.arena_bytes / 4 + 1), {-1, -1}),
                std::vector<Writer>(static_cast<size_t>(program.host_bytes / 4 + 1), {-1, -1})}) {
    for (const Instruction& i : program.instructions) lanes_[static_cast<size_t>(i.lane)].push_back(i);
    for (const PersistentBuffer& b : program.persistent) Write(b.place, b.microbatch);
  }

  void Run() {
    for (;;) {
      std::vector<size_t> ready;
      for (size_t l = 0; l < kLaneCount; ++l)
        if (!active_[l] && done_[l] < lanes_[l].size() && Ready(lanes_[l][done_[l]])) ready.push_back(l);
      for (size_t l = 0; l < kLaneCount; ++l)
        if (active_[l]) ready.push_back(l);
      if (ready.empty()) break;
      Step(ready[random_() % ready.size()]);
    }
    for (size_t l = 0; l < kLaneCount; ++l) ASSERT_EQ(done_[l], lanes_[l].size());
  }

 private:
  /// An instruction takes two moves: it starts (its outputs become undefined) and ends (inputs must still be intact).
  void Step(size_t l) {
    const Instruction& i = lanes_[l][done_[l]];
    if (!active_[l]) {
      CheckInputs(i);
      for (const Operand& o : Touched(i, false))
        if (!InPlace(i, o)) Fill(o, {-2, -2});
      Fill(i.workspace, {-3, static_cast<int>(l)});
      active_[l] = true;
      return;
    }
    for (const Operand& input : Touched(i, true))
      if (!Overlaps(i, input)) Expect(input, i.microbatch);
    for (const Operand& o : Touched(i, false)) Write(o, i.microbatch);
    active_[l] = false;
    ++done_[l];
  }
  bool InPlace(const Instruction& i, const Operand& output) const {
    for (const Operand& input : Touched(i, true))
      if (IsSamePlace(input, output) && input.bytes == output.bytes) return true;
    return false;
  }
  bool Overlaps(const Instruction& i, const Operand& input) const {
    for (const Operand& o : Touched(i, false))
      if (IsSamePlace(o, input)) return true;
    return false;
  }
  bool IsSamePlace(const Operand& a, const Operand& b) const {
    return a.offset == b.offset && program_.SpaceOf(a) == program_.SpaceOf(b);
  }
  bool Ready(const Instruction& i) const {
    for (const Wait& w : i.waits)
      if (done_[static_cast<size_t>(w.lane)] < static_cast<size_t>(w.count)) return false;
    return true;
  }
  void CheckInputs(const Instruction& i) {
    for (const Operand& input : Touched(i, true)) Expect(input, i.microbatch);
  }
  /// The bytes that an instruction touches; for a strip, one operand per range.
  std::vector<Operand> Touched(const Instruction& i, bool inputs) const {
    const OperandList& operands = inputs ? i.inputs : i.outputs;
    const auto part = program_.touched.find(i.op);
    if (part == program_.touched.end()) return {operands.begin(), operands.end()};
    std::vector<Operand> touched;
    for (size_t k = 0; k < operands.size(); ++k)
      for (const ByteRange& range : (inputs ? part->second.inputs : part->second.outputs)[k])
        touched.push_back({operands[k].value, operands[k].offset + range.offset, range.bytes});
    return touched;
  }
  std::pair<int, int> Tag(int value, int microbatch) const {
    return {value, program_.graph->values[static_cast<size_t>(value)].frequency == Frequency::kStep ? -1 : microbatch};
  }
  void Fill(const Operand& o, std::pair<int, int> tag) {
    std::vector<Writer>& words = words_[program_.SpaceOf(o)];
    for (int64_t w = o.offset / 4; w < (o.offset + o.bytes) / 4; ++w) words[static_cast<size_t>(w)] = tag;
  }
  void Write(const Operand& o, int microbatch) { Fill(o, Tag(o.value, microbatch)); }
  void Expect(const Operand& o, int microbatch) {
    const auto tag = Tag(o.value, microbatch);
    const std::vector<Writer>& words = words_[program_.SpaceOf(o)];
    for (int64_t w = o.offset / 4; w < (o.offset + o.bytes) / 4; ++w)
      ASSERT_EQ(words[static_cast<size_t>(w)], tag) << program_.graph->values[static_cast<size_t>(o.value)].name;
  }

  const Program& program_;
  std::mt19937 random_;
  BySpace<std::vector<Writer>> words_;
  std::array<std::vector<Instruction>, kLaneCount> lanes_;
  std::array<size_t, kLaneCount> done_{};
  std::array<bool, kLaneCount> active_{};
};

}  // namespace espalier
