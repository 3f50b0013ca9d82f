// The reader of trace_json.cpp's output. Events are read one by one and dropped, since a trace may have millions.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "espalier/timeline/timeline.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/json.hpp"

namespace espalier {
namespace {

using nlohmann::json;

constexpr int kEventDepth = 2;  // depth of the objects in "traceEvents"

class TraceReader {
 public:
  TraceReader(std::string path, const std::function<std::shared_ptr<const Program>(int rank)>& program_of)
      : path_(std::move(path)), program_of_(program_of) {}

  Timeline Read(const std::string& text) {
    try {
      ReadTitle(Parse(text));
    } catch (const json::exception& error) {
      throw UserError(ExitStatus::kData, fmt::format("{}: is damaged: {}", path_, error.what()));
    } catch (const std::invalid_argument& error) {
      throw UserError(ExitStatus::kData, fmt::format("{}: is damaged: {}", path_, error.what()));
    }
    for (auto& [rank, track] : tracks_) timeline_.tracks.push_back(Complete(std::move(track)));
    if (timeline_.tracks.empty()) Refuse("it has no events");
    return std::move(timeline_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& why) const {
    throw UserError(ExitStatus::kData, fmt::format("{}: is not a trace of this program: {}", path_, why));
  }

  /// Parses everything but the events, which are added one by one.
  json Parse(const std::string& text) {
    const auto keep = [this](int depth, const json& object) {
      if (depth != kEventDepth || !object.contains("ph")) return true;
      Add(object);
      return false;
    };
    return ParseJson(text, {.keep = keep});
  }

  void ReadTitle(const json& whole) {
    const json about = whole.value("otherData", json::object());
    timeline_.title = about.value("title", "");
    timeline_.origin = about.value("origin", "");
    timeline_.step_us = about.value("step_us", 0.0);
  }

  void Add(const json& event) {
    const std::string phase = event.at("ph");
    if (phase == "M" && event.at("name") == "process_name") TrackOf(event.at("pid")).ranks = RanksOf(event.at("args"));
    if (phase == "X" && event.value("cat", "") != "wait") AddSpan(TrackOf(event.at("pid")), event);
  }

  static int RanksOf(const json& process) { return process.value("ranks", 1); }

  Track& TrackOf(int rank) {
    const auto [at, fresh] = tracks_.try_emplace(rank);
    if (!fresh) return at->second;
    at->second.rank = rank;
    at->second.program = program_of_(rank);
    if (at->second.program == nullptr) Refuse(fmt::format("there is no rank {}", rank));
    return at->second;
  }

  void AddSpan(Track& track, const json& event) {
    const json& about = event.at("args");
    const int instruction = about.at("instruction");
    const Instructions& instructions = track.program->instructions;
    if (instruction < 0 || instruction >= std::ssize(instructions))
      Refuse(fmt::format("rank {} has no instruction {}", track.rank, instruction));
    const Op& op = track.program->graph->op(instructions[static_cast<size_t>(instruction)].op);
    if (about.at("op") != fmt::format("{}", op.kind))
      Refuse(fmt::format("instruction {} of rank {} is {} there, and {} here", instruction, track.rank,
                         about.at("op").get<std::string>(), op.kind));
    const double begin_us = event.at("ts"), length_us = event.at("dur");
    track.spans.push_back(
        {instruction, begin_us - about.at("waiting_us").get<double>(), begin_us, begin_us + length_us});
  }

  Track Complete(Track track) const {
    std::vector<bool> there(track.program->instructions.size());
    for (const Span& span : track.spans) there[static_cast<size_t>(span.instruction)] = true;
    const auto missing = std::ranges::find(there, false);
    if (missing != there.end() || track.spans.size() != there.size())
      Refuse(fmt::format("rank {} has {} events for {} instructions", track.rank, track.spans.size(), there.size()));
    std::ranges::sort(track.spans, {}, [](const Span& span) { return std::tuple(span.end_us, span.instruction); });
    return track;
  }

  const std::string path_;
  const std::function<std::shared_ptr<const Program>(int rank)>& program_of_;
  std::map<int, Track> tracks_;  // by rank
  Timeline timeline_;
};

}  // namespace

Timeline ReadTrace(const std::string& text, const std::string& path,
                   const std::function<std::shared_ptr<const Program>(int rank)>& program_of) {
  return TraceReader(path, program_of).Read(text);
}

}  // namespace espalier
