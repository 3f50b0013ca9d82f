// The output of `simulate`: text for people, JSON for machines (doc/simulate.md).
#pragma once

#include <nlohmann/json.hpp>

#include "commands/simulate/figures.hpp"

namespace espalier {

void PrintPrediction(const Prediction& prediction, const Figures& figures, const SimulateOptions& options);

nlohmann::ordered_json ToJson(const Prediction& prediction, const Figures& figures);

/// "step_ms", "idle_ms" and "exposed_comm_ms" of the slowest rank, which `plan --cluster` adds to its own JSON.
nlohmann::ordered_json StepJson(const Prediction& prediction, const Figures& figures);

/// The parts of a step, "compute_ms", "idle_ms", "exposed_ms" and "hidden_ms" by axis: compute, exposed of all axes and
/// idle are the step.
void AddParts(nlohmann::ordered_json& json, const Breakdown& breakdown);

/// "12.3 us", "4.56 ms", "7.89 s": three significant digits, from a minute on as "27m04s".
std::string DurationText(double us);

/// "18.7 s to 20.4 s", of seconds.
std::string RangeText(const TimeRange& s);

/// The two ends of a range in milliseconds.
nlohmann::ordered_json RangeJson(const TimeRange& s);

}  // namespace espalier
