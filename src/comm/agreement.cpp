#include "espalier/comm/agreement.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <tuple>

#include "espalier/comm/pack.hpp"
#include "espalier/util/message_of.hpp"

namespace espalier {
namespace {

/// How work went on one rank.
struct Outcome {
  ExitStatus status = ExitStatus::kDone;
  std::string text;  ///< the result, or the error message

  bool Failed() const { return status != ExitStatus::kDone; }
  auto Fields() { return std::tie(status, text); }
};

Outcome Attempt(const std::function<std::string()>& work, const FailureRules& rules) {
  try {
    return {ExitStatus::kDone, work()};
  } catch (const UserError& error) {
    return {rules.status.value_or(error.status()), error.what()};
  } catch (const std::filesystem::filesystem_error& error) {
    return {rules.status.value_or(ExitStatus::kFault), error.what()};
  } catch (const std::exception& error) {
    if (!rules.status) throw;
    return {*rules.status, MessageOf(error)};
  }
}

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The messages of the failed ranks, chosen by `rules`.
std::vector<std::string> MessagesOf(const std::vector<Outcome>& ranks, ExitStatus worst, const FailureRules& rules) {
  std::vector<std::string> messages;
  for (const Outcome& rank : ranks) {
    if (rank.status != worst) continue;
    for (std::string& line : Lines(rank.text))
      if (!rules.status || std::find(messages.begin(), messages.end(), line) == messages.end())
        messages.push_back(std::move(line));
    if (!rules.status) return messages;
  }
  return Shorten(std::move(messages));
}

}  // namespace

void OnAllRanks(World& world, const std::function<void()>& work, const FailureRules& rules) {
  const Outcome mine = Attempt([&] { return work(), std::string(); }, rules);
  const auto worst = static_cast<ExitStatus>(world.Max(static_cast<int64_t>(mine.status)));
  if (worst == ExitStatus::kDone) return;
  const std::vector<Outcome> ranks = Gathered(world, mine);
  const std::string messages = world.Broadcast(Pack(MessagesOf(ranks, worst, rules)));
  throw AgreedError(worst, Unpack<std::vector<std::string>>(messages));
}

std::string TextOnRankZero(World& world, const std::function<std::string()>& work, const FailureRules& rules) {
  const std::string packed = world.Broadcast(world.Rank() == 0 ? Pack(Attempt(work, rules)) : "");
  Outcome outcome = Unpack<Outcome>(packed);
  if (outcome.Failed()) throw AgreedError(outcome.status, MessagesOf({outcome}, outcome.status, rules));
  return std::move(outcome.text);
}

std::vector<std::string> GatherAttempts(World& world, const std::function<std::string()>& work, ExitStatus status) {
  return world.Gather(Pack(Attempt(work, AnyFailureIs(status))));
}

std::vector<std::string> ResultsOf(const std::vector<std::string>& attempts, ExitStatus status) {
  std::vector<Outcome> ranks;
  for (const std::string& attempt : attempts) ranks.push_back(Unpack<Outcome>(attempt));
  if (std::any_of(ranks.begin(), ranks.end(), [](const Outcome& rank) { return rank.Failed(); }))
    throw AgreedError(status, MessagesOf(ranks, status, AnyFailureIs(status)));
  std::vector<std::string> results;
  for (Outcome& rank : ranks) results.push_back(std::move(rank.text));
  return results;
}

std::vector<std::string> Shorten(std::vector<std::string> messages) {
  // Shows the last message instead of a count of one, so that shortening twice changes nothing.
  if (messages.size() <= kMaxMessages + 1) return messages;
  const std::string rest = fmt::format("... and {} more", messages.size() - kMaxMessages);
  messages.resize(kMaxMessages);
  messages.push_back(rest);
  return messages;
}

}  // namespace espalier
