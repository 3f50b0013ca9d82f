#include "commands/cli/completion.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <string_view>
#include <variant>
#include <vector>

#include "commands/cli/usage.hpp"
#include "espalier/deck/schema.hpp"

namespace espalier {
namespace {

/// The kind of a positional argument or of an option's value, from its name or type.
enum class Kind { kNothing, kFlag, kDeck, kFile, kFolder, kRestart, kKeys };

Kind KindOf(const CLI::Option& option) {
  const std::string type = option.get_positional() ? option.get_name() : option.get_type_name();
  if (!option.get_positional() && option.get_items_expected_max() == 0) return Kind::kFlag;
  if (type == "DECK") return Kind::kDeck;
  if (type == "FILE" || type == "FILES" || type == "FILE.html" || type == "CHECKPOINT")
    return Kind::kFile;  // checkpoints/latest is a file
  if (type == "RUNDIR" || type == "RUN..." || type == "FOLDER") return Kind::kFolder;
  if (type == "latest|DIR") return Kind::kRestart;
  if (type == "key=value") return Kind::kKeys;
  return Kind::kNothing;
}

/// "-r", "--restart".
std::vector<std::string> Names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> OptionNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : Names(*option)) names.push_back(name);
  return names;
}

std::vector<std::string> KeyNames() {
  std::vector<std::string> names;
  for (const DeckKey& key : DeckSchema()) names.push_back(key.FullName());
  return names;
}

/// Topics of the help: commands, sections and keys.
std::vector<std::string> Topics(const CLI::App& app) {
  std::vector<std::string> topics = CommandNames(app);
  for (const DeckSection& section : DeckSections()) topics.emplace_back(section.name);
  for (const std::string& key : KeyNames()) topics.push_back(key);
  topics.emplace_back("all");
  return topics;
}

/// The values of a key that can be listed.
std::vector<std::string_view> Values(const DeckKey& key) {
  if (TypeName(key) == "true or false") return {"true", "false"};
  return key.allowed.choices;
}

/// One line of a `case` for every key whose values can be listed.
std::string ValueCases(std::string_view form, size_t indent) {
  std::string text;
  for (const DeckKey& key : DeckSchema())
    if (const auto values = Values(key); !values.empty())
      text += fmt::format("{:{}}{}) {} ;;\n", "", indent, key.FullName(),
                          fmt::format(fmt::runtime(form), fmt::join(values, " ")));
  return text;
}

bool TakesDeck(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options())
    if (option->get_positional() && KindOf(*option) == Kind::kDeck) return true;
  return false;
}

/// How each shell completes a value.
struct Action {
  const char *bash, *zsh;
};
Action ActionOf(Kind kind) {
  switch (kind) {
    case Kind::kDeck:
      return {"_espalier_decks", "_files -g \"*.toml\""};
    case Kind::kFile:
      return {"_espalier_files -f", "_files"};
    case Kind::kFolder:
      return {"_espalier_files -d", "_files -/"};
    case Kind::kRestart:
      return {"_espalier_words latest; _espalier_files -d", "_espalier_restart"};
    case Kind::kKeys:
      return {"_espalier_keys", "_espalier_keys"};
    case Kind::kFlag:
    case Kind::kNothing:
      break;
  }
  return {":", " "};
}

/// Cases "command:option" for the values of options.
std::string BashOptionValues(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : ListedCommands(app))
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_positional() || KindOf(*option) == Kind::kFlag) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : Names(*option)) patterns.push_back(command->get_name() + ":" + name);
      text += fmt::format("    {}) {}; return ;;\n", fmt::join(patterns, " | "), ActionOf(KindOf(*option)).bash);
    }
  return text;
}

/// Whether the option takes all arguments after the first.
bool IsRest(const CLI::Option& option) { return KindOf(option) == Kind::kKeys || option.get_name() == "FILES"; }

