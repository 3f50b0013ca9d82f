// Options of the commands that use a trained model.
#pragma once

#include <CLI/CLI.hpp>

#include "commands/cli/first_rank.hpp"

namespace espalier {

/// Each function adds a command to the program; if the user calls it, `job` becomes its work.
void AddSample(CLI::App& app, CommandJob& job);
void AddEvaluate(CLI::App& app, CommandJob& job);

}  // namespace espalier
