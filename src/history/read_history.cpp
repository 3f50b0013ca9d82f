#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <istream>
#include <map>
#include <utility>

#include "espalier/history/run_history.hpp"

namespace espalier {
namespace {

using nlohmann::json;

/// Of a line: what it must have; "" if it has that.
std::string WhyUnread(const json& line) {
  if (line.is_discarded()) return "is no JSON";
  if (!line.is_object()) return "is no object";
  const std::string event = TextOf(line, "event");
  if (event.empty() && (line.contains("event") || !IntegerOf(line, "step"))) return "is neither a step nor an event";
  if (event == "start" && !IntegerOf(line, "first_step")) return "is a start without first_step";
  if (event == "rollback" && !IntegerOf(line, "to")) return "is a rollback without the step that it goes back to";
  return "";
}

class Reader {
 public:
  void Read(const std::string& text, bool complete) {
    ++number_;
    if (text.empty()) return;
    json line = json::parse(text, nullptr, false);
    if (std::string why = WhyUnread(line); !why.empty()) {
      history_.unread.push_back({number_, complete ? why : "is not complete: the run writes it, or was killed"});
      return;
    }
    ++read_;
    NoteTime(NumberOf(line, "time"));
    NoteNotFinite(line);
    if (line.contains("event"))
      AddEvent(std::move(line));
    else
      AddStep(line);
  }

  int64_t read() const { return read_; }

  RunHistory Done() {
    std::vector<size_t> counting;
    for (const auto& [step, row] : counting_) counting.push_back(row);
    history_.steps = rows_.Select(counting);
    history_.given_up = rows_.Select(given_up_);
    history_.first_time = first_time_;
    history_.last_time = last_time_;
    return std::move(history_);
  }

 private:
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
  }

  RunHistory history_;
  StepColumns rows_;                    // all
  std::map<int64_t, size_t> counting_;  // by step: the row that counts
  std::vector<size_t> given_up_;
  int64_t number_ = 0, read_ = 0;
  bool started_ = false;
  double first_time_ = std::nan(""), last_time_ = std::nan("");
};

}  // namespace

std::string MetricsFile(const std::string& folder) {
  return folder + (folder.ends_with('/') ? "" : "/") + "metrics.jsonl";
}

RunHistory ReadHistory(std::istream& file, const std::string& path) {
  Reader reader;
  for (std::string line; std::getline(file, line);) reader.Read(line, !file.eof());
  if (file.bad()) throw UserError(ExitStatus::kData, fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  const int64_t read = reader.read();
  RunHistory history = reader.Done();
  if (read > 0) return history;
  if (history.unread.empty())
    throw UserError(ExitStatus::kData, fmt::format("{}: is empty: the run has not begun yet", path));
  throw UserError(ExitStatus::kData,
                  fmt::format("{}: is no metrics file, or is damaged: none of its {} lines can be read; line {} {}",
                              path, history.unread.size(), history.unread[0].line, history.unread[0].why));
}

RunHistory ReadHistory(const std::string& folder) {
  const std::string path = MetricsFile(folder);
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw UserError(ExitStatus::kData, fmt::format("{}: cannot be opened: {} (give the folder of a run, its run.dir)",
                                                   path, std::strerror(errno)));
  RunHistory history = ReadHistory(file, path);
  history.folder = folder;
  return history;
}

}  // namespace espalier
