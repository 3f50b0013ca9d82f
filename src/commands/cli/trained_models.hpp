// Options of the commands that use a trained model.
#pragma once

#include <CLI/CLI.hpp>

#include "commands/cli/first_rank.hpp"

namespace espalier {

/// Each adds a command to the program; if that is called, `job` becomes its work.
void AddSample(CLI::App& app, CommandJob& job);
void AddEvaluate(CLI::App& app, CommandJob& job);

}  // namespace espalier
