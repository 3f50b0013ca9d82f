#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

#include "espalier/history/run_history.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

using nlohmann::json;

/// No valid number of a run is as large: sums, squares and lengths of axes stay finite.
constexpr double kHuge = 1e100;

bool IsHuge(const json& value) { return value.is_number() && std::abs(value.get<double>()) > kHuge; }

/// Whether a field of the line, or of an object in it, is huge.
bool HasHuge(const json& line) {
  return std::ranges::any_of(line, [](const json& value) {
    return IsHuge(value) || (value.is_object() && std::ranges::any_of(value, IsHuge));
  });
}

/// Why a line cannot be read; "" if it can.
std::string WhyUnread(const json& line) {
  if (line.is_discarded()) return "is no JSON";
  if (!line.is_object()) return "is no object";
  if (HasHuge(line)) return fmt::format("has a number beyond {}", kHuge);
  const std::string event = TextOf(line, "event");
  if (event.empty() && (line.contains("event") || !IntegerOf(line, "step"))) return "is neither a step nor an event";
  if (event == "start" && !IntegerOf(line, "first_step")) return "is a start without first_step";
  if (event == "rollback" && !IntegerOf(line, "to")) return "is a rollback without the step that it goes back to";
  return "";
}

/// Steps with loads that are kept until it is known whether they count.
constexpr size_t kMaxLoads = 16;

