// The environment variables of the program: one list of all of them, with what each may say.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace espalier {

struct EnvironmentVariable {
  const char* name;
  const char* meaning;                 ///< for people, one line
  std::vector<std::string> allowed{};  ///< empty: any text, which is checked where it is used
};

/// All of them.
std::span<const EnvironmentVariable> EnvironmentVariables();

/// What a variable of the list says; none if it is unset or empty.
std::optional<std::string> FromEnvironment(const std::string& name);

/// Throws UserError (kDeck) with every variable of the list that has a value it may not have, and what it may.
void CheckEnvironment();

/// "NAME = value (meaning)" of every variable of the list that is set, and of every other name that begins like them.
std::vector<std::string> DescribeEnvironment();

}  // namespace espalier
