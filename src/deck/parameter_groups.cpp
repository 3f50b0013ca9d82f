#include "espalier/deck/parameter_groups.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <vector>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr double kMax = 1e6;

std::vector<std::string> WordsOf(std::string_view text) {
  std::vector<std::string> words;
  for (size_t begin = 0; (begin = text.find_first_not_of(" \t", begin)) != text.npos;) {
    const size_t end = std::min(text.find_first_of(" \t", begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

/// A number from 0 to kMax; nothing for any other text.
std::optional<double> NumberOf(std::string_view text) {
  double x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc() || end != text.data() + text.size() || !(x >= 0 && x <= kMax)) return std::nullopt;
  return x;
}

/// Reads a setting after the pattern; returns what is wrong, or "".
std::string TakeSetting(const std::string& word, ParameterGroup& group, bool& has_lr) {
  const size_t equals = word.find('=');
  const std::string key = word.substr(0, equals);
  if (equals == word.npos || (key != "lr" && key != "decay")) return fmt::format("\"{}\" is no setting", word);
  if (key == "lr" ? has_lr : group.decay.has_value()) return fmt::format("{} is given twice", key);
  const std::optional<double> value = NumberOf(std::string_view(word).substr(equals + 1));
  if (!value) return fmt::format("\"{}\" must have a number from 0 to {:g}", word, kMax);
  if (key == "decay") {
    group.decay = value;
  } else {
    group.lr = *value;
    has_lr = true;
  }
  return "";
}

}  // namespace

ParsedGroup ParseGroup(std::string_view entry) {
  ParsedGroup parsed;
  const std::vector<std::string> words = WordsOf(entry);
  if (words.empty()) return {{}, "is empty"};
  if (words[0].starts_with("lr=") || words[0].starts_with("decay=")) return {{}, "has no pattern"};
  if (words.size() == 1) return {{}, "sets nothing"};
  parsed.group.pattern = words[0];
  bool has_lr = false;
  for (size_t i = 1; i < words.size() && parsed.fault.empty(); ++i)
    parsed.fault = TakeSetting(words[i], parsed.group, has_lr);
  return parsed;
}

// Computes rows of the table of edit distances, one per character of the pattern; * matches any characters at no cost.
int EditsToMatch(std::string_view pattern, std::string_view name) {
  std::vector<int> row(name.size() + 1), next(name.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = static_cast<int>(j);
  for (const char c : pattern) {
    next[0] = row[0] + (c == '*' ? 0 : 1);
    for (size_t j = 1; j < row.size(); ++j)
      next[j] = c == '*' ? std::min(row[j], next[j - 1])
                         : std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (c == '?' || c == name[j - 1] ? 0 : 1)});
    std::swap(row, next);
  }
  return row.back();
}

bool MatchesParameter(std::string_view pattern, std::string_view name) {
  if (EditsToMatch(pattern, name) == 0) return true;
  const size_t part = name.find('[');
  return part != name.npos && EditsToMatch(pattern, name.substr(0, part)) == 0;
}

int GroupOf(const Deck& deck, std::string_view parameter) {
  for (size_t i = 0; i < deck.optimizer.groups.size(); ++i)
    if (MatchesParameter(ParseGroup(deck.optimizer.groups[i]).group.pattern, parameter)) return static_cast<int>(i);
  return -1;
}

ParameterGroup SettingsOf(const Deck& deck, std::string_view parameter) {
  const int group = GroupOf(deck, parameter);
  return group < 0 ? ParameterGroup{} : ParseGroup(deck.optimizer.groups[static_cast<size_t>(group)]).group;
}

}  // namespace espalier
