// run.init_from: the weights that a new run starts from.
#pragma once

#include "espalier/comm/world.hpp"
#include "espalier/deck/parse.hpp"
#include "train/programs.hpp"

namespace espalier {

/// Fills the weights of every rank from a run, a checkpoint or a Hugging Face folder, in any layout. Collective. The
/// keys of the model must agree as for a restart; rank 0 reports what was loaded, and which keys change the outputs.
/// Throws the same UserError (kData) on every rank.
void LoadInitialWeights(const LoadedDeck& deck, const Programs& programs, World& world);

}  // namespace espalier
