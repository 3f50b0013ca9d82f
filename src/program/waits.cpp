// Order between lanes, from memory alone, in both arenas: a reader of bytes waits for their last writer, a writer for
// their last writer and readers. Order within a lane is program order and needs no wait.
#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// An access: it is complete when the first `count` instructions of its lane are.
struct Access {
  Lane lane = Lane::kCompute;
  int count = 0;  // 0: none
};

/// The last accesses to the bytes [begin, end).
struct Segment {
  int64_t begin = 0, end = 0;
  Access writer;
  ByLane<int> readers{};
};

/// The segments of the arena. Most operands are exactly one segment, which is then found without a search.
class Hazards {
 public:
  /// Visits all segments that [begin, end) touches.
  template <typename Visit>
  void ForEachTouched(int64_t begin, int64_t end, const Visit& visit) {
    if (!HasBytes(begin, end)) return;
    if (const Segment* exact = Exact(begin, end)) return visit(*exact);
    auto it = segments_.upper_bound(begin);
    if (it != segments_.begin() && std::prev(it)->second->end > begin) --it;
    for (; it != segments_.end() && it->first < end; ++it) visit(*it->second);
  }

  /// Splits segments so that [begin, end) is covered exactly, and visits them.
  template <typename Visit>
  void ForEach(int64_t begin, int64_t end, const Visit& visit) {
    if (!HasBytes(begin, end)) return;
    if (Segment* exact = Exact(begin, end)) return visit(*exact);
    Cut(begin);
    Cut(end);
    auto it = segments_.lower_bound(begin);
    for (int64_t at = begin; at < end;) {
      if (it == segments_.end() || it->first > at) {
        const int64_t stop = it == segments_.end() ? end : std::min(end, it->first);
        it = segments_.emplace_hint(it, at, New({at, stop, {}, {}}));
      }
      visit(*it->second);
      at = it->second->end;
      ++it;
    }
  }

  /// After a write the whole range has one segment again.
  void Overwrite(int64_t begin, int64_t end, Access writer) {
    if (!HasBytes(begin, end)) return;
    if (Segment* exact = Exact(begin, end)) {
      *exact = {begin, end, writer, {}};
      return;
    }
    Cut(begin);
    Cut(end);
    auto it = segments_.lower_bound(begin);
    if (it == segments_.end() || it->first > begin) it = segments_.emplace_hint(it, begin, New({}));
    *it->second = {begin, end, writer, {}};
    Remember(it->second);
    for (++it; it != segments_.end() && it->first < end; it = segments_.erase(it)) Delete(it->second);
  }

 private:
  static constexpr size_t kRemembered = 4096;

  static bool HasBytes(int64_t begin, int64_t end) {
    CHECK(0 <= begin && begin <= end && end <= 2 * kMaxBytes, "an operand from byte {} to byte {}", begin, end);
    return begin < end;
  }

  /// The segment [begin, end), or nullptr.
  Segment* Exact(int64_t begin, int64_t end) {
    Segment* known = remembered_[PlaceOf(begin)];
    if (known != nullptr && known->begin == begin && known->end == end) return known;
    const auto it = segments_.find(begin);
    if (it == segments_.end() || it->second->end != end) return nullptr;
    Remember(it->second);
    return it->second;
  }
  /// Offsets are multiples of kAlignment; the constant is 2^64 divided by the golden ratio (Knuth, volume 3, 6.4).
  static size_t PlaceOf(int64_t begin) {
    return static_cast<uint64_t>(begin) * 0x9e3779b97f4a7c15u >> 52 & (kRemembered - 1);
  }
  void Remember(Segment* segment) { remembered_[PlaceOf(segment->begin)] = segment; }

  void Cut(int64_t at) {
    auto it = segments_.upper_bound(at);
    if (it == segments_.begin()) return;
    Segment& segment = *std::prev(it)->second;
    if (segment.begin == at || segment.end <= at) return;
    Segment tail = segment;
    tail.begin = at;
    segment.end = at;
    segments_.emplace_hint(it, at, New(tail));
  }

