// Parameters with settings of their own: the entries of optimizer.groups.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "espalier/deck/deck.hpp"

namespace espalier {

struct ParameterGroup {
  std::string pattern;          ///< pattern of names; * matches any characters and ? one, dots included
  double lr = 1;                ///< factor of the learning rate
  std::optional<double> decay;  ///< weight decay of all its parameters, vectors too; none: as without the group
};

/// Reads "PATTERN lr=X decay=Y". `fault` describes a malformed text; otherwise it is empty.
struct ParsedGroup {
  ParameterGroup group;
  std::string fault;
};
ParsedGroup ParseGroup(std::string_view entry);

/// Whether a pattern matches the name of a parameter. A part of a stored tensor ("...weight[q]") also matches by the
/// name of the whole.
bool MatchesParameter(std::string_view pattern, std::string_view name);

/// The number of edits (insertions, deletions and replacements of characters) after which the pattern would match.
int EditsToMatch(std::string_view pattern, std::string_view name);

/// The first entry of optimizer.groups whose pattern matches the parameter; -1: none does.
int GroupOf(const Deck& deck, std::string_view parameter);
/// The settings of the group that matches; the defaults if none does.
ParameterGroup SettingsOf(const Deck& deck, std::string_view parameter);

}  // namespace espalier
