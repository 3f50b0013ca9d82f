#include "supervise/probe.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>

#include "espalier/util/clock.hpp"
#include "supervise/child_process.hpp"

namespace espalier {
namespace {

constexpr size_t kAtOnce = 64;
constexpr auto kProbeTick = std::chrono::milliseconds(20);

std::vector<std::string> ProgramOn(const OnHostOptions& options) {
  std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe"), "on-host", options.run_dir,
                                    fmt::format("--since={:.0f}", options.since)};
  if (!options.memory.empty()) words.push_back("--memory=" + options.memory);
  return words;
}

/// Runs `program` on the hosts. Once `enough` have answered, the others get as long again, at least a second.
std::set<std::string> RunOn(std::vector<std::string> waiting, const Launcher& launcher,
                            const std::vector<std::string>& program, size_t enough, double deadline_s) {
  const auto began = std::chrono::steady_clock::now();
  std::set<std::string> answered;
  std::map<std::string, std::unique_ptr<ChildProcess>> running;
  bool sufficed = false;
  while ((!waiting.empty() || !running.empty()) && MillisecondsSince(began) * 1e-3 < deadline_s) {
    for (; !waiting.empty() && running.size() < kAtOnce; waiting.pop_back())
      running[waiting.back()] =
          std::make_unique<ChildProcess>(OnHostWords(launcher, waiting.back(), program), Output::kCaptured);
    std::erase_if(running, [&](const auto& entry) {
      const std::optional<int> status = entry.second->Poll();
      if (status == 0) answered.insert(entry.first);
      return status.has_value();
    });
    if (!sufficed && answered.size() >= enough) {
      sufficed = true;
      const double took_s = MillisecondsSince(began) * 1e-3;
      deadline_s = std::min(deadline_s, took_s + std::max(1.0, took_s));
    }
    std::this_thread::sleep_for(kProbeTick);
  }
  return answered;  // those that still run are killed
}

}  // namespace

std::set<std::string> WhichAnswer(const std::vector<std::string>& hosts, const Launcher& launcher, double patience_s) {
  return RunOn(hosts, launcher, {"true"}, hosts.size(), patience_s);
}

std::set<std::string> Probe(const std::vector<std::string>& hosts, size_t enough, const ProbeOptions& options) {
  std::vector<std::string> others = hosts;
  const bool here = std::erase(others, options.this_host) > 0;
  if (here) CleanHost(options.on_host);
  std::set<std::string> answered = RunOn(others, options.launcher, ProgramOn(options.on_host),
                                         enough - std::min<size_t>(enough, here ? 1 : 0), options.patience_s);
  if (here) answered.insert(options.this_host);
  return answered;
}

}  // namespace espalier