  Segment* New(const Segment& segment) {
    if (free_.empty()) return &pool_.emplace_back(segment);
    Segment* reused = free_.back();
    free_.pop_back();
    *reused = segment;
    return reused;
  }
  void Delete(Segment* segment) {
    segment->begin = segment->end = -1;
    free_.push_back(segment);
  }

  std::map<int64_t, Segment*> segments_;  // by begin
  std::deque<Segment> pool_;
  std::vector<Segment*> free_;
  std::vector<Segment*> remembered_ = std::vector<Segment*>(kRemembered, nullptr);  // by a hash of begin
};

class WaitPlanner {
 public:
  explicit WaitPlanner(Program& program) : program_(program) {}

  void Run() {
    counts_.reserve(program_.instructions.size());
    for (const Instruction& instruction : program_.instructions) {
      needed_.fill(0);
      const Lane lane = instruction.lane;
      const auto touched = program_.touched.find(instruction.op);
      const TouchedBytes* part = touched == program_.touched.end() ? nullptr : &touched->second;
      FindBytes(instruction.inputs, part ? &part->inputs : nullptr, reads_);
      FindBytes(instruction.outputs, part ? &part->outputs : nullptr, writes_);
      for (const auto& [hazards, begin, end] : reads_)
        hazards->ForEachTouched(begin, end, [&](const Segment& s) { Need(s.writer); });
      // An accumulation also reads its outputs; a write waits for readers and writers anyway.
      for (const auto& [hazards, begin, end] : writes_) NeedAll(*hazards, begin, end);
      const int64_t work = instruction.workspace.offset, work_end = work + instruction.workspace.bytes;
      Hazards& device = hazards_[Space::kDevice];
      NeedAll(device, work, work_end);
      const size_t before = waits_.size();
      Emit(lane);
      counts_.push_back(static_cast<uint8_t>(waits_.size() - before));
      const Access self{instruction.lane, ++issued_[lane]};
      for (const auto& [hazards, begin, end] : reads_)
        hazards->ForEach(begin, end, [&](Segment& s) { s.readers[lane] = self.count; });
      for (const auto& [hazards, begin, end] : writes_) hazards->Overwrite(begin, end, self);
      device.Overwrite(work, work_end, self);
    }
    program_.instructions.SetWaits(std::move(waits_), counts_);
  }

 private:
  void Need(const Access& access) { Need(access.lane, access.count); }
  void Need(Lane lane, int count) { needed_[lane] = std::max(needed_[lane], count); }
  /// Bytes of an arena.
  struct Bytes {
    Hazards* hazards;
    int64_t begin, end;
  };
  /// The bytes that an instruction touches: those in `parts`, or all.
  void FindBytes(const OperandList& operands, const std::vector<std::vector<ByteRange>>* parts,
                 std::vector<Bytes>& found) {
    found.clear();
    for (size_t i = 0; i < operands.size(); ++i) {
      const Operand operand = operands[i];
      Hazards* hazards = &hazards_[program_.SpaceOf(operand)];
      const int64_t at = operand.offset;
      if (parts == nullptr) found.push_back({hazards, at, at + operand.bytes});
      if (parts != nullptr)
        for (const ByteRange& range : (*parts)[i])
          found.push_back({hazards, at + range.offset, at + range.offset + range.bytes});
    }
  }
  void NeedAll(Hazards& hazards, int64_t begin, int64_t end) {
    hazards.ForEachTouched(begin, end, [&](const Segment& s) {
      Need(s.writer);
      for (Lane lane : kLanes) Need(lane, s.readers[lane]);
    });
  }

  /// Skips waits that an earlier instruction of this lane implies.
  void Emit(Lane lane) {
    for (Lane other : kLanes) {
      if (other == lane || needed_[other] <= known_[lane][other]) continue;
      known_[lane][other] = needed_[other];
      waits_.push_back({other, needed_[other]});
    }
  }

  Program& program_;
  BySpace<Hazards> hazards_;
  ByLane<int> needed_{}, issued_{};
  ByLane<ByLane<int>> known_{};
  std::vector<Bytes> reads_, writes_;  // of the instruction
  std::vector<Wait> waits_;            // of all instructions
  std::vector<uint8_t> counts_;        // by instruction: waits
};

}  // namespace

void PlanWaits(Program& program) { WaitPlanner(program).Run(); }

}  // namespace espalier
