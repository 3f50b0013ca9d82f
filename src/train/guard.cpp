#include "train/guard.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr const char* kOverflow = "every sum is finite, but the squares of the gradients overflow";

/// Position of the first op that writes `value`.
size_t FirstWriter(const Graph& graph, std::string_view name) {
  const int value = graph.Find(name);
  const auto writes = [&](const Op& op) { return std::ranges::count(op.outputs, value) > 0; };
  return static_cast<size_t>(std::ranges::find_if(graph.ops, writes) - graph.ops.begin());
}

/// Elements that are not finite. Reads the tensor in chunks, from host or device.
int64_t CountNonFinite(const Arena& arena, const Tensor& tensor) {
  constexpr int64_t kChunk = int64_t{1} << 20;
  std::vector<float> chunk;
  int64_t bad = 0;
  for (int64_t at = 0, n = Volume(tensor.shape); at < n; at += kChunk) {
    chunk.resize(static_cast<size_t>(std::min(kChunk, n - at)));
    arena.Read(tensor.As<float>() + at, chunk.data(), std::ssize(chunk) * int64_t{sizeof(float)});
    bad += std::ranges::count_if(chunk, [](float x) { return !std::isfinite(x); });
  }
  return bad;
}

/// This rank's first one as "order rank words", with numbers of fixed width so that texts compare; empty if none.
std::string OwnFirst(const Programs& programs, int64_t step, int rank) {
  const Training& training = programs.TrainingOf(step);
  std::string first;
  for (const NamedTensor& sum : training.executor().All(ValueKind::kAccumulator)) {
    if (sum.tensor.dtype != Dtype::kF32) continue;
    const int64_t bad = CountNonFinite(programs.arena(), sum.tensor);
    if (bad == 0) continue;
    std::string mine = fmt::format("{:010} {:08} {} on rank {}: {} of its {} elements there",
                                   FirstWriter(*training.program().graph, sum.name), rank, sum.name, rank, bad,
                                   Volume(sum.tensor.shape));
    if (first.empty() || mine < first) first = std::move(mine);
  }
  return first;
}

struct MeanAndDeviation {
  double mean = 0, deviation = 0;  ///< mean and deviation of the window
};

MeanAndDeviation MeanAndDeviationOf(const std::vector<StepSeen>& window, float StepSeen::*number) {
  const auto n = static_cast<double>(window.size());
  double sum = 0, squares = 0;
  for (const StepSeen& step : window) sum += static_cast<double>(step.*number);
  const double mean = sum / n;
  for (const StepSeen& step : window) {
    const double off = static_cast<double>(step.*number) - mean;
    squares += off * off;
  }
  return {mean, std::sqrt(squares / (n - 1))};
}

float LimitOf(const Deck::Guard& guard, const std::vector<StepSeen>& window, float StepSeen::*number) {
  const MeanAndDeviation of = MeanAndDeviationOf(window, number);
  return static_cast<float>(of.mean + guard.spike_z * of.deviation);
}

/// "loss 7.1 is a spike: above 3.4 = 2.3 + 5 * 0.22, mean and deviation of the last 128 steps (guard.spike_z = 5)".
std::string SpikeText(std::string_view what, float number, const Deck::Guard& guard,
                      const std::vector<StepSeen>& window, float StepSeen::*member) {
  const MeanAndDeviation of = MeanAndDeviationOf(window, member);
  return fmt::format(
      "{} {:.6g} is a spike: above {:.6g} = {:.6g} + {:g} * {:.3g}, mean and deviation of the last {} "
      "steps (guard.spike_z = {:g})",
      what, number, LimitOf(guard, window, member), of.mean, guard.spike_z, of.deviation, window.size(), guard.spike_z);
}

}  // namespace

SpikeLimits LimitsOf(const Deck::Guard& guard, const std::vector<StepSeen>& window) {
  if (guard.spike_z <= 0 || std::ssize(window) < guard.spike_window) return {};
  return {LimitOf(guard, window, &StepSeen::loss), LimitOf(guard, window, &StepSeen::norm)};
}

