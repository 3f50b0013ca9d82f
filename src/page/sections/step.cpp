// One step, instruction by instruction: measured, with the prediction above it.
#include <fmt/core.h>

#include "page/sections/numbers.hpp"
#include "page/sections/sections.hpp"

namespace espalier {
namespace {

/// Shares of the step, as means of all ranks.
std::vector<std::string> StepRow(const Timeline& timeline) {
  double ranks = 0, compute = 0, idle = 0;
  ByCommAxis<double> exposed{}, hidden{};
  for (const Track& track : timeline.tracks) {
    const Breakdown b = BreakDown(track, timeline.step_us);
    ranks += track.ranks;
    compute += track.ranks * b.compute_us;
    idle += track.ranks * b.idle_us;
    for (const CommAxis axis : kCommAxes) {
      exposed[axis] += track.ranks * b.exposed_us[axis];
      hidden[axis] += track.ranks * b.hidden_us[axis];
    }
  }
  const double whole = ranks * timeline.step_us;
  std::vector<std::string> row = {timeline.title, MillisecondsText(timeline.step_us * 1e-3),
                                  PercentText(compute / whole), PercentText(idle / whole)};
  for (const CommAxis axis : kCommAxes) row.push_back(PercentText(exposed[axis] / whole));
  for (const CommAxis axis : kCommAxes) row.push_back(PercentText(hidden[axis] / whole));
  return row;
}

Table StepTable(const std::vector<Timeline>& timelines) {
  Table table{{"step", "time", "compute", "idle"}, {}, 1};
  for (const char* word : {"exposed", "hidden"})
    for (const CommAxis axis : kCommAxes) table.heads.push_back(fmt::format("{} {}", word, Name(axis)));
  for (const Timeline& timeline : timelines) table.rows.push_back(StepRow(timeline));
  return table;
}

}  // namespace

void WriteStep(const Runs& runs, Html& html) {
  std::vector<Timeline> timelines;
  for (const RunOnPage& run : runs)
    for (const TimelineOnPage* one : {&run.measured, &run.simulated})
      if (one->timeline) timelines.push_back(*one->timeline);
  if (!timelines.empty()) {
    html.Add("timeline", DrawTimelines(timelines), "All steps are drawn on one scale.");
    html.Add(StepTable(timelines));
    html.Paragraph("Shares are means of all ranks that are drawn. Hidden communication is under compute.");
  }
  for (const RunOnPage& run : runs)
    for (const TimelineOnPage* one : {&run.measured, &run.simulated})
      if (!one->why_none.empty()) html.Note(fmt::format("{}: {}", run.name(), one->why_none));
}

}  // namespace espalier
