#include "commands/cli/arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "espalier/deck/parse.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/spelling.hpp"

namespace espalier {
namespace {

/// An option as written: "--lr 3", "--lr=3".
struct WrittenOption {
  std::string text, name, value;  ///< the name without dashes
};

bool LooksLikeOption(const std::string& text) { return text.size() > 1 && text[0] == '-' && text != "--"; }

/// The command's option; null if it has none of this name.
const CLI::Option* OptionOf(const CLI::App& command, const std::string& text) {
  return command.get_option_no_throw(text.starts_with("--") ? text.substr(0, text.find('=')) : text.substr(0, 2));
}

/// True if the value of this option is the next argument.
bool TakesNext(const CLI::Option& option, const std::string& text) {
  const bool inside = text.starts_with("--") ? text.find('=') != text.npos : text.size() > 2;
  return option.get_items_expected_max() > 0 && !inside;
}

/// An option whose value may be left out has a default for that, and then takes only a number as its value: what
/// follows may be a deck.
bool HasOptionalNumber(const CLI::Option& option) {
  return option.get_items_expected_min() == 0 && option.get_items_expected_max() > 0 &&
         !option.get_default_str().empty();
}

bool IsWholeNumber(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool MayBeValue(const std::string& text) {
  std::error_code ignored;
  return !LooksLikeOption(text) && text.find('=') == text.npos && !text.ends_with(".toml") &&
         !std::filesystem::exists(text, ignored);
}

std::vector<std::string> LongNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  return names;
}

/// Launchers' names for the number of ranks.
bool MeansRanks(const std::string& name) {
  constexpr std::string_view kNames[] = {"n", "np", "nproc", "nproc_per_node", "ntasks", "ranks", "world_size"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

bool ReadsDeck(const CLI::App& command) { return command.get_option_no_throw("DECK") != nullptr; }

/// The option that was probably meant; empty if none is near.
std::string Meant(const CLI::App& command, const WrittenOption& option) {
  std::string word = option.name;
  std::ranges::replace(word, '-', '_');
  const bool takes_keys = command.get_option_no_throw("key=value") != nullptr;
  if (MeansRanks(word)) {
    const std::string ranks = option.value.empty() ? "N" : option.value;
    if (command.get_option_no_throw("--ranks") != nullptr) return "--ranks " + ranks;
    if (takes_keys && ReadsDeck(command)) return fmt::format("mpirun -n {} espalier ...", ranks);
  }
  const std::string key = takes_keys && !option.value.empty() ? NearestKey(word) : "";
  const std::string known = Nearest(option.name, LongNames(command));
  if (!key.empty() && (known.empty() || key.ends_with("." + word))) return key + "=" + option.value;
  return known.empty() ? "" : fmt::format("--{}{}{}", known, option.value.empty() ? "" : " ", option.value);
}

std::string ErrorOf(const CLI::App& command, const WrittenOption& option) {
  const std::string meant = Meant(command, option);
  std::vector<std::string> names = LongNames(command);
  for (std::string& name : names) name.insert(0, "--");
  return fmt::format("command line: {}: unknown option of {}{}", option.text, command.get_name(),
                     meant.empty() ? fmt::format(" (allowed: {})", fmt::join(names, ", ")) : DidYouMean(meant));
}

/// The option at the front of `rest`, which loses it and its value.
WrittenOption TakeOption(std::vector<std::string>& rest) {
  WrittenOption option{rest[0], rest[0].substr(rest[0].find_first_not_of('-')), ""};
  rest.erase(rest.begin());
  if (const size_t equals = option.name.find('='); equals != option.name.npos) {
    option.value = option.name.substr(equals + 1);
    option.name.resize(equals);
  } else if (!rest.empty() && MayBeValue(rest[0])) {
    option.value = rest[0];
    option.text += " " + rest[0];
    rest.erase(rest.begin());
  }
  return option;
}

}  // namespace

SortedArguments SortArguments(const CLI::App& command, const std::vector<std::string>& arguments) {
  SortedArguments sorted;
  std::vector<std::string> rest = arguments;
  const auto keep = [&] {
    sorted.known.push_back(rest[0]);
    rest.erase(rest.begin());
  };
  while (!rest.empty()) {
    const std::string text = rest[0];
    const bool named = LooksLikeOption(text) && text.find_first_not_of('-') != text.npos;
    if (!named) {
      if (text != "--") sorted.positionals.push_back(text);
      keep();
    } else if (const CLI::Option* option = OptionOf(command, text)) {
      keep();
      if (HasOptionalNumber(*option)) {
        if (text.find('=') != text.npos) continue;
        const bool given = !rest.empty() && IsWholeNumber(rest[0]);
        sorted.known.back() += "=" + (given ? rest[0] : option->get_default_str());
        if (given) rest.erase(rest.begin());
        continue;
      }
      if (TakesNext(*option, text) && !rest.empty()) keep();
    } else {
      sorted.errors.push_back(ErrorOf(command, TakeOption(rest)));
    }
  }
  return sorted;
}

std::vector<std::string> ErrorsOfDeck(const CLI::App& command, const std::vector<std::string>& positionals) {
  if (!ReadsDeck(command) || positionals.empty()) return {};
  try {
    LoadDeck(positionals[0], {positionals.begin() + 1, positionals.end()});
    return {};
  } catch (const UserError& error) {
    return error.messages();
  }
}

}  // namespace espalier