Guard::Guard(const Deck& deck, std::vector<StepSeen> window) : deck_(deck) { GoBackTo(std::move(window)); }

void Guard::GoBackTo(std::vector<StepSeen> window) {
  const int64_t more = WatchesSpikes() ? std::ssize(window) - deck_.guard.spike_window : std::ssize(window);
  window.erase(window.begin(), window.begin() + std::max<int64_t>(0, more));
  window_ = std::move(window);
  limits_ = LimitsOf(deck_.guard, window_);
}

SpikeLimits Guard::LimitsOfUpdate() const { return deck_.guard.on_spike == OnSpike::kWarn ? SpikeLimits{} : limits_; }

Guard::Verdict Guard::Judge(float loss, float norm) {
  spike_.clear();
  if (!std::isfinite(loss) || !std::isfinite(norm)) {
    if (deck_.guard.on_nonfinite == OnNonfinite::kSkip) return Skip();
    return deck_.guard.on_nonfinite == OnNonfinite::kRollback ? RollBack() : Verdict::kStop;
  }
  if (loss > limits_.loss) spike_ = SpikeText("loss", loss, deck_.guard, window_, &StepSeen::loss);
  if (norm > limits_.norm)
    spike_ += (spike_.empty() ? "" : "; ") + SpikeText("gradient norm", norm, deck_.guard, window_, &StepSeen::norm);
  const Verdict verdict = spike_.empty() ? Verdict::kAccept : JudgeSpike();
  if (verdict == Verdict::kAccept || verdict == Verdict::kWarn) Accept(loss, norm);
  return verdict;
}

Guard::Verdict Guard::JudgeCorruption() {
  return deck_.guard.on_corruption == OnCorruption::kRollback ? RollBack() : Verdict::kStop;
}

Guard::Verdict Guard::JudgeSpike() {
  switch (deck_.guard.on_spike) {
    case OnSpike::kWarn:
      return Verdict::kWarn;
    case OnSpike::kSkip:
      return Skip();
    case OnSpike::kRollback:
      return RollBack();
    case OnSpike::kStop:
      break;
  }
  return Verdict::kStop;
}

void Guard::Accept(float loss, float norm) {
  skips_ = 0;
  if (!WatchesSpikes()) return;
  window_.push_back({loss, norm});
  if (std::ssize(window_) > deck_.guard.spike_window) window_.erase(window_.begin());
  limits_ = LimitsOf(deck_.guard, window_);
}

Guard::Verdict Guard::Skip() { return ++skips_ > deck_.guard.max_skips ? Verdict::kStop : Verdict::kSkip; }

Guard::Verdict Guard::RollBack() {
  return ++rollbacks_ > deck_.guard.max_rollbacks ? Verdict::kStop : Verdict::kRollBack;
}

std::string Guard::Limit() const {
  if (skips_ > deck_.guard.max_skips)
    return fmt::format(" (guard.max_skips = {} steps in a row were skipped)", deck_.guard.max_skips);
  if (rollbacks_ > deck_.guard.max_rollbacks)
    return fmt::format(" (guard.max_rollbacks = {} times it was rolled back)", deck_.guard.max_rollbacks);
  return "";
}

std::string FirstNonFinite(const Programs& programs, int64_t step, World& world) {
  std::string first;
  for (const std::string& text : world.Gather(OwnFirst(programs, step, world.Rank())))
    if (!text.empty() && (first.empty() || text < first)) first = text;
  first = world.Broadcast(first);
  if (first.empty()) return kOverflow;
  constexpr size_t kNumbers = 20;  // "order rank "
  return "first not finite: " + first.substr(kNumbers);
}

std::string FirstNonFiniteOfResults(const Programs& programs, int64_t step) {
  const Executor& executor = programs.TrainingOf(step).executor();
  const auto first = static_cast<int64_t>(executor.GetScalar("first"));
  if (first >= 0)
    return "first not finite: gradients/" + programs.compilation().parameters.at(static_cast<size_t>(first));
  return std::isfinite(executor.GetScalar("mean_loss")) ? kOverflow : "the gradients are finite, the loss is not";
}

}  // namespace espalier
