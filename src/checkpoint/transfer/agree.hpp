// Work that may fail on some ranks, ended by an agreement: every rank goes on or every rank throws the same
// AgreedError, so nobody waits for one that has left.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/util/agreed_error.hpp"

namespace espalier {

/// At most this many messages are told; the rest are counted.
inline constexpr size_t kMostMessages = 20;

/// What `work` returned, or why it threw: "+result" or "-message". Never throws.
std::string Attempt(const std::function<std::string()>& work);

/// Results of the attempts, by rank; throws AgreedError with every different message if one of them failed.
std::vector<std::string> Results(const std::vector<std::string>& attempts, ExitStatus status);

/// Rank 0 does the work; every rank gets its result or throws what it threw.
std::string FromRankZero(World& world, ExitStatus status, const std::function<std::string()>& work);

/// Every rank does its work; all throw if one of them did.
void OnEveryRank(World& world, ExitStatus status, const std::function<void()>& work);

/// Keeps the first kMostMessages and says how many more there are.
std::vector<std::string> Shorten(std::vector<std::string> messages);

}  // namespace espalier
