#include "report/communication_summary.hpp"

#include <fmt/core.h>

namespace espalier {
namespace {

/// A time of at least 0.01 ms with three significant digits.
std::string Milliseconds(double ms) { return fmt::format("{:.{}f} ms", ms, ms < 9.995 ? 2 : ms < 99.95 ? 1 : 0); }

}  // namespace

void CommunicationSummary::Sums::Add(const StepRecord& record) {
  for (const CommAxis axis : kAllCommAxes) {
    comm.exposed_ms[axis] += record.comm->exposed_ms[axis];
    comm.hidden_ms[axis] += record.comm->hidden_ms[axis];
  }
  step_ms += record.step_ms;
  ++steps;
}

void CommunicationSummary::Add(const StepRecord& record) {
  if (record.comm) (first_.steps == 0 ? first_ : others_).Add(record);
}

std::string CommunicationSummary::Text() const {
  const Sums& sums = others_.steps > 0 ? others_ : first_;
  const auto steps = static_cast<double>(sums.steps);
  std::string text;
  for (const CommAxis axis : kAllCommAxes) {
    const double hidden_ms = sums.comm.hidden_ms[axis], all_ms = hidden_ms + sums.comm.exposed_ms[axis];
    if (all_ms <= 0) continue;
    text += fmt::format("{}{} {}{}, {:.0f} % hidden", text.empty() ? "" : "; ", Name(axis),
                        Milliseconds(all_ms / steps), text.empty() ? " a step" : "", 100 * hidden_ms / all_ms);
  }
  if (text.empty()) return "";
  return text + fmt::format("; exposed {:.1f} % of the step (rank 0, {})", 100 * sums.comm.ExposedMs() / sums.step_ms,
                            sums.steps == 1 ? "one step" : fmt::format("mean of {} steps", sums.steps));
}

}  // namespace espalier
