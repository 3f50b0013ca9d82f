// Finds the fastest layout that fits: all valid degrees, schedules, chunks, splits, microbatch sizes, zero, reduce,
// recompute and context modes of a deck on a number of ranks. A lower bound on memory prunes, a formula ranks, and the
// best are compiled and simulated. Pure and deterministic.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/simulate/simulate.hpp"

namespace espalier {

struct TuneOptions {
  int simulated = 50;        ///< how many candidates are compiled and simulated
  int64_t memory_bytes = 0;  ///< of a device; 0: the cluster's, less what it reserves
};

/// A layout, by the keys of the deck that it sets.
struct Candidate {
  Deck deck;
  int64_t least_bytes = 0;            ///< no program of this layout has a smaller peak
  double formula_us = 0;              ///< the step by formula
  std::optional<int64_t> peak_bytes;  ///< once compiled
  std::optional<double> step_us;      ///< once simulated
  double measured_share = 0;          ///< of the simulated time: measured costs
  std::string limit;                  ///< what takes the time that is not compute: "idle 21 %", "exposed tp 12 %"
};

/// Why an obvious layout is not among the best: a sentence with figures.
struct Rejection {
  std::string layout;
  std::string reason;
};

struct TuneResult {
  std::vector<Candidate> ranking;  ///< simulated and fitting, fastest first
  std::vector<Rejection> rejections;
  int64_t considered = 0, invalid = 0, too_large = 0, compiled = 0;
  double margin = 0;  ///< relative: how far the second is from the first
  int near_ties = 0;  ///< candidates within the model's own error of the first
};

/// Throws UserError (kDeck) if no layout is valid, (kDoesNotFit) if none fits: with the smallest that was found.
TuneResult Tune(const Deck& deck, int ranks, const Costs& costs, const TuneOptions& options = {});

/// The keys of a candidate that differ from defaults or from `deck`, as a deck to include.
std::string AsDeck(const Candidate& candidate, const Deck& deck);

/// For an error message: the settings nearest to `deck` whose peak fits into `memory_bytes`, at most three, each as
/// "parallel.tp=4 recompute.mode=full: 71.2 GB".
std::vector<std::string> NearestThatFit(const Deck& deck, int ranks, int64_t memory_bytes);

}  // namespace espalier
