// Instructions that share what they have in common.
#include <algorithm>
#include <limits>
#include <optional>

#include "espalier/program/instruction.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int kMostMicrobatches = (1 << 23) - 1;
constexpr size_t kMost = std::numeric_limits<uint32_t>::max();

uint16_t Short(size_t count) {
  CHECK(count <= std::numeric_limits<uint16_t>::max(), "an instruction with {} operands", count);
  return static_cast<uint16_t>(count);
}

int& FirstOf(std::vector<int>& first, int key) {
  CHECK(key >= -1, "a value {} or an op {}", key, key);
  const auto at = static_cast<size_t>(key + 1);
  if (at >= first.size()) first.resize(at + 1, -1);
  return first[at];
}

}  // namespace

Instruction Instructions::operator[](size_t i) const {
  const Place& place = places_[i];
  const Work& work = works_[place.work];
  const int microbatch = place.microbatch;
  Instruction instruction = {.op = work.op,
                             .microbatch = microbatch,
                             .lane = work.lane,
                             .accumulate = work.accumulate,
                             .inputs = {*this, work.first, work.inputs, microbatch},
                             .outputs = {*this, work.first + work.inputs, work.outputs, microbatch},
                             .workspace = OperandAt(work.first + work.inputs + work.outputs, microbatch)};
  if (place.waits == 0) return instruction;
  size_t first = first_wait_[i / kBlock];
  for (size_t k = i / kBlock * kBlock; k < i; ++k) first += places_[k].waits;
  instruction.waits = std::span(waits_).subspan(first, place.waits);
  return instruction;
}

Instruction Instructions::at(size_t i) const {
  CHECK(i < size(), "instruction {} of {}", i, size());
  return (*this)[i];
}

void Instructions::Reserve(size_t instructions, int microbatches) {
  places_.reserve(instructions);
  microbatches_ = microbatches;
}

void Instructions::Add(const Instruction& instruction) {
  CHECK(instruction.microbatch >= -1 && instruction.microbatch <= kMostMicrobatches, "microbatch {}",
        instruction.microbatch);
  CHECK(instruction.waits.size() <= std::numeric_limits<uint8_t>::max() && waits_.size() < kMost,
        "an instruction with {} waits in a program of {}", instruction.waits.size(), waits_.size());
  const uint32_t work = WorkOf(instruction);
  if (places_.size() % kBlock == 0) first_wait_.push_back(static_cast<uint32_t>(waits_.size()));
  waits_.insert(waits_.end(), instruction.waits.begin(), instruction.waits.end());
  places_.push_back({work, instruction.microbatch, static_cast<uint32_t>(instruction.waits.size())});
}

void Instructions::MapOffsets(const std::function<int64_t(int value, int64_t offset)>& of) {
  for (Column& column : columns_) {
    if (column.moves.empty()) {
      column.offset = of(column.value, column.offset);
      continue;
    }
    std::optional<int64_t> first;
    bool same = true;
    for (int64_t& offset : column.moves) {
      if (offset < 0) continue;
      offset = of(column.value, offset);
      same = same && offset == first.value_or(offset);
      first = first.value_or(offset);
    }
    if (!same) continue;
    column.offset = first.value_or(0);
    column.moves = {};
  }
}

void Instructions::SetWaits(std::vector<Wait> waits, const std::vector<uint8_t>& counts) {
  CHECK(counts.size() == size() && waits.size() <= kMost, "waits of {} instructions for a program of {}", counts.size(),
        size());
  size_t first = 0;
  for (size_t i = 0; i < size(); ++i) {
    if (i % kBlock == 0) first_wait_[i / kBlock] = static_cast<uint32_t>(first);
    places_[i].waits = counts[i];
    first += counts[i];
  }
  CHECK(first == waits.size(), "{} waits where {} are counted", waits.size(), first);
  waits_ = std::move(waits);
}

/// The column is this value's, or can be: it has that offset in the microbatch, or none yet.
bool Instructions::Takes(Column& column, int microbatch, int64_t offset, int microbatches) {
  if (column.moves.empty()) {
    if (column.offset == offset) {
      column.most = std::max(column.most, microbatch);
      column.of_step |= microbatch < 0;
      return true;
    }
    if (microbatch <= column.most || column.of_step) return false;
    column.moves.reserve(static_cast<size_t>(std::max(microbatches, microbatch + 1)));
    column.moves.assign(static_cast<size_t>(column.most + 1), column.offset);
  }
  if (microbatch < 0) return false;
  const auto at = static_cast<size_t>(microbatch);
  if (at >= column.moves.size()) column.moves.resize(at + 1, -1);
  if (column.moves[at] < 0) column.moves[at] = offset;
  return column.moves[at] == offset;
}

uint32_t Instructions::ColumnOf(int& first, const Operand& operand, int microbatch) {
  for (int c = first; c >= 0; c = columns_[static_cast<size_t>(c)].next)
    if (Takes(columns_[static_cast<size_t>(c)], microbatch, operand.offset, microbatches_))
      return static_cast<uint32_t>(c);
  columns_.push_back(
      {operand.value, /*of_step=*/microbatch < 0, /*most=*/microbatch, operand.offset, /*moves=*/{}, /*next=*/first});
  first = static_cast<int>(columns_.size()) - 1;
  return static_cast<uint32_t>(first);
}

uint32_t Instructions::WorkOf(const Instruction& instruction) {
  made_.clear();
  const auto add = [&](int& first, const Operand& operand) {
    made_.push_back({ColumnOf(first, operand, instruction.microbatch), operand.bytes});
  };
  for (const Operand& input : instruction.inputs) add(FirstOf(columns_of_value_, input.value), input);
  for (const Operand& output : instruction.outputs) add(FirstOf(columns_of_value_, output.value), output);
  add(FirstOf(columns_of_workspace_, instruction.op), instruction.workspace);
  int& first = FirstOf(works_of_op_, instruction.op);
  for (int w = first; w >= 0; w = works_[static_cast<size_t>(w)].next) {
    const Work& work = works_[static_cast<size_t>(w)];
    if (work.lane == instruction.lane && work.accumulate == instruction.accumulate &&
        work.inputs == instruction.inputs.size() && work.outputs == instruction.outputs.size() &&
        std::ranges::equal(made_, std::span(parts_).subspan(work.first, made_.size())))
      return static_cast<uint32_t>(w);
  }
  CHECK(parts_.size() < kMost, "a program with {} operands", parts_.size());
  works_.push_back({.op = instruction.op,
                    .lane = instruction.lane,
                    .accumulate = instruction.accumulate,
                    .inputs = Short(instruction.inputs.size()),
                    .outputs = Short(instruction.outputs.size()),
                    .first = static_cast<uint32_t>(parts_.size()),
                    .next = first});
  parts_.insert(parts_.end(), made_.begin(), made_.end());
  first = static_cast<int>(works_.size()) - 1;
  return static_cast<uint32_t>(first);
}

}  // namespace espalier
