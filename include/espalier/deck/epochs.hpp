// The number of steps of a run whose length is given in passes over its data (run.epochs).
#pragma once

#include <cstdint>
#include <string>

#include "espalier/deck/parse.hpp"

namespace espalier {

/// The deck sets run.epochs, and the samples have not been counted yet: run.steps is 0.
inline bool AwaitsData(const Deck& deck) { return deck.run.epochs > 0; }

/// The deck with run.steps in place of run.epochs: the largest number of whole steps, with the sizes of the batch ramp,
/// that fit into run.epochs passes over `samples`. Defaults that depend on run.steps change with it; `origins` names
/// the samples. Unchanged if the deck sets run.steps. Throws UserError (kDeck) with the place of run.epochs if not one
/// step fits, or if the number exceeds the limit of run.steps.
LoadedDeck WithStepsOfEpochs(LoadedDeck loaded, int64_t samples);

/// A setting that makes the run longer: "run.steps=N above 240", or "a larger run.epochs" if run.steps follows from it.
std::string LongerRun(const LoadedDeck& loaded, int64_t steps);

}  // namespace espalier
