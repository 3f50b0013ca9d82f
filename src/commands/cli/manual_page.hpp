// The manual page espalier(1), in the language of troff's man macros.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace espalier {

/// Commands and options from the definitions of the command line, keys from the schema of decks, variables from the
/// list of the environment.
std::string ManualPage(const CLI::App& app);

}  // namespace espalier
