// The commands that look at this machine: calibrate and selftest.
#pragma once

#include "commands/cli/first_rank.hpp"

namespace CLI {
class App;
}

namespace espalier {

/// Each adds its command, whose callback sets `job`; both must outlive the parser.
void AddCalibrate(CLI::App& app, CommandJob& job);
void AddSelfTest(CLI::App& app, CommandJob& job);

}  // namespace espalier