/// Cases "command" for options and positional arguments. Keys follow the deck.
std::string BashArguments(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : ListedCommands(app)) {
    text += fmt::format("    {})\n      if [[ $current == -* ]]; then _espalier_words {}; return; fi\n",
                        command->get_name(), fmt::join(OptionNames(*command), " "));
    if (TakesDeck(*command)) {
      text += "      if ((arguments == 0)); then _espalier_decks; else _espalier_keys; fi ;;\n";
      continue;
    }
    std::vector<std::string> actions;
    for (const CLI::Option* option : command->get_options())
      if (option->get_positional())
        actions.push_back(fmt::format("if ((arguments {} 0)); then {}; fi",
                                      IsRest(*option) ? ">" : "==", ActionOf(KindOf(*option)).bash));
    text += fmt::format("      {} ;;\n", actions.empty() ? ":" : fmt::format("{}", fmt::join(actions, "\n      ")));
  }
  return text;
}

/// "command:option" of every option with a value, so that the value is not counted as an argument.
std::string OptionsWithValue(const CLI::App& app) {
  std::vector<std::string> patterns;
  for (const CLI::App* command : ListedCommands(app))
    for (const CLI::Option* option : command->get_options())
      if (!option->get_positional() && KindOf(*option) != Kind::kFlag)
        for (const std::string& name : Names(*option)) patterns.push_back(command->get_name() + ":" + name);
  return fmt::format("{}", fmt::join(patterns, " | "));
}

// %COMMANDS% and similar words are replaced. A word is the text between blanks: bash itself would split it at "=".
constexpr std::string_view kBash = R"(# Completion of espalier in bash. Made by `espalier doc-completion bash`.

# Words that begin like the current one.
_espalier_words() { COMPREPLY+=($(compgen -W "$*" -- "$current")); }

# Files (-f) or folders (-d).
_espalier_files() {
  local file
  compopt -o filenames 2>/dev/null
  while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen "$1" -- "$current")
}

_espalier_decks() {
  local file
  compopt -o filenames 2>/dev/null
  while IFS= read -r file; do
    if [[ -d $file || $file == *.toml ]]; then COMPREPLY+=("$file"); fi
  done < <(compgen -f -- "$current")
}