/// A list of lists of counts, all of one length; none if it is something else.
std::optional<ExpertLoads> LoadsOf(int64_t step, const json& layers) {
  ExpertLoads loads{step, {}};
  if (!layers.is_array() || layers.empty()) return std::nullopt;
  for (const json& layer : layers) {
    if (!layer.is_array() || layer.empty() || layer.size() != layers[0].size()) return std::nullopt;
    std::vector<double>& counts = loads.by_layer.emplace_back();
    for (const json& count : layer) {
      if (!count.is_number() || IsHuge(count) || count.get<double>() < 0) return std::nullopt;
      counts.push_back(count.get<double>());
    }
  }
  return loads;
}

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  void Read(const InputLines::Line& text) {
    ++number_;
    if (text.too_long) return LeaveOut(fmt::format("has more than {} bytes", kMaxMetricsLine));
    if (text.text.empty()) return;
    json line = json::parse(text.text, nullptr, false);
    if (const std::string why = WhyUnread(line); !why.empty())
      return LeaveOut(text.complete ? why : "is not complete: the run writes it, or was killed");
    ++read_;
    NoteTime(NumberOf(line, "time"));
    NoteNotFinite(line);
    if (line.contains("event")) return AddEvent(std::move(line));
    try {
      AddStep(line);
    } catch (const std::length_error& error) {
      Refuse(fmt::format("has too many steps and fields: line {}: {}", number_, error.what()));
    }
  }

  RunHistory Done() {
    RequireAny();
    std::vector<size_t> counting;
    for (const auto& [step, row] : counting_) counting.push_back(row);
    history_.steps = rows_.Select(counting);
    history_.given_up = rows_.Select(given_up_);
    history_.first_time = first_time_;
    history_.last_time = last_time_;
    if (!loads_.empty()) history_.loads = std::move(loads_.rbegin()->second);
    return std::move(history_);
  }

 private:
  void LeaveOut(const std::string& why) {
    ++history_.unread_lines;
    if (history_.unread.size() < kMaxUnread) history_.unread.push_back({number_, why});
  }

  void RequireAny() const {
    if (read_ > 0) return;
    if (history_.unread.empty()) Refuse("is empty: the run has not begun yet");
    Refuse(fmt::format("is no metrics file, or is damaged: none of its {} lines can be read; line {} {}",
                       history_.unread_lines, history_.unread[0].line, history_.unread[0].why));
  }

  [[noreturn]] void Refuse(const std::string& why) const {
    throw UserError(ExitStatus::kData, fmt::format("{}: {}", path_, why));
  }

  void NoteTime(double time) {
    if (std::isnan(time)) return;
    if (std::isnan(first_time_)) first_time_ = time;
    last_time_ = time;
  }

  /// "note" is "loss is nan, grad_norm is inf".
  void NoteNotFinite(const json& line) {
    const std::string note = TextOf(line, "note");
    for (size_t begin = 0; begin < note.size();) {
      const size_t end = std::min(note.find(", ", begin), note.size());
      const std::string part = note.substr(begin, end - begin);
      if (const size_t is = part.find(" is "); is != part.npos)
        history_.not_finite.push_back({IntegerOf(line, "step").value_or(0), part.substr(0, is), part.substr(is + 4)});
      begin = end + 2;
    }
  }

  void AddEvent(json line) {
    const std::string kind = TextOf(line, "event");
    if (kind == "start")
      Resume(Resumption::Kind::kRestart, *IntegerOf(line, "first_step"));
    else if (kind == "rollback")
      Resume(Resumption::Kind::kRollback, *IntegerOf(line, "to") + 1);
    history_.events.push_back({number_, kind, std::move(line)});
  }

  /// Gives up all rows from `first_step` on. The first start of a run resumes nothing.
  void Resume(Resumption::Kind kind, int64_t first_step) {
    const bool first = std::exchange(started_, true) == false;
    const auto begin = counting_.lower_bound(first_step);
    const auto count = static_cast<int64_t>(std::distance(begin, counting_.end()));
    for (auto row = begin; row != counting_.end(); ++row) given_up_.push_back(row->second);
    counting_.erase(begin, counting_.end());
    loads_.erase(loads_.lower_bound(first_step), loads_.end());
    if (!first) history_.resumptions.push_back({kind, first_step, count});
  }

  void AddStep(const json& line) {
    const int64_t step = *IntegerOf(line, "step");
    const auto found = counting_.find(step);
    const bool validation = line.contains("val_loss");
    if (found != counting_.end() && !validation) given_up_.push_back(found->second);
    if (found == counting_.end() || !validation) counting_[step] = rows_.AddRow(step);
    if (validation)
      rows_.Set(counting_[step], {{"val_loss", line["val_loss"]}});
    else
      rows_.Set(counting_[step], line);
    if (line.contains("experts_loads")) AddLoads(step, line["experts_loads"]);
  }

  void AddLoads(int64_t step, const json& layers) {
    std::optional<ExpertLoads> loads = LoadsOf(step, layers);
    if (!loads) return;
    loads_[step] = std::move(*loads);
    if (loads_.size() > kMaxLoads) loads_.erase(loads_.begin());
  }

  const std::string path_;
  RunHistory history_;
  StepColumns rows_;                    // all
  std::map<int64_t, size_t> counting_;  // by step: the row that counts
  std::map<int64_t, ExpertLoads> loads_;
  std::vector<size_t> given_up_;
  int64_t number_ = 0, read_ = 0;
  bool started_ = false;
  double first_time_ = std::nan(""), last_time_ = std::nan("");
};

}  // namespace

std::string MetricsFile(const std::string& folder) {
  return folder + (folder.ends_with('/') ? "" : "/") + "metrics.jsonl";
}

RunHistory ParseHistory(std::string_view text, const std::string& path) {
  Reader reader(path);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    reader.Read({text.substr(begin, end - begin), end < text.size(), false});
    begin = end + 1;
  }
  return reader.Done();
}

RunHistory ReadHistory(const std::string& folder) {
  const std::string path = MetricsFile(folder);
  InputLines lines(path, {"metrics file", kMaxMetricsBytes, "give the folder of a run, its run.dir"}, kMaxMetricsLine);
  Reader reader(path);
  for (InputLines::Line line; lines.Next(line);) reader.Read(line);
  RunHistory history = reader.Done();
  history.folder = folder;
  return history;
}

}  // namespace espalier
