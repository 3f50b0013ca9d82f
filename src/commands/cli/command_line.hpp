// The command line: its commands and options, and the job that given arguments request.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "commands/cli/first_rank.hpp"

namespace CLI {
class App;
}

namespace espalier {

class CommandLine {
 public:
  CommandLine();
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// All commands with their options, types and descriptions, from which the help and other documents of the command
  /// line are made. Commands with an empty group are not listed.
  const CLI::App& Definitions() const { return *app_; }

  /// The job that `arguments` (without the program's name) request. A deck or an option in place of a command means
  /// `run`. Throws UserError (kDeck) naming every argument that is unknown or wrong.
  CommandJob Read(std::vector<std::string> arguments);

 private:
  std::unique_ptr<CLI::App> app_;
  CommandJob job_;  ///< set by the callback of the command that was parsed
};

}  // namespace espalier
