#include "train/stopping/time_limit.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "espalier/deck/time_limit.hpp"

namespace espalier {
namespace {

constexpr size_t kRecentSteps = 20;
constexpr double kSaveFactor = 1.5;    // storage is shared: the next save may be slower
constexpr double kLargestMargin = 90;  // seconds
constexpr double kMarginFraction = 0.15;

TimeEnd EndAt(const Deck& deck, double at_s, std::string what) {
  const double margin = deck.run.stop_margin_s;
  return {at_s, margin >= 0 ? margin : std::min(kLargestMargin, kMarginFraction * std::max(0.0, at_s)),
          std::move(what)};
}

}  // namespace

void TimeLimit::StepTook(double seconds) {
  recent_s_.push_back(seconds);
  if (recent_s_.size() > kRecentSteps) recent_s_.pop_front();
}

bool TimeLimit::Reached(double now_s, double beside_s, double save_s) const {
  if (!Set()) return false;
  const double step_s = recent_s_.empty() ? 0 : *std::ranges::max_element(recent_s_);
  return now_s + step_s + beside_s + kSaveFactor * save_s + end_.margin_s > end_.at_s;
}

TimeLimit FindTimeLimit(const Deck& deck, const std::string& slurm_end, double epoch_s) {
  TimeLimit limit;
  if (const auto seconds = TimeLimitSeconds(deck.run.time_limit))
    limit =
        TimeLimit(EndAt(deck, static_cast<double>(*seconds), fmt::format("run.time_limit = {}", deck.run.time_limit)));
  int64_t end = 0;
  const auto [rest, error] = std::from_chars(slurm_end.data(), slurm_end.data() + slurm_end.size(), end);
  if (slurm_end.empty() || error != std::errc{} || rest != slurm_end.data() + slurm_end.size() || end <= 0)
    return limit;
  const TimeLimit slurm(EndAt(deck, static_cast<double>(end) - epoch_s, "the end of the job"));
  return limit.Set() && limit.end().at_s <= slurm.end().at_s ? limit : slurm;
}

}  // namespace espalier
