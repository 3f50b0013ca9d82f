// The help texts, made from the definitions of the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>
#include <vector>

namespace espalier {

inline constexpr size_t kHelpWidth = 100;

/// The commands that the help lists.
std::vector<const CLI::App*> ListedCommands(const CLI::App& app);

/// Their names, aliases included.
std::vector<std::string> CommandNames(const CLI::App& app);

/// Title, then every listed command with its arguments and purpose.
std::string GeneralHelp(const CLI::App& app);

/// Wraps the descriptions of options at kHelpWidth.
class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kColumn); }
  std::string make_option_desc(const CLI::Option* option) const override;

 private:
  static constexpr size_t kColumn = 36;
};

}  // namespace espalier
