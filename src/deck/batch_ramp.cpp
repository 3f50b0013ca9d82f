#include "espalier/deck/batch_ramp.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace espalier {
namespace {

int64_t Growths(const Deck::Batch& batch) {
  return batch.ramp_start == 0 ? 0 : (batch.global - batch.ramp_start) / batch.ramp_step;
}

}  // namespace

BatchRamp::BatchRamp(const Deck::Batch& batch)
    : start_(batch.ramp_start == 0 ? batch.global : batch.ramp_start),
      step_(batch.ramp_step),
      steps_(batch.ramp_steps),
      growths_(Growths(batch)) {}

int64_t BatchRamp::IndexOf(int64_t step) const { return std::min(growths_, (step - 1) / steps_); }

int64_t BatchRamp::SequencesUpTo(int64_t step) const {
  const int64_t grown = std::min(growths_, step / steps_);  // growths up to the step after `step`
  // Sizes 0 to grown - 1 have steps_ steps each, with 0, 1, 2, ... times step_ more than start_.
  const int64_t before = grown * steps_;
  return start_ * before + grown * (grown - 1) / 2 * step_ * steps_ + (start_ + step_ * grown) * (step - before);
}

int64_t BatchRamp::StepsWithin(int64_t sequences) const {
  constexpr int64_t kMax = int64_t{1} << 31;                           // more than a run may have
  int64_t fit = 0, too_many = std::min(sequences / start_, kMax) + 1;  // no step has fewer than start_
  while (too_many - fit > 1) {
    const int64_t middle = fit + (too_many - fit) / 2;
    (SequencesUpTo(middle) <= sequences ? fit : too_many) = middle;
  }
  return fit;
}

std::vector<RampSize> BatchRamp::Sizes() const {
  std::vector<RampSize> sizes;
  for (int64_t grown = 0; grown <= growths_; ++grown) sizes.push_back({start_ + step_ * grown, grown * steps_ + 1});
  return sizes;
}

std::vector<RampSize> BatchRamp::SizesWithin(int64_t steps) const {
  std::vector<RampSize> sizes = Sizes();
  std::erase_if(sizes, [&](const RampSize& size) { return size.first_step > steps; });
  return sizes;
}

Deck WithSequences(Deck deck, int64_t sequences) {
  deck.batch.global = sequences;
  deck.batch.ramp_start = 0;
  return deck;
}

std::string Describe(const BatchRamp& ramp) {
  const std::vector<RampSize> sizes = ramp.Sizes();
  const std::string first = fmt::format("{} sequence{} a step", sizes[0].sequences, sizes[0].sequences == 1 ? "" : "s");
  if (sizes.size() == 1) return first;
  return fmt::format("{}, {} more every {} steps, {} from step {} on", first, sizes[1].sequences - sizes[0].sequences,
                     sizes[1].first_step - sizes[0].first_step, sizes.back().sequences, sizes.back().first_step);
}

}  // namespace espalier
