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
  int simulated = 150;                  ///< how many candidates are compiled and simulated at most
  int64_t memory_bytes = 0;             ///< of a device; 0: the cluster's, less what it reserves
  std::vector<std::string> fixed = {};  ///< keys that stay at the deck's value: "parallel.tp"
  int threads = 2;                      ///< the result does not depend on it
  /// Instructions of all programs that are simulated: long programs leave room for fewer candidates.
  int64_t instructions = 5'000'000;
  /// The shares on the host of the fastest few are chosen again, each as with "auto".
  bool refine_offload = false;
};

/// A simulated layout.
struct Candidate {
  Deck deck;                ///< with the candidate's keys; dp_shard is a number
  std::string layout;       ///< "tp 8 pp 16 dp 128 1f1b micro 1"
  int64_t least_bytes = 0;  ///< no program of this layout has a smaller peak
  double formula_us = 0;    ///< the step by formula
  int64_t peak_bytes = 0;   ///< of the largest rank, over all programs of a run
  double step_us = 0;
  Breakdown breakdown;        ///< of the rank that ends last
  double measured_share = 0;  ///< of the time of all instructions: costs that were measured or interpolated
  std::string limit;          ///< what takes the most time besides compute: "idle 21 %", "exposed tp 12 %"
};

/// Why an obvious layout is not among the best: a sentence with figures.
struct Rejection {
  std::string layout;
  std::string reason;
};

struct TuneResult {
  int64_t memory_bytes = 0;        ///< that candidates had to fit
  std::vector<Candidate> ranking;  ///< simulated and fitting, fastest first
  std::optional<size_t> baseline;  ///< the fastest with 1F1B or interleaved and no cp, copies of shards, joint jobs
  size_t choice = 0;               ///< the recommended one: of the near ties, the best measured and plainest
  std::vector<Rejection> rejections;
  std::vector<std::string> rules;  ///< what the search left out, a sentence each
  int64_t considered = 0;          ///< layouts with different programs
  int64_t invalid = 0;             ///< that break a relation of the deck
  int64_t too_large = 0;           ///< whose lower bound on memory does not fit
  int64_t scored = 0;              ///< by formula: all others
  int64_t compiled = 0;            ///< of the best of these
  int64_t compiled_too_large = 0;  ///< of the compiled: those whose exact peak does not fit
  int64_t expected_too_large = 0;  ///< not compiled, since a smaller model, or similar ones, did not fit
  double margin = 0;               ///< relative: how far the second is from the first
  std::string offload;             ///< what is on the host, since nothing fits without; empty: what the deck says
  size_t near_ties = 0;            ///< how many others are within kModelError of the first
};

/// Relative difference of predicted step times below which an order is not to be relied on. Published step times of one
/// software stack are met within about this (doc/decisions/tune.md).
inline constexpr double kModelError = 0.03;

/// Throws UserError (kDeck) if no layout is valid or a fixed key is unknown, (kDoesNotFit) if none fits: with the
/// smallest that was found.
TuneResult Tune(const Deck& deck, int ranks, const Costs& costs, const TuneOptions& options = {});

/// The same. If nothing fits and the deck keeps everything on the device, the state of the optimizer moves to the host,
/// and if that does not help, all that may; unless a key of [offload] is fixed.
TuneResult TuneWithOffload(const Deck& deck, int ranks, const Costs& costs, const TuneOptions& options = {});

/// The chosen layout with the projections of attention joined (fusion.join_matmuls), which a search leaves as they are,
/// since sums are then grouped differently. Only if it fits and its simulated step is shorter.
std::optional<Candidate> ChoiceWithJoinedHeads(const TuneResult& result, int ranks, const Costs& costs,
                                               const TuneOptions& options = {});

/// The smallest power of two below `ranks` on which a layout fits, as by TuneWithOffload with few simulations.
struct FewestRanks {
  int ranks = 0;
  TuneResult result;
};
std::optional<FewestRanks> FindFewestRanks(const Deck& deck, int ranks, const Costs& costs, TuneOptions options);

/// The step of the fastest layout by formula alone, in us: nothing is compiled. Nothing if no layout is valid, or none
/// fits. Throws UserError (kDeck) if a fixed key is unknown.
std::optional<double> FastestByFormula(const Deck& deck, int ranks, const Costs& costs, const TuneOptions& options);

/// "tp 8 pp 16 dp 128 1f1b micro 1", of a deck on so many ranks.
std::string LayoutName(const Deck& deck, int ranks);

/// The keys that a search sets, of one candidate, as a deck to include; those that have no effect are left out unless
/// `deck` sets them differently.
std::string AsDeck(const Candidate& candidate, const Deck& deck);

/// For an error message: the settings nearest to `deck` whose peak fits into `memory_bytes` on as many ranks, at most
/// three, each as "parallel.tp = 4 with recompute.mode = \"full\" (71.2 GB per rank)". Takes two seconds at most.
std::vector<std::string> NearestThatFit(const Deck& deck, int ranks, int64_t memory_bytes);

}  // namespace espalier
