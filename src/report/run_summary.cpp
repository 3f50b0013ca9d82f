#include "report/run_summary.hpp"

#include <fmt/format.h>

#include <cmath>

#include "espalier/report/text.hpp"

namespace espalier {

void RunSummary::Sums::Add(const StepRecord& record) {
  tokens += record.tokens_per_s * record.step_ms * 1e-3;
  ms += record.step_ms;
}

void RunSummary::Add(const StepRecord& record) {
  (first_step_ == 0 ? first_ : others_).Add(record);
  if (first_step_ == 0) first_step_ = record.step;
  last_step_ = record.step;
  loss_ = record.loss;
  if (!std::isfinite(loss_) || (lowest_step_ > 0 && loss_ >= lowest_)) return;
  lowest_ = loss_;
  lowest_step_ = record.step;
}

std::string RunSummary::LossText() const {
  const std::string lowest =
      lowest_step_ == 0 ? "never finite" : fmt::format("lowest {:.5f} (step {})", lowest_, lowest_step_);
  return fmt::format("; loss {:.5f}, {}", loss_, lowest);
}

std::string RunSummary::Text(const ReportOptions& options) const {
  if (first_step_ == 0) return "";
  const Sums& rate = others_.ms > 0 ? others_ : first_;
  const double tokens_per_s = 1e3 * rate.tokens / rate.ms;
  const double mfu = options.flops_per_token.causal * tokens_per_s / options.peak_flops;
  const std::string steps = first_step_ == last_step_ ? fmt::format("step {}", first_step_)
                                                      : fmt::format("steps {} to {}", first_step_, last_step_);
  return fmt::format(
      "{}: {} tokens in {}, {} tokens/s{}{}", steps, HumanCount(std::round(first_.tokens + others_.tokens)),
      HumanDuration((first_.ms + others_.ms) * 1e-3), HumanCount(tokens_per_s),
      options.peak_flops > 0 ? fmt::format(", mfu {:.1f} %", 100 * mfu) : "", options.sleeps ? "" : LossText());
}

}  // namespace espalier
