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

/// While it exists, the default logger prints plain lines on the standard output, and gives them to a reporter once
/// there is one: so that they do not mix with the line that the console shows, and warnings get into metrics.jsonl.
/// Rank 0 prints "info" unless quiet, and "debug" if verbose; other ranks print warnings.
class RunLog {
 public:
  RunLog(int rank, Verbosity verbosity);
  /// Gives the former logger back.
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// `reporter` gets what is logged from now on, and the warnings logged before; null: none does.
  void SendTo(Reporter* reporter);

  /// On a terminal, until the next line: shows a long activity before there is a reporter; not on a quiet console.
  void Doing(std::string_view what);

 private:
  class Sink;
  const bool shows_;
  std::shared_ptr<Sink> sink_;
  std::shared_ptr<spdlog::logger> former_;
};

}  // namespace espalier
