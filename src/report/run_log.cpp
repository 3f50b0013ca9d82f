#include "espalier/report/run_log.hpp"

#include <fmt/core.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "espalier/report/block.hpp"
#include "espalier/report/report.hpp"
#include "espalier/report/terminal.hpp"
#include "report/console.hpp"

namespace espalier {
namespace {

spdlog::level::level_enum LevelOf(int rank, Verbosity verbosity) {
  if (rank != 0 || verbosity == Verbosity::kQuiet) return spdlog::level::warn;
  return verbosity == Verbosity::kVerbose ? spdlog::level::debug : spdlog::level::info;
}

}  // namespace

/// The reporter never logs, so its lock is always taken after the sink's.
class RunLog::Sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void SendTo(Reporter* reporter) {
    const std::lock_guard lock(mutex_);
    reporter_ = reporter;
    console_.Show("");
    if (reporter == nullptr) return;
    for (const std::string& warning : std::exchange(early_, {})) reporter->RecordWarning(warning);
  }

  void Show(std::string_view what) {
    const std::lock_guard lock(mutex_);
    if (reporter_ == nullptr) console_.Show(fmt::format("{} ...", what));
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string text(message.payload.data(), message.payload.size());
    const bool warns = message.level >= spdlog::level::warn;
    if (reporter_ == nullptr) {
      console_.Print(warns ? PrintWarning(text, colours_) : text + "\n");
      if (warns) early_.push_back(text);
    } else if (warns) {
      reporter_->Warn(text);
    } else {
      reporter_->Say(text, message.level == spdlog::level::info ? Worth::kNormal : Worth::kRoutine);
    }
  }

  void flush_() override {}

  Console console_{stdout};  ///< without a reporter
  const Colours colours_ = WantsColours() ? Colours::kYes : Colours::kNo;
  Reporter* reporter_ = nullptr;
  std::vector<std::string> early_;  ///< warnings before there was a reporter
};

RunLog::RunLog(int rank, Verbosity verbosity)
    : shows_(rank == 0 && verbosity != Verbosity::kQuiet),
      sink_(std::make_shared<Sink>()),
      former_(spdlog::default_logger()) {
  auto logger = std::make_shared<spdlog::logger>("", sink_);
  logger->set_level(LevelOf(rank, verbosity));
  spdlog::set_default_logger(std::move(logger));
}

RunLog::~RunLog() { spdlog::set_default_logger(former_); }

void RunLog::SetActivity(std::string_view what) {
  if (shows_) sink_->Show(what);
}

void RunLog::SendTo(Reporter* reporter) { sink_->SendTo(reporter); }

}  // namespace espalier
