#include "espalier/schedule/schedule_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"
#include "espalier/util/split.hpp"
#include "schedule/jobs.hpp"
#include "schedule/replay.hpp"

namespace espalier {
namespace {

constexpr int64_t kMaxFileBytes = 64 << 20;
constexpr size_t kMaxFaults = 10, kMaxShown = 40;  // messages; characters of a cell
constexpr std::string_view kAllowed =
    "allowed: stage, F, B, I or W, microbatch, such as 0F0; (2F1;0B0)OVERLAP_F_B, for different microbatches; nothing "
    "for idle time. Messages and gathers follow from the order: leave them out";
constexpr std::string_view kNeeded =
    "needed: F and B, or F, I and W, of each stage and microbatch once, in the order of microbatches, each after what "
    "it needs";
constexpr std::string_view kBeside = ")OVERLAP_F_B";

/// A cell with an action. Lines and cells count from 1, as editors and spreadsheets do.
struct Cell {
  size_t line, column;
  std::string_view text;
};

/// The number at the beginning of `text`, which is taken off it.
std::optional<int> TakeNumber(std::string_view& text) {
  int number = 0;
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

/// The job of "1F0", "1B0", "1I0" or "1W0"; without parts if it is none.
Job SimpleJob(std::string_view text) {
  const std::optional<int> chunk = TakeNumber(text);
  const char role = text.empty() ? '?' : text[0];
  text.remove_prefix(std::min<size_t>(text.size(), 1));
  const std::optional<int> microbatch = TakeNumber(text);
  if (!chunk || !microbatch || !text.empty()) return {};
  if (role == 'F') return ForwardJob(*chunk, *microbatch);
  if (role == 'B') return BackwardJob(*chunk, *microbatch);
  if (role == 'I') return {{{*chunk, Role::kB, *microbatch}}};
  if (role == 'W') return {{{*chunk, Role::kW, *microbatch}}};
  return {};
}

/// The job of a cell; without parts if it is none.
Job JobOf(std::string_view text) {
  if (!text.starts_with('(') || !text.ends_with(kBeside)) return SimpleJob(text);
  const auto beside = SplitAt(text.substr(1, text.size() - 1 - kBeside.size()), ';');
  if (beside.size() != 2) return {};
  Job job = SimpleJob(beside[0]);
  const Job backward = SimpleJob(beside[1]);
  if (job.parts.size() != 1 || job.parts[0].role != Role::kF || backward.parts.size() != 2) return {};
  if (job.parts[0].microbatch == backward.parts[0].microbatch) return {};
  job.parts.insert(job.parts.end(), backward.parts.begin(), backward.parts.end());
  return job;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& path) : path_(path) {
    std::vector<std::string_view> lines = SplitAt(text, '\n');
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
    if (lines.empty()) Refuse({fmt::format("{}: has no line (needed: one for each stage)", path)});
    for (const std::string_view line : lines) ReadLine(line);
    if (!faults_.empty()) Refuse(std::move(faults_));
    PlaceChunks();
    CheckJobs();
  }

  Schedule Finish() { return std::move(schedule_); }

 private:
  [[noreturn]] static void Refuse(std::vector<std::string> messages) {
    throw UserError(ExitStatus::kDeck, std::move(messages));
  }

  std::string Place(const Cell& cell) const {
    return fmt::format("{}:{}, cell {} ({})", path_, cell.line, cell.column, cell.text.substr(0, kMaxShown));
  }

  void ReadLine(std::string_view line) {
    cells_.emplace_back();
    schedule_.jobs.emplace_back();
    const std::vector<std::string_view> texts = SplitAt(line, ',');
    for (size_t i = 0; i < texts.size(); ++i) {
      if (texts[i].empty()) continue;
      const Cell& cell = cells_.back().emplace_back(Cell{cells_.size(), i + 1, texts[i]});
      schedule_.jobs.back().push_back(JobOf(cell.text));
      if (schedule_.jobs.back().back().parts.empty() && faults_.size() < kMaxFaults)
        faults_.push_back(fmt::format("{}: is no action ({})", Place(cell), kAllowed));
    }
  }

  /// A chunk is on the first line that names it.
  void PlaceChunks() {
    std::map<int, int> stage_of;
    schedule_.kind = ScheduleKind::kFile;
    schedule_.stages = static_cast<int>(schedule_.jobs.size());
    schedule_.microbatches = 0;
    for (int stage = 0; stage < schedule_.stages; ++stage)
      for (const Job& job : schedule_.jobs[stage])
        for (const JobPart& part : job.parts) {
          stage_of.emplace(part.chunk, stage);
          schedule_.microbatches = std::max(schedule_.microbatches, part.microbatch + 1);
        }
    std::vector<int> chunks_of(schedule_.jobs.size());
    for (const auto& [chunk, stage] : stage_of) {
      if (chunk != schedule_.Chunks())
        Refuse({fmt::format("{}: no cell has stage {}, but there is a stage {} (needed: all from 0 on)", path_,
                            schedule_.Chunks(), chunk)});
      schedule_.stage_of_chunk.push_back(stage);
      ++chunks_of[stage];
    }
    for (size_t line = 0; line < chunks_of.size(); ++line)
      if (chunks_of[line] != chunks_of[0] || chunks_of[line] == 0)
        Refuse({fmt::format("{}:{}: has {} stages, but {}:1 has {} (needed: equally many on each line, at least one)",
                            path_, line + 1, chunks_of[line], path_, chunks_of[0])});
  }

  void CheckJobs() const {
    const std::optional<ScheduleFault> fault = FirstFault(schedule_);
    if (!fault) return;
    if (fault->job) Refuse({fmt::format("{}: {} ({})", Place(cells_[fault->stage][*fault->job]), fault->why, kNeeded)});
    Refuse({fmt::format("{}:{}: {} ({})", path_, fault->stage + 1, fault->why, kNeeded)});
  }

  const std::string& path_;
  std::vector<std::vector<Cell>> cells_;  // with actions; by line
  std::vector<std::string> faults_;
  Schedule schedule_;
};

bool HasRole(const Job& job, Role role) {
  return std::ranges::find(job.parts, role, &JobPart::role) != job.parts.end();
}

ScheduleTraits TraitsOfGiven(const Schedule& schedule) {
  ScheduleTraits traits = TraitsOf(ScheduleKind::kFile);
  traits.given = &schedule;
  traits.min_chunks = traits.max_chunks = schedule.Chunks() / schedule.stages;
  traits.has_joint_jobs = false;
  int64_t alone = 0, all = 0;
  for (const std::vector<Job>& jobs : schedule.jobs)
    for (const Job& job : jobs) {
      const bool w = HasRole(job, Role::kW), b = HasRole(job, Role::kB);
      all += w;
      alone += w && !b;
      if (b && HasRole(job, Role::kF)) traits.has_joint_jobs = true;
    }
  traits.weight_gradients = 2 * alone > all ? WeightGradients::kDeferred : WeightGradients::kWithB;
  return traits;
}

/// The cell of the parts of one chunk and microbatch.
std::string CellOf(const std::vector<JobPart>& parts) {
  const bool whole = parts.size() == 2 && parts[0].role == Role::kB && parts[1].role == Role::kW;
  CHECK(whole || parts.size() == 1, "a job of {} parts has no cell", parts.size());
  const Role role = parts[0].role;
  const char letter = role == Role::kF ? 'F' : role == Role::kW ? 'W' : whole ? 'B' : 'I';
  return fmt::format("{}{}{}", parts[0].chunk, letter, parts[0].microbatch);
}

std::string CellOf(const Job& job) {
  if (!HasRole(job, Role::kF) || job.parts.size() == 1) return CellOf(job.parts);
  return fmt::format("({};{}{}", CellOf({job.parts[0]}), CellOf({job.parts.begin() + 1, job.parts.end()}), kBeside);
}

}  // namespace

std::shared_ptr<const ScheduleFile> ParseSchedule(std::string_view text, const std::string& path) {
  auto file = std::make_shared<ScheduleFile>();
  file->schedule = Reader(text, path).Finish();
  file->traits = TraitsOfGiven(file->schedule);
  file->origin = fmt::format("{} (checksum {:08x})", path, Crc32c(text.data(), text.size()));
  return file;
}

std::shared_ptr<const ScheduleFile> ReadScheduleFile(const std::string& path) {
  return ParseSchedule(ReadFile(path, {.what = "schedule", .most_bytes = kMaxFileBytes}), path);
}

std::string ToCsv(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Job>& jobs : schedule.jobs) {
    for (size_t i = 0; i < jobs.size(); ++i) text += (i == 0 ? "" : ",") + CellOf(jobs[i]);
    text += '\n';
  }
  return text;
}

}  // namespace espalier
