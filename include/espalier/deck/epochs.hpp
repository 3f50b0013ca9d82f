// The number of steps of a run whose length is given in passes over its data (run.epochs).
#pragma once

#include <cstdint>
#include <string>

#include "espalier/deck/parse.hpp"

namespace espalier {

/// The deck says run.epochs, and nobody has counted the samples yet: run.steps is 0.
inline bool AwaitsData(const Deck& deck) { return deck.run.epochs > 0; }

/// The deck with the number of steps instead of run.epochs: the most whole steps, of the sizes that the batch ramp
/// gives them, that fit into run.epochs passes over `samples`. Keys whose defaults follow from run.steps follow it;
/// `origins` names the samples. Unchanged if the deck says run.steps. Throws UserError (kDeck) with the place of
/// run.epochs if not one step fits, or if run.steps may not be so many.
LoadedDeck WithStepsOfEpochs(LoadedDeck loaded, int64_t samples);

/// What makes the run longer than it is: "run.steps=N above 240", or "a larger run.epochs" if that gave its steps.
std::string LongerRun(const LoadedDeck& loaded, int64_t steps);

}  // namespace espalier