# key= and, after it, the values of a key that has a list of them.
_espalier_keys() {
  local key=${current%%=*} values= i
  if [[ $current != *=* ]]; then
    compopt -o nospace 2>/dev/null
    COMPREPLY+=($(compgen -S = -W '%KEYS%' -- "$current"))
    return
  fi
  case $key in
%VALUES%  esac
  COMPREPLY+=($(compgen -P "$key=" -W "$values" -- "${current#*=}"))
  # Where "=" separates words, the shell inserts only what follows it.
  if [[ $COMP_WORDBREAKS == *=* ]]; then
    for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=${COMPREPLY[i]#"$key="}; done
  fi
}

_espalier() {
  local line=${COMP_LINE:0:COMP_POINT} current= command=run previous= word i=1 arguments=0
  local -a words
  COMPREPLY=()
  read -ra words <<<"$line"
  if [[ $line != *[[:space:]] ]]; then
    current=${words[${#words[@]} - 1]}
    unset "words[${#words[@]} - 1]"
  fi
  if ((${#words[@]} == 1)); then
    if [[ $current == -* ]]; then
      _espalier_words --version %RUN_OPTIONS%
    else
      _espalier_words %COMMANDS% help
      _espalier_decks
    fi
    return
  fi
  case ${words[1]} in
    help | --help | -h)
      if ((${#words[@]} == 2)); then _espalier_words %TOPICS%; fi
      return ;;
    --version | -V) return ;;
    train) i=2 ;;
    %COMMAND_PATTERN%) command=${words[1]} i=2 ;;
  esac
  for (( ; i < ${#words[@]}; i++)); do
    previous=
    case $command:${words[i]} in
      %OPTIONS_WITH_VALUE%) previous=${words[i]} i=$((i + 1)) ;;
      *:-*) ;;
      *) arguments=$((arguments + 1)) ;;
    esac
  done
  # The last word is an option and waits for its value.
  if ((i == ${#words[@]})); then previous=; fi
  case $command:$previous in
%OPTION_VALUES%  esac
  case $command in
%ARGUMENTS%  esac
}

complete -F _espalier espalier
)";

void Replace(std::string& text, std::string_view name, const std::string& by) {
  const std::string mark = fmt::format("%{}%", name);
  for (size_t at = 0; (at = text.find(mark, at)) != text.npos; at += by.size()) text.replace(at, mark.size(), by);
}

/// "it's [so]: yes" as a description in a zsh specification, which is in single quotes.
std::string ZshText(std::string_view text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'')
      quoted += "'\\''";
    else if (c == '[' || c == ']' || c == ':')
      quoted += std::string("\\") + c;
    else
      quoted += c;
  }
  return quoted;
}

std::string ZshArgument(const CLI::Option& option) {
  const Kind kind = KindOf(option);
  const std::string description = ZshText(option.get_description());
  if (option.get_positional())
    return fmt::format("'{}:{}:{}'", option.get_items_expected_max() > 1 ? "*" : "1", ZshText(option.get_name()),
                       ActionOf(kind).zsh);
  const std::vector<std::string> names = Names(option);
  std::string text = fmt::format("'[{}]", description);
  if (kind != Kind::kFlag) text += fmt::format(":{}:{}", ZshText(option.get_type_name()), ActionOf(kind).zsh);
  if (names.size() == 1) return fmt::format("'{}'{}'", names[0], text);
  return fmt::format("'({})'{{{}}}{}'", fmt::join(names, " "), fmt::join(names, ","), text);
}

std::string ZshArguments(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : ListedCommands(app)) {
    text += fmt::format("    {}) _arguments", command->get_name());
    for (const CLI::Option* option : command->get_options()) text += fmt::format(" \\\n      {}", ZshArgument(*option));
    text += " ;;\n";
  }
  return text;
}

std::string ZshCommands(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : ListedCommands(app))
    text += fmt::format("    '{}:{}'\n", command->get_name(), ZshText(command->get_description()));
  return text;
}

constexpr std::string_view kZsh = R"(#compdef espalier
# Completion of espalier in zsh. Made by `espalier doc-completion zsh`.

_espalier_restart() {
  compadd latest
  _files -/
}

# key= and, after it, the values of a key that has a list of them.
_espalier_keys() {
  if ! compset -P '*='; then
    compadd -S = -- %KEYS%
    return
  fi
  case ${IPREFIX%%=*} in
%VALUES%  esac
}

_espalier() {
  local -a commands=(
%COMMAND_LIST%    'train:same as run'
    'help:help on a command, or on a section or key of decks'
  )
  local command=run
  if ((CURRENT == 2)); then
    _describe command commands
    _files -g '*.toml'
    compadd -- --help --version
    return
  fi
  case $words[2] in
    help | --help | -h)
      if ((CURRENT == 3)); then compadd -- %TOPICS%; fi
      return ;;
    --version | -V) return ;;
    train)
      shift words
      ((CURRENT--)) ;;
    %COMMAND_PATTERN%)
      command=$words[2]
      shift words
      ((CURRENT--)) ;;
  esac
  case $command in
%ARGUMENTS%  esac
}

_espalier "$@"
)";

/// The part that both scripts share.
std::string Filled(std::string_view script, const CLI::App& app) {
  std::string text(script);
  Replace(text, "COMMANDS", fmt::format("{}", fmt::join(CommandNames(app), " ")));
  Replace(text, "COMMAND_PATTERN", fmt::format("{}", fmt::join(CommandNames(app), " | ")));
  Replace(text, "TOPICS", fmt::format("{}", fmt::join(Topics(app), " ")));
  Replace(text, "KEYS", fmt::format("{}", fmt::join(KeyNames(), " ")));
  return text;
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  std::string text = Filled(kBash, app);
  for (const CLI::App* command : ListedCommands(app))
    if (command->get_name() == "run")
      Replace(text, "RUN_OPTIONS", fmt::format("{}", fmt::join(OptionNames(*command), " ")));
  Replace(text, "VALUES", ValueCases("values='{}'", 4));
  Replace(text, "OPTIONS_WITH_VALUE", OptionsWithValue(app));
  Replace(text, "OPTION_VALUES", BashOptionValues(app));
  Replace(text, "ARGUMENTS", BashArguments(app));
  return text;
}

std::string ZshCompletion(const CLI::App& app) {
  std::string text = Filled(kZsh, app);
  Replace(text, "VALUES", ValueCases("compadd -- {}", 4));
  Replace(text, "COMMAND_LIST", ZshCommands(app));
  Replace(text, "ARGUMENTS", ZshArguments(app));
  return text;
}

}  // namespace espalier
