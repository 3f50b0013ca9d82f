// Checks, before anything is written, that all ranks have the same build and deck, and see the same data and run
// directory.
#pragma once

#include <string>

#include "espalier/comm/world.hpp"
#include "espalier/data/token_source.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/train/trainer.hpp"

namespace espalier {

/// Throws UserError (kDeck) everywhere, naming the first rank whose build, --restart, environment (variables that
/// change how a run computes) or deck differs from rank 0's, and every key that differs, with both values. Collective.
void AgreeOnDeck(World& world, const RunOptions& options, const LoadedDeck& loaded);

/// Reads the files of run.costs and pipeline.file on every rank (costs/order.hpp). Throws AgreedError everywhere: why
/// rank 0 cannot read one, or (kDeck) naming all ranks that cannot, or that read other contents: they would order their
/// messages differently. Collective.
void AgreeOnOrder(World& world, Deck& deck);

/// Throws UserError (kDeck) everywhere, naming the first rank whose kernels have another instruction level than rank
/// 0's: results that must be equal on all ranks would differ in bits. Collective.
void AgreeOnLevel(World& world);

/// Throws UserError (kData) everywhere, naming the first rank whose files of `key` differ from rank 0's, and the first
/// such file. Collective.
void AgreeOnData(World& world, const std::string& key, const TokenSource& source);

/// Rank 0 makes a folder that every rank must see: a rank that does not see it within 5 s is on another file system.
/// Throws UserError (kDeck) everywhere, naming the first such rank. Collective.
void MakeSharedFolder(World& world, const std::string& folder);

}  // namespace espalier
