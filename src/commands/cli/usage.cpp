#include "commands/cli/usage.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "espalier/util/wrap.hpp"

namespace espalier {
namespace {

/// "[-r latest|DIR]", "--deck DECK".
std::string UsageOf(const CLI::Option& option) {
  const std::string name = option.get_snames().empty() ? "--" + option.get_lnames()[0] : "-" + option.get_snames()[0];
  const std::string text = option.get_items_expected_max() == 0 ? name : name + " " + option.get_type_name();
  return option.get_required() ? text : "[" + text + "]";
}

/// A command with its arguments and purpose, for the general help.
std::string UsageOf(const CLI::App& command) {
  constexpr size_t kSummary = 42, kIndent = 11;
  std::string head = "  espalier " + (command.get_name() == "run" ? "[run]" : command.get_name()),
              options(kIndent, ' ');
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional())
      head += option->get_required() ? " " + option->get_name() : fmt::format(" [{} ...]", option->get_name());
    else if (option != command.get_help_ptr())
      options += (options.size() == kIndent ? "" : " ") + UsageOf(*option);
  }
  std::string text = fmt::format("{:<{}} {}", head, kSummary - 1, command.get_description());
  text = Wrap(text, kHelpWidth, kSummary) + "\n";
  if (options.size() > kIndent) text += Wrap(options, kHelpWidth, kIndent) + "\n";
  return text;
}

constexpr std::string_view kFirstRuns =
    "  espalier llama/tiny.toml                               train a small model on its own sources\n"
    "  espalier llama/tiny.toml data.paths=my.txt run.dir=my  train it on your own text\n"
    "  espalier sample my --prompt \"The \"                     let the model continue a text\n";

}  // namespace

std::vector<const CLI::App*> ListedCommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : ListedCommands(app)) {
    names.push_back(command->get_name());
    std::ranges::copy(command->get_aliases(), std::back_inserter(names));
  }
  return names;
}

std::string GeneralHelp(const CLI::App& app) {
  std::string text = fmt::format("{}: {}\n\n{}\n", app.get_name(), app.get_description(), kFirstRuns);
  for (const CLI::App* command : ListedCommands(app)) text += UsageOf(*command);
  return text + "  espalier COMMAND --help\n  espalier help [COMMAND | SECTION | KEY | all]\n  espalier --version\n";
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return Wrap(option->get_description(), kHelpWidth - kColumn, 0);
}

}  // namespace espalier
