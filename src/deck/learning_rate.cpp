#include <algorithm>
#include <cmath>
#include <numbers>

#include "espalier/deck/deck.hpp"

namespace espalier {

namespace {

double RateOf(const Deck& deck, double highest, int64_t step) {
  const double lowest_ratio = deck.lr.min_ratio;
  const auto t = static_cast<double>(step), warmup = static_cast<double>(deck.lr.warmup_steps),
             stable_to = warmup + static_cast<double>(deck.lr.stable_steps);
  if (t <= warmup) return highest * t / warmup;
  if (t <= stable_to || deck.lr.decay == Decay::kConstant) return highest;
  if (deck.lr.decay == Decay::kInverseSqrt)
    return highest * std::max(lowest_ratio, std::sqrt(std::max(1.0, stable_to) / t));
  const double progress = std::min(1.0, (t - stable_to) / static_cast<double>(deck.lr.decay_steps));
  if (deck.lr.decay == Decay::kLinear) return highest * (1 - (1 - lowest_ratio) * progress);
  if (deck.lr.decay == Decay::kOneMinusSqrt) return highest * (1 - (1 - lowest_ratio) * std::sqrt(progress));
  return highest * (lowest_ratio + (1 - lowest_ratio) * (1 + std::cos(std::numbers::pi * progress)) / 2);
}

}  // namespace

double LearningRate(const Deck& deck, int64_t step) { return RateOf(deck, deck.optimizer.lr, step); }
double MuonLearningRate(const Deck& deck, int64_t step) { return RateOf(deck, deck.optimizer.muon_lr, step); }

}  // namespace espalier
