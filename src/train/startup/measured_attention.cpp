#include "train/startup/measured_attention.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "espalier/comm/agreement.hpp"
#include "espalier/executor/demands.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"
#include "train/startup/measurements.hpp"

namespace espalier {
namespace {

constexpr std::string_view kBackwardIsAuto = "run.attention_backward = \"auto\"";

/// The times of all demands, with what the file knows. On rank 0.
std::vector<TimedAttention> KnownOrTimed(CudaModule& module, const Platform& platform,
                                         const std::vector<AttentionDemand>& demands) {
  const auto began = std::chrono::steady_clock::now();
  const std::string path = FileOfMeasurements("attention", platform);
  const auto known = ReadMeasurements<TimedAttention>(path, platform, kBackwardIsAuto);
  AttentionTimes measured{platform, {}};
  const std::vector<std::string> ways = DeterministicWays();
  std::vector<TimedAttention> timed;
  for (const AttentionDemand& demand : demands) {
    const TimedAttention* found = known.Find(demand);
    if (found == nullptr)
      found = &measured.entries.emplace_back(
          TimeWays(module, demand, ways, [](const std::string& way, const std::string& why) {
            spdlog::info("attention backward: {} is left out: {}", way, why);
          }));
    timed.push_back(*found);
    timed.back().call.calls = demand.calls;
  }
  const size_t count = measured.entries.size();
  std::erase_if(measured.entries, [](const TimedAttention& call) { return !call.lasting; });
  if (count > 0) AddMeasurements(path, kBackwardIsAuto, std::move(measured));
  spdlog::info("attention backward: {} calls known, {} measured in {:.1f} s, {}", demands.size() - count, count,
               MillisecondsSince(began) * 1e-3, path);
  return timed;
}

}  // namespace

bool ChoosesBackward(const Deck& deck) {
  return deck.run.attention_backward == AttentionBackward::kAuto && deck.run.deterministic &&
         deck.run.deterministic_attention;
}

std::vector<std::string> MeasuredWays(CudaModule& module, const std::vector<AttentionDemand>& demands, World& world) {
  const Platform here = module.PlatformOfAttention();
  AttentionTimes untimed{here, {}};
  for (const AttentionDemand& demand : demands) untimed.entries.push_back({demand, {}});
  const std::vector<std::string> all = world.Gather(untimed.Text());
  return OnRankZero(world, [&] {
    std::vector<AttentionDemand> of_all;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const AttentionTimes of_rank = AttentionTimes::Parse(all[rank], fmt::format("attention of rank {}", rank));
      if (of_rank.platform != here) {
        spdlog::warn("{}: rank 0 computes on {} with {}, rank {} on {} with {}: all take \"{}\"", kBackwardIsAuto,
                     here.gpu, here.library, rank, of_rank.platform.gpu, of_rank.platform.library,
                     DeterministicWays().front());
        return std::vector{DeterministicWays().front()};
      }
      for (const TimedAttention& timed : of_rank.entries) AddDemand(timed.call, of_all);
    }
    const TimesByWay step = TimesOfStep(KnownOrTimed(module, here, of_all));
    std::vector<std::string> ways = FastestWays(step);
    if (ways.empty()) {
      spdlog::info("attention backward: no way of cuDNN computes all calls: run.attention_backward has no effect");
      return std::vector{DeterministicWays().front()};
    }
    std::vector<std::string> texts;
    for (const auto& [way, time] : step) texts.push_back(fmt::format("{} {:.3f} ms", way, time / 1000));
    spdlog::info("attention backward: {} is the fastest way of a step: {}", ways.front(), fmt::join(texts, ", "));
    return ways;
  });
}

}  // namespace espalier
