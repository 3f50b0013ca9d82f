#include "checkpoint/transfer/agree.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace espalier {
namespace {

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::string Attempt(const std::function<std::string()>& work) {
  try {
    return "+" + work();
  } catch (const std::exception& error) {
    return "-" + std::string(error.what());
  }
}

std::vector<std::string> Results(const std::vector<std::string>& attempts, ExitStatus status) {
  std::vector<std::string> results, messages;
  for (const std::string& attempt : attempts) {
    results.push_back(attempt.substr(1));
    if (attempt[0] == '+') continue;
    for (std::string& line : Lines(results.back()))
      if (std::find(messages.begin(), messages.end(), line) == messages.end()) messages.push_back(std::move(line));
  }
  if (!messages.empty()) throw AgreedError(status, Shorten(std::move(messages)));
  return results;
}

std::string FromRankZero(World& world, ExitStatus status, const std::function<std::string()>& work) {
  const std::string attempt = world.Broadcast(world.Rank() == 0 ? Attempt(work) : "");
  return Results({attempt}, status).front();
}

void OnEveryRank(World& world, ExitStatus status, const std::function<void()>& work) {
  const std::vector<std::string> attempts = world.Gather(Attempt([&] {
    work();
    return std::string();
  }));
  FromRankZero(world, status, [&] {
    Results(attempts, status);
    return std::string();
  });
}

std::vector<std::string> Shorten(std::vector<std::string> messages) {
  if (messages.size() <= kMostMessages) return messages;
  const std::string rest = fmt::format("... and {} more", messages.size() - kMostMessages);
  messages.resize(kMostMessages);
  messages.push_back(rest);
  return messages;
}

}  // namespace espalier
