// How time is divided, from the fields of each step. Compute, exposed communication and idle time add up to the step of
// the device. step_ms also includes the wait for data and the work between two steps. Waits for saves are between the
// steps, so they are added to step_ms. Hidden communication overlaps with compute and is not added.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "page/chart/stacked_chart.hpp"
#include "page/sections/numbers.hpp"
#include "page/sections/sections.hpp"

namespace espalier {
namespace {

constexpr size_t kMaxIntervals = 160;

struct Part {
  const char *name, *css_class;
  double (*of_step)(const StepColumns& steps, size_t row);  ///< ms
};

double At(const StepColumns& steps, size_t row, std::string_view field) {
  const double value = steps.Column(field)[row];
  return std::isfinite(value) ? value : 0;
}

bool KnowsAxes(const StepColumns& steps, size_t row) { return std::isfinite(steps.Column("exposed_ms.tp")[row]); }

double Exposed(const StepColumns& steps, size_t row) {
  return KnowsAxes(steps, row) ? 0 : At(steps, row, "exposed_comm_ms");
}

double Rest(const StepColumns& steps, size_t row) {
  return std::max(0.0, At(steps, row, "step_ms") - At(steps, row, "compute_ms") - At(steps, row, "exposed_comm_ms") -
                           At(steps, row, "idle_ms") - At(steps, row, "data_ms"));
}

constexpr Part kParts[] = {
    {"compute", "compute", [](const StepColumns& s, size_t r) { return At(s, r, "compute_ms"); }},
    {"exposed tp", "tp", [](const StepColumns& s, size_t r) { return At(s, r, "exposed_ms.tp"); }},
    {"exposed cp", "cp", [](const StepColumns& s, size_t r) { return At(s, r, "exposed_ms.cp"); }},
    {"exposed ep", "ep", [](const StepColumns& s, size_t r) { return At(s, r, "exposed_ms.ep"); }},
    {"exposed dp", "dp", [](const StepColumns& s, size_t r) { return At(s, r, "exposed_ms.dp"); }},
    {"exposed pp", "pp", [](const StepColumns& s, size_t r) { return At(s, r, "exposed_ms.pp"); }},
    {"exposed, axis not known", "exposed", Exposed},
    {"idle", "idle", [](const StepColumns& s, size_t r) { return At(s, r, "idle_ms"); }},
    {"waiting for data", "data", [](const StepColumns& s, size_t r) { return At(s, r, "data_ms"); }},
    {"waiting for saves", "saves", [](const StepColumns& s, size_t r) { return At(s, r, "checkpoint_ms"); }},
    {"rest of the steps", "rest", Rest},
};

/// Milliseconds of all counted steps, by part.
std::vector<double> TotalsOf(const StepColumns& steps) {
  std::vector<double> totals;
  for (const Part& part : kParts) {
    double total = 0;
    for (size_t row = 0; row < steps.Rows(); ++row) total += part.of_step(steps, row);
    totals.push_back(total);
  }
  return totals;
}

/// The parts that take time in at least one run.
std::vector<size_t> Shown(const std::vector<std::vector<double>>& totals) {
  std::vector<size_t> shown;
  for (size_t p = 0; p < std::size(kParts); ++p)
    if (std::ranges::any_of(totals, [&](const std::vector<double>& of_run) { return of_run[p] > 0; }))
      shown.push_back(p);
  return shown;
}

void AddTotals(const Runs& runs, const std::vector<std::vector<double>>& totals, const std::vector<size_t>& shown,
               Html& html) {
  ShareChart chart{"shares of the time", {}, {}};
  Table table{{"part"}, {}, 1};
  for (const RunOnPage& run : runs) {
    table.heads.push_back(runs.size() == 1 ? "time" : run.name());
    table.heads.emplace_back("share");
    chart.bars.push_back({run.name(), {}});
  }
  for (const size_t p : shown) {
    chart.parts.push_back({kParts[p].name, kParts[p].css_class, LegendEntry::Sample::kSquare});
    std::vector<std::string> row = {kParts[p].name};
    for (size_t r = 0; r < runs.size(); ++r) {
      double whole = 0;
      for (const double ms : totals[r]) whole += ms;
      row.push_back(MillisecondsText(totals[r][p]));
      row.push_back(PercentText(totals[r][p] / whole));
      chart.bars[r].values.push_back(totals[r][p]);
    }
    table.rows.push_back(std::move(row));
  }
  html.Add("time-shares", DrawShareChart(chart));
  html.Add(table);
}

/// The mean time of each part of a step, in intervals of steps.
StackedChart OverSteps(const RunOnPage& run, const std::vector<size_t>& shown) {
  const StepColumns& steps = run.history.steps;
  StackedChart chart;
  chart.text = {fmt::format("parts of a step, {}", run.name()), "ms", "step"};
  chart.size = kWideChart;
  for (const size_t p : shown) chart.layers.push_back({kParts[p].name, kParts[p].css_class, {}});
  const size_t intervals = std::min(kMaxIntervals, steps.Rows());
  chart.edges = {static_cast<double>(steps.steps().front()) - 0.5};
  for (size_t i = 0; i < intervals; ++i) {
    const size_t first = i * steps.Rows() / intervals, last = (i + 1) * steps.Rows() / intervals;
    chart.edges.push_back(static_cast<double>(steps.steps()[last - 1]) + 0.5);
    for (size_t p = 0; p < shown.size(); ++p) {
      double sum = 0;
      for (size_t row = first; row < last; ++row) sum += kParts[shown[p]].of_step(steps, row);
      chart.layers[p].values.push_back(sum / static_cast<double>(last - first));
    }
  }
  return chart;
}

/// By axis: exposed and hidden milliseconds per step, and the share that is hidden.
void AddHidden(const RunOnPage& run, Html& html) {
  Table table{{"communication", "exposed per step", "hidden per step", "hidden share"}, {}, 1};
  int64_t known = 0;
  for (size_t row = 0; row < run.history.steps.Rows(); ++row) known += KnowsAxes(run.history.steps, row);
  for (const CommAxis axis : kCommAxes) {
    const double exposed = SumOf(run.history.steps, fmt::format("exposed_ms.{}", Name(axis)));
    const double hidden = SumOf(run.history.steps, fmt::format("hidden_ms.{}", Name(axis)));
    if (exposed + hidden <= 0) continue;
    const auto steps = static_cast<double>(known);
    table.rows.push_back({std::string(Name(axis)), MillisecondsText(exposed / steps), MillisecondsText(hidden / steps),
                          PercentText(hidden / (exposed + hidden))});
  }
  if (table.rows.empty()) return;
  html.Heading(fmt::format("Communication of {}: mean of {}, rank 0", run.name(), Count(known, "step")));
  html.Add(table);
}

/// Time outside of the steps, from the first line to the last one.
std::string OutsideSteps(const RunHistory& history, const std::vector<double>& totals) {
  double in_steps = 0, startup = 0;
  for (const double ms : totals) in_steps += ms;
  for (const Event* start : history.EventsOf("start"))
    if (const double ms = NumberOf(start->fields, "startup_ms"); std::isfinite(ms)) startup += ms;
  return fmt::format(
      "{}: {} from the first line to the last, {} of it in the steps that count and their saves. {} took {} besides, "
      "before their first lines. The rest are validations, steps that were given up, and time between starts.",
      history.folder, MillisecondsText(1e3 * (history.last_time - history.first_time)), MillisecondsText(in_steps),
      history.EventsOf("start").size() == 1 ? "The start" : "The starts", MillisecondsText(startup));
}

}  // namespace

void WriteTime(const Runs& runs, Html& html) {
  html.Paragraph(
      "Times are those of rank 0. Compute, exposed communication (compute waits for it) and idle time make up the step "
      "of the device. On CPUs, waiting for other ranks counts as exposed. Waits for saves are between steps.");
  std::vector<std::vector<double>> totals;
  for (const RunOnPage& run : runs) totals.push_back(TotalsOf(run.history.steps));
  const std::vector<size_t> shown = Shown(totals);
  if (shown.empty()) return html.Note("No step has been done yet.");
  AddTotals(runs, totals, shown, html);
  for (size_t r = 0; r < runs.size(); ++r) {
    if (!Shown({totals[r]}).empty())
      html.Add(fmt::format("time-{}", r + 1), DrawStackedChart(OverSteps(runs[r], Shown({totals[r]}))));
    AddHidden(runs[r], html);
    html.Paragraph(OutsideSteps(runs[r].history, totals[r]));
  }
}

}  // namespace espalier
