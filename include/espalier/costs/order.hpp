// The files that put the work of a deck in order: the cluster file of run.costs, whose times overlapping work follows,
// and the pipeline schedule of pipeline.file.
#pragma once

#include <memory>
#include <string>

#include "espalier/costs/cluster.hpp"
#include "espalier/deck/deck.hpp"

namespace espalier {

/// Reads the file of run.costs into Deck::times; nothing if the key is empty. Must come before the deck is compiled.
/// Throws UserError (kDeck) as LoadCluster does, with the name of the key.
void ReadCosts(Deck& deck);

/// The times of a cluster, whose file people know as `path`. Times of sums follow run.deterministic.
std::shared_ptr<const OpTimes> TimesOf(const Cluster& cluster, const std::string& path, const Deck& deck);

/// Reads the file of pipeline.file into Deck::Pipeline::of_file, if pipeline.schedule is "file". Must come before the
/// deck is compiled. Throws UserError as ReadScheduleFile does, with the name of the key.
void ReadSchedule(Deck& deck);

/// Both.
void ReadOrder(Deck& deck);

/// Path and checksum of the file of pipeline.file; "" with another schedule.
std::string OriginOfSchedule(const Deck& deck);
/// The name of the schedule, or OriginOfSchedule.
std::string DescribeSchedule(const Deck& deck);

/// Whose times order the work of a deck, for people: "by the times of ...", or, without run.costs, that they are rough
/// ones. Empty where no order follows times.
std::string DescribeOrder(const Deck& deck);

}  // namespace espalier
