// Arguments before they are parsed: options that a command does not have are taken out, so that the others are checked
// in the same run.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace espalier {

struct SortedArguments {
  std::vector<std::string> known;        ///< for the parser
  std::vector<std::string> positionals;  ///< arguments that are neither options nor values of options
  std::vector<std::string> errors;       ///< one for each option that the command does not have
};

/// `arguments` without the command's name. An option that the command does not have takes the word after it as its
/// value, unless that is an option, a key=value or a file.
SortedArguments SortArguments(const CLI::App& command, const std::vector<std::string>& arguments);

/// Errors of a deck and its keys, for a command line that is already refused; none if the command reads no deck.
std::vector<std::string> ErrorsOfDeck(const CLI::App& command, const std::vector<std::string>& positionals);

}  // namespace espalier
