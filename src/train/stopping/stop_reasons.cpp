#include "train/stopping/stop_reasons.hpp"

#include <fmt/core.h>

#include <cstdlib>
#include <ctime>

#include "espalier/train/stop_signals.hpp"

namespace espalier {
namespace {

double SecondsSince(StopReasons::Clock::time_point start) {
  return std::chrono::duration<double>(StopReasons::Clock::now() - start).count();
}

double EpochSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string LocalTime(double epoch_s) {
  const auto seconds = static_cast<std::time_t>(epoch_s);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%F %T", &parts)};
}

std::string SlurmEnd() {
  const char* end = std::getenv("SLURM_JOB_END_TIME");
  return end == nullptr ? "" : end;
}

}  // namespace

StopReasons::StopReasons(const Deck& deck, World& world, Clock::time_point began) : world_(world), began_(began) {
  if (world.Rank() == 0) limit_ = FindTimeLimit(deck, SlurmEnd(), EpochSeconds() - SecondsSince(began));
}

std::string StopReasons::Notice() const {
  if (!limit_.Set()) return "";
  const TimeEnd& end = limit_.end();
  return fmt::format("stops by itself before {} ({}), {:.0f} s kept free beside a step and a save",
                     LocalTime(EpochSeconds() - SecondsSince(began_) + end.at_s), end.what, end.margin_s);
}

std::string StopReasons::StopReason(double beside_ms, double save_ms) const {
  if (const int signal = StopSignal(); signal != 0)
    return fmt::format("{} to rank {}", StopSignalName(signal), world_.Rank());
  if (limit_.Reached(SecondsSince(began_), beside_ms / 1e3, save_ms / 1e3)) return limit_.end().what;
  return "";
}

std::string StopReasons::AllReasons(const std::string& own) const {
  constexpr int kShown = 4;  // a launcher may forward a signal to thousands of ranks
  std::string text;
  int more = -kShown;
  for (const std::string& reason : world_.Gather(own)) {
    if (reason.empty() || ++more > 0) continue;
    text += (text.empty() ? "" : ", ") + reason;
  }
  return more > 0 ? fmt::format("{} and {} more", text, more) : text;
}

}  // namespace espalier
