// Order between lanes, from memory alone: a reader of bytes waits for their last writer, a writer for their last writer
// and readers. Order within a lane is program order and needs no wait.
#include <algorithm>
#include <map>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// An access: it is complete when the first `count` instructions of its lane are.
struct Access {
  Lane lane = Lane::kCompute;
  int count = 0;  // 0: none
};

/// The last accesses to a range of bytes.
struct Segment {
  int64_t end = 0;
  Access writer;
  ByLane<int> readers{};
};

class Hazards {
 public:
  /// Splits segments so that [begin, end) is covered exactly, and visits them.
  template <typename Visit>
  void ForEach(int64_t begin, int64_t end, const Visit& visit) {
    if (!HasBytes(begin, end)) return;
    Cut(begin);
    Cut(end);
    auto it = segments_.lower_bound(begin);
    for (int64_t at = begin; at < end;) {
      if (it == segments_.end() || it->first > at) {
        const int64_t stop = it == segments_.end() ? end : std::min(end, it->first);
        it = segments_.emplace_hint(it, at, Segment{stop, {}, {}});
      }
      visit(it->second);
      at = it->second.end;
      ++it;
    }
  }

  /// After a write the whole range has one segment again.
  void Overwrite(int64_t begin, int64_t end, Access writer) {
    if (!HasBytes(begin, end)) return;
    segments_.erase(segments_.lower_bound(begin), segments_.lower_bound(end));
    segments_[begin] = {end, writer, {}};
  }

 private:
  static bool HasBytes(int64_t begin, int64_t end) {
    CHECK(0 <= begin && begin <= end && end <= 2 * kMaxBytes, "an operand from byte {} to byte {}", begin, end);
    return begin < end;
  }
  void Cut(int64_t at) {
    auto it = segments_.upper_bound(at);
    if (it == segments_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Segment tail = it->second;
    it->second.end = at;
    segments_[at] = tail;
  }

  std::map<int64_t, Segment> segments_;
};

class WaitPlanner {
 public:
  explicit WaitPlanner(Program& program) : program_(program) {}

  void Run() {
    for (Instruction& instruction : program_.instructions) {
      needed_.fill(0);
      const Lane lane = instruction.lane;
      for (const Operand& input : instruction.inputs)
        hazards_.ForEach(input.offset, input.offset + input.bytes, [&](Segment& s) { Need(s.writer); });
      // An accumulation also reads its outputs; a write waits for readers and writers anyway.
      for (const Operand& output : instruction.outputs) NeedAll(output);
      NeedAll(instruction.workspace);
      Emit(instruction, lane);
      const Access self{instruction.lane, ++issued_[lane]};
      for (const Operand& input : instruction.inputs)
        hazards_.ForEach(input.offset, input.offset + input.bytes, [&](Segment& s) { s.readers[lane] = self.count; });
      for (const Operand& output : instruction.outputs)
        hazards_.Overwrite(output.offset, output.offset + output.bytes, self);
      hazards_.Overwrite(instruction.workspace.offset, instruction.workspace.offset + instruction.workspace.bytes,
                         self);
    }
  }

 private:
  void Need(const Access& access) { Need(access.lane, access.count); }
  void Need(Lane lane, int count) { needed_[lane] = std::max(needed_[lane], count); }
  void NeedAll(const Operand& operand) {
    hazards_.ForEach(operand.offset, operand.offset + operand.bytes, [&](Segment& s) {
      Need(s.writer);
      for (Lane lane : kLanes) Need(lane, s.readers[lane]);
    });
  }

  /// Skips waits that an earlier instruction of this lane implies.
  void Emit(Instruction& instruction, Lane lane) {
    for (Lane other : kLanes) {
      if (other == lane || needed_[other] <= known_[lane][other]) continue;
      known_[lane][other] = needed_[other];
      instruction.waits.push_back({other, needed_[other]});
    }
  }

  Program& program_;
  Hazards hazards_;
  ByLane<int> needed_{}, issued_{};
  ByLane<ByLane<int>> known_{};
};

}  // namespace

void PlanWaits(Program& program) { WaitPlanner(program).Run(); }

}  // namespace espalier
