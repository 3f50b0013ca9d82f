#include "train/together.hpp"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <vector>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

void Together(World& world, const std::function<void()>& work) {
  std::string mine;
  ExitStatus status = ExitStatus::kDone;
  try {
    work();
  } catch (const UserError& error) {
    status = error.status();
    mine = error.what();
  } catch (const std::filesystem::filesystem_error& error) {
    status = ExitStatus::kFault;
    mine = error.what();
  }
  const int64_t worst = world.Max(static_cast<int64_t>(status));
  if (worst == 0) return;
  std::string first;
  for (const std::string& message : world.Gather(status == static_cast<ExitStatus>(worst) ? mine : ""))
    if (first.empty()) first = message;
  throw AgreedError(static_cast<ExitStatus>(worst), Lines(world.Broadcast(first)));
}

std::string OnRankZero(World& world, const std::function<std::string()>& work) {
  std::string text;
  Together(world, [&] {
    if (world.Rank() == 0) text = work();
  });
  return world.Broadcast(text);
}

}  // namespace espalier
