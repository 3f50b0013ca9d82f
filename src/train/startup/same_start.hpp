// Checks before anything is written: all ranks have the same build and deck, and see the same data and run directory.
#pragma once

#include <string>

#include "espalier/comm/world.hpp"
#include "espalier/data/token_source.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/train/trainer.hpp"

namespace espalier {

/// Throws UserError (kDeck) everywhere naming the first rank whose build, --restart, environment (variables that change
/// how a run computes) or deck is not rank 0's, and every key that differs with both values. Collective.
void AgreeOnDeck(World& world, const RunOptions& options, const LoadedDeck& loaded);

/// Throws UserError (kDeck) everywhere naming the first rank whose processor's kernels are not of rank 0's instruction
/// level: what ranks compute alike would differ in bits. Collective.
void AgreeOnLevel(World& world);

/// Throws UserError (kData) everywhere naming the first rank whose files of `key` are not rank 0's, and the first file
/// that differs. Collective.
void AgreeOnData(World& world, const std::string& key, const TokenSource& source);

/// Rank 0 makes a folder that every rank must see: those that do not see it within 5 s are on another file system.
/// Throws UserError (kDeck) everywhere naming the first of them. Collective.
void MakeSharedFolder(World& world, const std::string& folder);

}  // namespace espalier
