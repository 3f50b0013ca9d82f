// The log (spdlog) of a run.
#pragma once

#include <memory>
#include <string_view>

#include "espalier/report/verbosity.hpp"

namespace spdlog {
class logger;
}

namespace espalier {

class Reporter;

/// While it exists, the default logger prints plain lines on the standard output, and passes them to a reporter once
/// there is one, so that they do not mix with the line that the console shows, and warnings get into metrics.jsonl.
/// Rank 0 prints "info" unless quiet, and "debug" if verbose; other ranks print warnings.
class RunLog {
 public:
  RunLog(int rank, Verbosity verbosity);
  /// Restores the former logger.
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// `reporter` gets all messages from now on, and the earlier warnings; null: no reporter.
  void SendTo(Reporter* reporter);

  /// On a terminal, until the next line: shows a long activity before there is a reporter; not on a quiet console.
  void SetActivity(std::string_view what);

 private:
  class Sink;
  const bool shows_;
  std::shared_ptr<Sink> sink_;
  std::shared_ptr<spdlog::logger> former_;
};

}  // namespace espalier
