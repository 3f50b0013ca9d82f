// The environment variables of the program: one list of all of them, with their allowed values.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace espalier {

struct EnvironmentVariable {
  const char* name;
  const char* meaning;                 ///< for people, one line
  std::vector<std::string> allowed{};  ///< empty: any text, which is checked when it is used
};

/// All of them.
std::span<const EnvironmentVariable> EnvironmentVariables();

/// The value of a variable of the list; nullopt if it is unset or empty.
std::optional<std::string> FromEnvironment(const std::string& name);

/// Throws UserError (kDeck) that names every listed variable with an invalid value, and the allowed values.
void CheckEnvironment();

/// "NAME = value (meaning)" for every variable of the list that is set, and for all others that begin with ESPALIER_.
std::vector<std::string> DescribeEnvironment();

}  // namespace espalier
