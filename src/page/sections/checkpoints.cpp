// Checkpoints: saves, their duration, and failures.
#include <fmt/core.h>

#include <algorithm>

#include "espalier/report/text.hpp"
#include "espalier/util/median.hpp"
#include "page/sections/numbers.hpp"
#include "page/sections/sections.hpp"

namespace espalier {
namespace {

constexpr size_t kMaxSaves = 50;

std::string StepText(const Event& event) {
  const std::optional<int64_t> step = IntegerOf(event.fields, "step");
  return step ? std::to_string(*step) : kUnknown;
}

Table Committed(const RunOnPage& run, const std::vector<const Event*>& saves) {
  Table table{{"folder", "still there", "step", "size", "training waited", "committed after", "proof"}, {}, 2};
  for (size_t i = saves.size() - std::min(saves.size(), kMaxSaves); i < saves.size(); ++i) {
    const nlohmann::json& fields = saves[i]->fields;
    const std::string folder = TextOf(fields, "dir");
    table.rows.push_back(
        {folder, run.checkpoints_there.contains(folder) ? "yes" : "no", StepText(*saves[i]),
         HumanBytes(IntegerOf(fields, "bytes").value_or(0)), MillisecondsText(NumberOf(fields, "blocked_ms")),
         MillisecondsText(NumberOf(fields, "committed_ms")), MillisecondsText(NumberOf(fields, "proof_ms"))});
  }
  return table;
}

std::string Summary(const RunOnPage& run, const std::vector<const Event*>& saves) {
  std::vector<double> blocked, committed;
  for (const Event* save : saves) {
    blocked.push_back(NumberOf(save->fields, "blocked_ms"));
    committed.push_back(NumberOf(save->fields, "committed_ms"));
  }
  return fmt::format(
      "{}: {} committed. Medians: training waited {} for one, and it was committed {} after its start.{}", run.name(),
      saves.size() == 1 ? "one was" : fmt::format("{} were", saves.size()), MillisecondsText(MedianOf(blocked)),
      MillisecondsText(MedianOf(committed)),
      saves.size() > kMaxSaves ? fmt::format(" The last {} are shown.", kMaxSaves) : "");
}

Table Failed(const std::vector<const Event*>& failures) {
  Table table{{"reason", "when", "step"}, {}, 2};
  for (const Event* failure : failures)
    table.rows.push_back(
        {TextOf(failure->fields, "reason"), DateText(NumberOf(failure->fields, "time")), StepText(*failure)});
  return table;
}

}  // namespace

void WriteCheckpoints(const Runs& runs, Html& html) {
  for (const RunOnPage& run : runs) {
    if (runs.size() > 1) html.Heading(run.name());
    const std::vector<const Event*> saves = run.history.EventsOf("checkpoint"),
                                    failures = run.history.EventsOf("checkpoint_failed");
    if (saves.empty())
      html.Note(fmt::format("{}: no checkpoint was committed.", run.name()));
    else
      html.Paragraph(Summary(run, saves));
    if (!saves.empty()) html.Add(Committed(run, saves));
    if (failures.empty()) continue;
    html.Heading(fmt::format("{} failed", Count(std::ssize(failures), "save")));
    html.Add(Failed(failures));
  }
}

}  // namespace espalier
