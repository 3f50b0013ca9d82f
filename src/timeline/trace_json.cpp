// Chrome's trace event format ("Trace Event Format", Google 2016), as Perfetto reads it. Times are in microseconds with
// three decimals, so in nanoseconds.
#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "timeline/labels.hpp"
#include "timeline/lanes.hpp"
#include "timeline/meetings.hpp"

namespace espalier {
namespace {

/// Nanoseconds as microseconds. Begin and end are rounded in the same way, so that neighbours on a lane never overlap.
struct Time {
  int64_t ns = 0;
};
Time Rounded(double us) { return {std::llround(us * 1e3)}; }

}  // namespace
}  // namespace espalier

template <>
struct fmt::formatter<espalier::Time> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  auto format(espalier::Time time, fmt::format_context& context) const {
    return fmt::format_to(context.out(), "{}.{:03}", time.ns / 1000, time.ns % 1000);
  }
};

namespace espalier {
namespace {

constexpr size_t kBytesPerSpan = 320;  // approximate; most are shorter

/// Lane order from 1: Perfetto takes thread 0 of process 0 for the idle thread of a machine.
int ThreadOf(Lane lane) { return static_cast<int>(lane) + 1; }

class TraceWriter {
 public:
  explicit TraceWriter(const Timeline& timeline) : timeline_(timeline) {
    size_t spans = 0;
    for (const Track& track : timeline.tracks) spans += track.spans.size();
    text_.reserve(1024 + spans * kBytesPerSpan);
  }

  std::string Write() {
    const nlohmann::ordered_json about = {
        {"title", timeline_.title}, {"origin", timeline_.origin}, {"step_us", timeline_.step_us}};
    Append("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[",
           about.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    for (const Track& track : timeline_.tracks) WriteTrack(track);
    WriteArrows();
    text_ += "\n]}\n";
    return std::move(text_);
  }

 private:
  template <typename... Parts>
  void Append(fmt::format_string<Parts...> format, Parts&&... parts) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Parts>(parts)...);
  }
  void NextEvent() { text_ += events_++ == 0 ? "\n" : ",\n"; }

  void WriteTrack(const Track& track) {
    NextEvent();
    Append(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"{}","ranks":{}}}}})", track.rank,
           TrackLabel(track), track.ranks);
    NextEvent();
    Append(R"({{"ph":"M","pid":{},"name":"process_sort_index","args":{{"sort_index":{}}}}})", track.rank, track.rank);
    const ByLane<std::vector<Span>> lanes = SpansByLane(track);
    bytes_.clear();
    for (Lane lane : kLanes) {
      if (!lanes[lane].empty()) WriteThread(track.rank, lane);
      for (const Span& span : lanes[lane]) WriteSpan(track, span);
    }
  }

  void WriteThread(int rank, Lane lane) {
    NextEvent();
    Append(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", rank, ThreadOf(lane),
           Name(lane));
    NextEvent();
    Append(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})", rank,
           ThreadOf(lane), ThreadOf(lane));
  }

  void WriteSpan(const Track& track, const Span& span) {
    const Instruction& instruction = InstructionOf(track, span);
    const Op& op = track.program->graph->op(instruction.op);
    const Time ready = Rounded(span.ready_us), begin = Rounded(span.begin_us), end = Rounded(span.end_us);
    const Time wait{begin.ns - ready.ns}, duration{end.ns - begin.ns};
    if (instruction.lane != Lane::kCompute && wait.ns > 0) {
      NextEvent();
      Append(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":"wait for peers","cat":"wait","cname":"grey",)"
             R"("args":{{"instruction":{}}}}})",
             track.rank, ThreadOf(instruction.lane), ready, wait, span.instruction);
    }
    NextEvent();
    Append(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":"{} layer {} {}","cat":"{}","args":{{)", track.rank,
           ThreadOf(instruction.lane), begin, duration, JobLabel(op, instruction), op.layer, op.kind, Name(op.role));
    Append(R"("instruction":{},"op":"{}","role":"{}",)", span.instruction, op.kind, Name(op.role));
    if (instruction.microbatch >= 0) Append(R"("microbatch":{},)", instruction.microbatch);
    Append(R"("layer":{},"bytes":{},"waiting_us":{}}}}})", op.layer, BytesOf(track, instruction), wait);
  }

  /// The bytes that a kernel reads and writes, that a copy moves, or that a transfer sends, or receives if it is a
  /// recv.
  int64_t BytesOf(const Track& track, const Instruction& instruction) {
    const Op& op = track.program->graph->op(instruction.op);
    if (IsCopyLane(instruction.lane)) return CopiedBytes(*track.program, instruction);
    if (instruction.lane == Lane::kCompute || op.kind == OpKind::kRecv) return OperandBytes(instruction);
    const Mesh& mesh = track.program->mesh;
    if (op.kind == OpKind::kGatherStages)
      return std::ssize(instruction.inputs) * SizeOf(Dtype::kF32) * (mesh.GroupSize(op.Axes()) - 1);
    const auto [it, fresh] = bytes_.try_emplace(instruction.op, 0);
    if (fresh) it->second = WireBytes(*track.program->graph, op, mesh, mesh.CoordinateOf(track.rank));
    return it->second;
  }
  static int64_t OperandBytes(const Instruction& instruction) {
    int64_t bytes = 0;
    for (const Operand& input : instruction.inputs) bytes += input.bytes;
    for (const Operand& output : instruction.outputs) bytes += output.bytes * (instruction.accumulate ? 2 : 1);
    return bytes;
  }

  void WriteArrows() {
    int id = 0;
    for (const Meeting& message : Messages(timeline_.tracks)) {
      WriteArrowEnd(message[0], id, true);
      WriteArrowEnd(message[1], id++, false);
    }
  }

  /// An arrow starts at the begin of the send and ends in the last nanosecond of the recv: an end must be inside its
  /// event.
  void WriteArrowEnd(const SpanAt& at, int id, bool leaves) {
    const Track& track = timeline_.tracks[static_cast<size_t>(at.track)];
    const Span& span = track.spans[static_cast<size_t>(at.span)];
    const Time begin = Rounded(span.begin_us), end = Rounded(span.end_us);
    const Time time{leaves ? begin.ns : std::max(begin.ns, end.ns - 1)};
    NextEvent();
    Append(R"({{"ph":"{}"{},"id":{},"pid":{},"tid":{},"ts":{},"name":"message","cat":"message"}})", leaves ? "s" : "f",
           leaves ? "" : R"(,"bp":"e")", id, track.rank, ThreadOf(InstructionOf(track, span).lane), time);
  }

  const Timeline& timeline_;
  std::string text_;
  size_t events_ = 0;
  std::map<int, int64_t> bytes_;  ///< bytes of the current track, by op
};

}  // namespace

std::string TraceJson(const Timeline& timeline) { return TraceWriter(timeline).Write(); }

}  // namespace espalier
