// Metrics over steps, all runs in one chart each.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "page/chart/line_chart.hpp"
#include "page/sections/numbers.hpp"
#include "page/sections/sections.hpp"

namespace espalier {
namespace {

constexpr size_t kSmoothedFrom = 150;  // steps
constexpr int kSmoothSteps = 50;       // a run is smoothed over this number of parts
constexpr int kColumns = 600, kColumnsOfAllRuns = 2400;
constexpr size_t kRowsOfValues = 25;

struct Metric {
  const char *field, *title, *unit;
  double scale = 1;       ///< factor of the values
  bool smoothed = false;  ///< with the unsmoothed values in the background
  bool wide = false;
};

constexpr double kPercent = 100, kPerMiB = 1.0 / (1024 * 1024);

constexpr Metric kMetrics[] = {
    {"loss", "loss", "", 1, true, true},
    {"z_loss", "z-loss", ""},
    {"mtp_loss", "loss of further tokens", ""},
    {"balance_loss", "balance loss of experts", ""},
    {"router_z_loss", "z-loss of routers", ""},
    {"experts_max_load", "largest load of an expert, relative to the mean", ""},
    {"router_entropy", "entropy of routers, mean of a token and layer", "nats"},
    {"grad_norm", "gradient norm", "", 1, true},
    {"lr", "learning rate", ""},
    {"sequences", "sequences per step", ""},
    {"tokens_per_s", "tokens per second", ""},
    {"mfu", "mfu", "%", kPercent},
    {"step_ms", "time of a step", "ms"},
    {"peak_bytes", "memory of rank 0", "MiB", kPerMiB},
};

std::vector<Point> PointsOf(const StepColumns& steps, std::string_view field, double scale) {
  std::vector<Point> points;
  const std::vector<double>& values = steps.Column(field);
  for (size_t i = 0; i < values.size(); ++i)
    points.push_back({static_cast<double>(steps.steps()[i]), scale * values[i]});
  return points;
}

bool IsShown(const Metric& metric, const Runs& runs) {
  const std::string_view field = metric.field;
  if (field == "loss" || field == "grad_norm") return true;
  return std::ranges::any_of(runs, [&](const RunOnPage& run) { return run.history.steps.Has(field); });
}

/// The names of curves, with the run's name if there are several runs.
std::string NameOf(const Runs& runs, const RunOnPage& run, const std::string& what) {
  if (runs.size() == 1) return what;
  return what.empty() ? run.name() : run.name() + ", " + what;
}

class MetricChart {
 public:
  MetricChart(const Runs& runs, const Metric& metric) : runs_(runs), metric_(metric) {
    chart_.text = {metric.title, metric.unit, "step"};
    chart_.columns = std::clamp(kColumnsOfAllRuns / static_cast<int>(runs.size()), 50, kColumns);
    if (metric.wide) chart_.size = kWideChart;
    for (size_t r = 0; r < runs.size(); ++r) AddRun(r);
  }
  const LineChart& chart() const { return chart_; }

