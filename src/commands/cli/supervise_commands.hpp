// The commands of supervised runs: supervise, and on-host, which it runs on each host.
#pragma once

#include "commands/cli/first_rank.hpp"

namespace CLI {
class App;
}

namespace espalier {

/// Each adds its command, whose callback sets `job`; both must outlive the parser.
void AddSupervise(CLI::App& app, CommandJob& job);
void AddOnHost(CLI::App& app, CommandJob& job);

}  // namespace espalier
