// Work that may fail on some ranks, followed by an agreement: either all ranks continue, or all throw the same
// AgreedError. No rank waits for one that has left. All functions are collective.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "espalier/comm/pack.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/util/agreed_error.hpp"

namespace espalier {

/// Which exceptions count as failures that ranks agree on, and the message of the AgreedError. Any other exception
/// passes through and ends the job (World::Fail).
struct FailureRules {
  /// Empty: UserErrors, with their status, and errors of the file system (kFault) are failures. The highest status
  /// wins; the first rank that failed with it supplies the messages. Set: every exception is a failure with this
  /// status. The messages of all ranks are listed, each once, shortened to kMaxMessages.
  std::optional<ExitStatus> status = {};
};

/// For reading and writing checkpoints, where ranks fail for different reasons, each worth a message.
inline FailureRules AnyFailureIs(ExitStatus status) { return {status}; }

/// Every rank does `work`; if it fails on any rank, all ranks throw.
void OnAllRanks(World& world, const std::function<void()>& work, const FailureRules& rules = {});

/// Rank 0 does `work`; all ranks return its result, or throw if it failed. TextOnRankZero is for work that packs.
std::string TextOnRankZero(World& world, const std::function<std::string()>& work, const FailureRules& rules);
template <typename Work>
auto OnRankZero(World& world, const Work& work, const FailureRules& rules = {}) {
  return Unpack<std::invoke_result_t<Work>>(TextOnRankZero(
      world, [&] { return Pack(work()); }, rules));
}

/// Every rank does `work`, and none throws yet: rank 0 gets the outcome of each rank, the others nothing.
std::vector<std::string> GatherAttempts(World& world, const std::function<std::string()>& work, ExitStatus status);
/// The results of the attempts, by rank; throws AgreedError with the messages of all ranks that failed.
std::vector<std::string> ResultsOf(const std::vector<std::string>& attempts, ExitStatus status);

/// The values of all ranks, by rank, on rank 0; nothing on the others.
template <typename T>
std::vector<T> Gathered(World& world, const T& mine) {
  std::vector<T> ranks;
  for (const std::string& packed : world.Gather(Pack(mine))) ranks.push_back(Unpack<T>(packed));
  return ranks;
}

/// The lists of all ranks, one after the other, on every rank.
template <typename T>
std::vector<T> OfAllRanks(World& world, const std::vector<T>& mine) {
  std::vector<T> all;
  for (std::vector<T>& list : Gathered(world, mine)) std::ranges::move(list, std::back_inserter(all));
  return Unpack<std::vector<T>>(world.Broadcast(Pack(all)));
}

/// Under AnyFailureIs, the largest number of messages that an AgreedError lists; then it gives the number of further
/// ones.
inline constexpr size_t kMaxMessages = 20;
std::vector<std::string> Shorten(std::vector<std::string> messages);

}  // namespace espalier