 private:
  void AddRun(size_t r) {
    const RunHistory& history = runs_[r].history;
    AddGivenUp(r);
    const std::vector<Point> points = PointsOf(history.steps, metric_.field, metric_.scale);
    if (metric_.smoothed && points.size() > kSmoothedFrom)
      AddSmoothed(r, points);
    else
      Add(r, runs_.size() == 1 ? "" : runs_[r].name(), CurveLook::kLine, points);
    if (std::string_view(metric_.field) == "loss" && history.steps.Has("val_loss"))
      Add(r, NameOf(runs_, runs_[r], "validation"), CurveLook::kDots, PointsOf(history.steps, "val_loss", 1));
    AddMarks(r);
  }
  void AddSmoothed(size_t r, const std::vector<Point>& points) {
    const double steps = std::max(2.0, static_cast<double>(points.size()) / kSmoothSteps);
    Add(r, NameOf(runs_, runs_[r], "every step"), CurveLook::kBehind, points);
    Add(r, NameOf(runs_, runs_[r], fmt::format("mean over some {:.0f} steps", steps)), CurveLook::kLine,
        Smoothed(points, 1 - 1 / steps));
  }
  void AddGivenUp(size_t r) {
    const StepColumns& given_up = runs_[r].history.given_up;
    if (given_up.Has(metric_.field))
      Add(r, NameOf(runs_, runs_[r], "given up"), CurveLook::kGivenUp,
          PointsOf(given_up, metric_.field, metric_.scale));
  }
  void Add(size_t r, std::string name, CurveLook look, std::vector<Point> points) {
    chart_.curves.push_back({std::move(name), look, r, std::move(points)});
  }
  void AddMarks(size_t r) {
    const RunHistory& history = runs_[r].history;
    for (const Resumption& resumption : history.resumptions)
      chart_.marks.push_back(
          {resumption.kind == Resumption::Kind::kRestart ? ChartMark::Kind::kRestart : ChartMark::Kind::kRollback,
           static_cast<double>(resumption.first_step), r});
    for (const NotFinite& value : history.not_finite)
      if (value.field == metric_.field || (value.field == "val_loss" && std::string_view(metric_.field) == "loss"))
        chart_.marks.push_back({ChartMark::Kind::kNotFinite, static_cast<double>(value.step), r});
  }

  const Runs& runs_;
  const Metric& metric_;
  LineChart chart_;
};

/// Rows spread over the run, including the first and the last.
std::vector<size_t> SpreadRows(size_t rows) {
  std::vector<size_t> chosen;
  const size_t count = std::min(rows, kRowsOfValues);
  for (size_t i = 0; i < count; ++i) chosen.push_back(count == 1 ? 0 : i * (rows - 1) / (count - 1));
  return chosen;
}

void AddValues(const RunOnPage& run, Html& html) {
  constexpr const char* kFields[] = {"loss",         "val_loss", "grad_norm", "lr",         "tokens",
                                     "tokens_per_s", "mfu",      "step_ms",   "compute_ms", "peak_bytes"};
  const StepColumns& steps = run.history.steps;
  if (steps.Rows() == 0) return;
  Table table;
  table.words = 0;
  table.heads = {"step"};
  for (const char* field : kFields) table.heads.emplace_back(field);
  for (const size_t row : SpreadRows(steps.Rows())) {
    std::vector<std::string> cells = {std::to_string(steps.steps()[row])};
    for (const char* field : kFields) {
      const double value = steps.Column(field)[row];
      const bool integer = std::isfinite(value) && value == std::floor(value) && std::abs(value) < 1e15;
      cells.push_back(integer ? fmt::format("{:.0f}", value) : NineDigits(value));
    }
    table.rows.push_back(std::move(cells));
  }
  html.AddFolded(fmt::format("{} of the {} steps of {} in figures", table.rows.size(), steps.Rows(), run.name()),
                 table);
}

void AddGivenUpNote(const RunOnPage& run, Html& html) {
  if (run.history.given_up.Rows() == 0) return;
  html.Paragraph(fmt::format(
      "{}: {} given up, or done again, after a restart or a rollback. They are dashed, and no "
      "other figure of this page counts them.",
      run.name(),
      run.history.given_up.Rows() == 1 ? "one step was" : fmt::format("{} steps were", run.history.given_up.Rows())));
}

}  // namespace

void WriteCurves(const Runs& runs, Html& html) {
  html.BeginColumns();
  for (const Metric& metric : kMetrics)
    if (IsShown(metric, runs)) html.Add(metric.field, DrawLineChart(MetricChart(runs, metric).chart()));
  html.EndColumns();
  for (const RunOnPage& run : runs) AddGivenUpNote(run, html);
  for (const RunOnPage& run : runs) AddValues(run, html);
}

}  // namespace espalier
