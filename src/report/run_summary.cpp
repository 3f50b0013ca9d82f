#include "report/run_summary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "espalier/report/text.hpp"

namespace espalier {
namespace {

/// "0.31s" for times that whole seconds would not describe well.
std::string ShortDuration(double seconds) {
  constexpr double kShort = 9.995;
  return seconds < kShort ? fmt::format("{:.2f}s", seconds) : HumanDuration(seconds);
}

}  // namespace

void RunSummary::Sums::Add(const StepRecord& record) {
  tokens += record.tokens_per_s * record.step_ms * 1e-3;
  ms += record.step_ms;
}

void RunSummary::Losses::Add(int64_t at, double loss) {
  step = at;
  last = loss;
  if (!std::isfinite(loss) || (lowest_step > 0 && loss >= lowest)) return;
  lowest = loss;
  lowest_step = at;
}

std::string RunSummary::Losses::Text() const {
  const std::string least =
      lowest_step == 0 ? "never finite" : fmt::format("lowest {:.5f} (step {})", lowest, lowest_step);
  return fmt::format("{:.5f} (step {}), {}", last, step, least);
}

void RunSummary::Add(const StepRecord& record) {
  (first_step_ == 0 ? first_ : others_).Add(record);
  if (first_step_ == 0) first_step_ = record.step;
  training_.Add(record.step, record.loss);
  data_ms_ += record.data_ms;
  save_ms_ += record.checkpoint_ms;
}

void RunSummary::Add(const CheckpointRecord& record) {
  ++saves_;
  saved_bytes_ += record.bytes;
}

void RunSummary::AddMemory(const std::vector<int64_t>& rank_peak_bytes, int64_t outside_bytes) {
  const auto most = std::ranges::max_element(rank_peak_bytes);
  if (most == rank_peak_bytes.end()) return;
  peak_bytes_ = *most;
  peak_rank_ = most - rank_peak_bytes.begin();
  outside_bytes_ = std::max<int64_t>(0, outside_bytes);
}

std::string RunSummary::StepsText(const ReportOptions& options) const {
  const Sums& rate = others_.ms > 0 ? others_ : first_;
  const double tokens_per_s = 1e3 * rate.tokens / rate.ms;
  const double mfu = options.flops_per_token.causal * tokens_per_s / options.peak_flops;
  const std::string steps = first_step_ == training_.step ? fmt::format("step {}", first_step_)
                                                          : fmt::format("steps {} to {}", first_step_, training_.step);
  return fmt::format("{}: {} in {}, {} tokens/s{}", steps,
                     Counted(std::llround(first_.tokens + others_.tokens), "token"),
                     ShortDuration((first_.ms + others_.ms) * 1e-3), HumanCount(tokens_per_s),
                     options.peak_flops > 0 ? fmt::format(", mfu {:.3g} %", 100 * mfu) : "");
}

std::string RunSummary::GuardText() const {
  std::vector<std::string> texts;
  if (skips_ > 0) texts.push_back(Counted(skips_, "step") + " skipped");
  if (rollbacks_ > 0) texts.push_back(fmt::format("rolled back {}", Counted(rollbacks_, "time")));
  if (spikes_ > 0) texts.push_back(Counted(spikes_, "spike") + " accepted");
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string RunSummary::SavesText() const {
  if (saves_ + failed_saves_ == 0) return "";
  const std::string failed = failed_saves_ == 0 ? "" : fmt::format(", {} failed", failed_saves_);
  return fmt::format("{}, {}{}", Counted(saves_, "checkpoint"), HumanBytes(saved_bytes_), failed);
}

/// Waits as a share of the time of all steps, if they are worth a line.
std::string RunSummary::WaitsText() const {
  constexpr double kWorthSaying = 0.5;
  const double ms = first_.ms + others_.ms;
  std::vector<std::string> texts;
  for (const auto& [waited_ms, what] : {std::pair(data_ms_, "batches"), std::pair(save_ms_, "saves")})
    if (const double percent = 100 * waited_ms / ms; percent >= kWorthSaying)
      texts.push_back(fmt::format("{:.1f} % for {}", percent, what));
  return texts.empty() ? "" : fmt::format("of the time of all steps, training waited {}", fmt::join(texts, ", "));
}

std::string RunSummary::MemoryText() const {
  if (peak_bytes_ == 0) return "";
  return fmt::format("{} on rank {}, which used most; at most {} of a rank besides", HumanBytes(peak_bytes_),
                     peak_rank_, HumanBytes(outside_bytes_));
}

BlockLines RunSummary::Lines(const ReportOptions& options) const {
  if (first_step_ == 0) return {};
  BlockLines lines = {{"done", StepsText(options), Worth::kResult}};
  const auto add = [&](std::string_view label, const std::string& text, Worth worth = Worth::kNormal) {
    if (!text.empty()) lines.push_back({label, text, worth});
  };
  if (!options.sleeps) add("loss", training_.Text(), Worth::kResult);
  if (validation_.step > 0) add("validation", validation_.Text(), Worth::kResult);
  add("guard", GuardText());
  add("saved", SavesText());
  add("waits", WaitsText());
  add("memory", MemoryText());
  return lines;
}

}  // namespace espalier
