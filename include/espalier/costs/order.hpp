// The order of overlapping work by the times of the cluster file in run.costs.
#pragma once

#include <memory>
#include <string>

#include "espalier/costs/cluster.hpp"
#include "espalier/deck/deck.hpp"

namespace espalier {

/// Reads the file of run.costs into Deck::times; nothing if the key is empty. Must come before the deck is compiled.
/// Throws UserError (kDeck) as LoadCluster does, with the name of the key.
void ReadCosts(Deck& deck);

/// The times of a cluster, whose file people know as `path`.
std::shared_ptr<const OpTimes> TimesOf(const Cluster& cluster, const std::string& path);

/// Whose times order the work of a deck, for people: "by the times of ...", or, without run.costs, that they are rough
/// ones. Empty where no order follows times.
std::string DescribeOrder(const Deck& deck);

}  // namespace espalier
