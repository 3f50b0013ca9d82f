// Completion of the command line in bash and zsh: commands, options and their values, decks, keys of decks and their
// values.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace espalier {

/// The script that bash-completion loads for `espalier`. Needs only bash.
std::string BashCompletion(const CLI::App& app);

/// The function `_espalier` for zsh's completion system.
std::string ZshCompletion(const CLI::App& app);

}  // namespace espalier
