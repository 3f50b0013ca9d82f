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

}  // namespace

std::set<std::string> Probe(const std::vector<std::string>& hosts, size_t enough, const ProbeOptions& options) {
  const auto began = std::chrono::steady_clock::now();
  std::set<std::string> answered;
  std::vector<std::string> waiting;
  for (const std::string& host : hosts) {
    if (host != options.this_host) {
      waiting.push_back(host);
    } else {
      CleanHost(options.on_host);
      answered.insert(host);
    }
  }
  std::map<std::string, std::unique_ptr<ChildProcess>> running;
  double deadline_s = options.patience_s;
  bool sufficed = false;
  while ((!waiting.empty() || !running.empty()) && MillisecondsSince(began) * 1e-3 < deadline_s) {
    for (; !waiting.empty() && running.size() < kAtOnce; waiting.pop_back()) {
      const std::vector<std::string> words = OnHostWords(options.launcher, waiting.back(), ProgramOn(options.on_host));
      running[waiting.back()] = std::make_unique<ChildProcess>(words, Output::kCaptured);
    }
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

}  // namespace espalier
