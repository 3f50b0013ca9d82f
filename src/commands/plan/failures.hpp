// plan --failures: what a job does after the loss of nodes, in figures.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "commands/simulate/figures.hpp"
#include "espalier/tune/fallback.hpp"

namespace espalier {

/// How often to save into one place, and what failures cost then.
struct BestInterval {
  double young_s = 0, daly_s = 0;
  double interval_s = 0;  ///< Daly's, but at least one step, and the time until the last save counts
  double goodput = 0;     ///< 0 to 1
  double least_goodput = 0, most_goodput = 0;  ///< at half and at twice the time between failures
};

/// Where a new start finds its state: copies in the memory of nodes, or checkpoint files.
struct StateSource {
  std::string name;                            ///< "memory", "files"
  std::string unknown = {};                    ///< why the rest is not known; empty: it is
  double save_s = 0;                           ///< that a save keeps training waiting
  double behind_s = 0;                         ///< from there until the save counts
  double load_s = 0;                           ///< until all ranks have their state
  double recover_s = 0;                        ///< from the failure until work goes on
  std::optional<BestInterval> best = {};       ///< nothing: no time between failures is given
  std::optional<double> goodput_of_deck = {};  ///< at the deck's own interval; files only
};

/// A job with a number of nodes.
struct Situation {
  int lost = 0, left = 0, nodes = 0, ranks = 0;
  std::string layout = {};  ///< empty: none is valid and fits
  std::string keys = {};    ///< the layout as a deck to give after the deck; empty for the deck's own
  nlohmann::ordered_json mesh = {};
  Figures figures = {};
  double speed = 0;            ///< tokens per second, relative to the deck's own layout
  double mtbf_s = 0;           ///< of the job; 0: unknown
  double deck_interval_s = 0;  ///< between two checkpoints of the deck, at the middle of the range; 0: only at the end
  std::vector<StateSource> sources = {};
};

struct FailurePlan {
  std::string deck;
  Cluster cluster;
  std::string mtbf_origin;  ///< "--node-mtbf"; empty: unknown
  double node_mtbf_s = 0;
  std::vector<Situation> situations;  ///< the deck's own layout, then the loss of 1, 2, ... nodes
};

struct FailureQuestion {
  const LoadedDeck& loaded;
  int ranks = 1;
  Target target;
  int losses = 2;
  std::optional<double> node_mtbf_hours;  ///< not set: the cluster file's
};

/// Throws UserError: kDeck if the job has too few nodes, kDoesNotFit if the deck itself does not fit.
FailurePlan PlanFailures(FailureQuestion question);

void PrintFailures(const FailurePlan& plan);
nlohmann::ordered_json ToJson(const FailurePlan& plan);

}  // namespace espalier
