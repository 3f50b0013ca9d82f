// The number of steps of a run, for commands that do not train.
#pragma once

#include <string>

#include "espalier/deck/parse.hpp"

namespace espalier {

struct CountedSteps {
  LoadedDeck loaded;  ///< with run.steps if it is known
  std::string words;  ///< how run.steps follows from run.epochs, or why it is unknown yet; empty: the deck sets
                      ///< run.steps
};

/// Opens the data if the deck sets run.epochs and the number of samples is known without counting. Data that cannot be
/// opened are no error here. Throws UserError (kDeck) as WithStepsOfEpochs does.
CountedSteps CountSteps(LoadedDeck loaded);

/// The deck with run.steps. Throws UserError (kDeck) if the number is not known yet.
LoadedDeck RequireSteps(LoadedDeck loaded);

}  // namespace espalier
