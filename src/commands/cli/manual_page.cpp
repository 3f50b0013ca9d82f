#include "commands/cli/manual_page.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <string_view>
#include <variant>
#include <vector>

#include "commands/cli/usage.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/environment.hpp"

namespace espalier {
namespace {

/// Text that troff prints unchanged: no commands, no hyphenation, no typographic quotes.
std::string Plain(std::string_view text) {
  std::string plain = "\\&";
  for (const char c : text) {
    switch (c) {
      case '\\':
        plain += "\\e";
        break;
      case '-':
        plain += "\\-";
        break;
      case '\'':
        plain += "\\(aq";
        break;
      case '`':
        plain += "\\(ga";
        break;
      case '^':
        plain += "\\(ha";
        break;
      case '~':
        plain += "\\(ti";
        break;
      default:
        plain += c;
    }
  }
  return plain;
}

std::string Bold(std::string_view text) { return "\\fB" + Plain(text) + "\\fR"; }
std::string Italic(std::string_view text) { return "\\fI" + Plain(text) + "\\fR"; }

std::string SectionHead(std::string_view title) { return fmt::format(".SH {}\n", title); }

/// A paragraph with a hanging head.
std::string Entry(const std::string& head, const std::string& text) { return ".TP\n" + head + "\n" + text + "\n"; }

/// "-r, --restart latest|DIR".
std::string OptionHead(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(Bold("-" + name));
  for (const std::string& name : option.get_lnames()) names.push_back(Bold("--" + name));
  std::string head = fmt::format("{}", fmt::join(names, ", "));
  if (option.get_items_expected_max() > 0) head += " " + Italic(option.get_type_name());
  return head;
}

std::string OptionText(const CLI::Option& option) {
  std::string text = Plain(option.get_description());
  if (!option.get_default_str().empty()) text += Plain(" (default " + option.get_default_str() + ")");
  return text + (option.get_required() ? Plain("; required") : "");
}

/// "espalier plan DECK [key=value ...] [options]".
std::string Synopsis(const CLI::App& command) {
  std::string text =
      Bold("espalier") + (command.get_name() == "run" ? " [" + Bold("run") + "]" : " " + Bold(command.get_name()));
  bool options = false;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional())
      text += option->get_required() ? " " + Italic(option->get_name()) : " [" + Italic(option->get_name()) + " ...]";
    options |= !option->get_positional() && option != command.get_help_ptr();
  }
  return text + (options ? " [options]" : "");
}

std::string Command(const CLI::App& command) {
  std::string text = fmt::format(".SS {}\n{}\n.PP\n{}\n", command.get_name(), Synopsis(command),
                                 Plain(command.get_description() + "."));
  for (const CLI::Option* option : command.get_options()) {
    if (option == command.get_help_ptr()) continue;
    text += Entry(option->get_positional() ? Italic(option->get_name()) : OptionHead(*option), OptionText(*option));
  }
  return text;
}

std::string DeckKeyEntry(const DeckKey& key) {
  std::string kind = std::string(TypeName(key));
  if (std::holds_alternative<Required>(key.fallback)) kind += ", required";
  if (const auto* value = std::get_if<DeckValue>(&key.fallback)) kind += ", default " + ToToml(*value);
  if (const auto* derived = std::get_if<Derived>(&key.fallback)) kind += ", default " + std::string(derived->text);
  if (const std::string allowed = AllowedText(key.allowed); !allowed.empty()) kind += "; allowed: " + allowed;
  return Entry(Bold(key.FullName()), Plain(std::string(key.sentence)) + "\n.br\n" + Plain("(" + kind + ")"));
}

std::string DeckKeys() {
  std::string text;
  for (const DeckSection& section : DeckSections()) {
    text += fmt::format(".SS [{}]\n{}\n", section.name, Plain(std::string(section.sentence) + "."));
    for (const DeckKey& key : DeckSchema())
      if (key.section == section.name) text += DeckKeyEntry(key);
  }
  return text;
}

std::string Environment() {
  std::string text;
  for (const EnvironmentVariable& variable : EnvironmentVariables())
    text += Entry(Bold(variable.name), Plain(variable.meaning));
  return text;
}

constexpr std::string_view kDescription =
    R"(Espalier reads an input deck and compiles it into one program per rank: which operations,
in which order, with which messages, at which byte of memory. Without a command it trains: under mpirun or srun with
pipeline, data, context and tensor parallel ranks, alone as one rank. The same command again continues a run from its
latest checkpoint.)";

constexpr std::string_view kDeck =
    R"(A deck is a TOML file. Arguments of the form key=value set keys on the command line; the value is TOML, and a
bare word is a string. The sections and keys of decks:)";

struct Named {
  const char *name, *meaning;
};

constexpr Named kStatuses[] = {
    {"0", "every step of the deck is done"},
    {"75", "stopped early with a committed checkpoint: run the same command again"},
    {"2", "the deck or the command line is wrong: all errors are listed"},
    {"3", "data or a checkpoint is refused: what, where, why"},
    {"4", "the run does not fit in memory: which rank, how many bytes, of what"},
    {"1", "any other error"},
};

constexpr Named kFiles[] = {
    {"runs/NAME", "what a run of the deck NAME.toml writes, unless run.dir is set: metrics.jsonl and checkpoints/"},
    {"PREFIX/share/espalier/inputs", "decks to start from"},
    {"PREFIX/share/espalier/jobscripts", "scripts for workstations and for Slurm"},
    {"PREFIX/share/doc/espalier", "the documentation"},
};

constexpr Named kExamples[] = {
    {"espalier plan deck.toml --ranks 64", "Layout, timeline and memory on 64 ranks. Runs nothing."},
    {"mpirun -n 8 espalier deck.toml run.steps=1000", "Trains on 8 ranks."},
    {"kill -USR1 PID", "PID of mpirun: the run saves the step it is in and stops with exit status 75."},
    {"espalier sample runs/deck/checkpoints/latest --prompt \"The \"", "Continues a text by the trained model."},
};

template <size_t kCount>
std::string Entries(const Named (&list)[kCount]) {
  std::string text;
  for (const Named& entry : list) text += Entry(Bold(entry.name), Plain(entry.meaning));
  return text;
}

}  // namespace

std::string ManualPage(const CLI::App& app) {
  std::string text = fmt::format(
      ".\\\" Made by `espalier doc-man`.\n.TH ESPALIER 1 \"\" \"espalier {}\" \"User Commands\"\n.ad l\n.nh\n",
      kVersion);
  text += SectionHead("NAME") + app.get_name() + " \\- " + Plain(app.get_description()) + "\n";
  text += SectionHead("SYNOPSIS");
  for (const CLI::App* command : ListedCommands(app)) text += Synopsis(*command) + "\n.br\n";
  text += Bold("espalier help") + " [" + Italic("COMMAND") + " | " + Italic("SECTION") + " | " + Italic("KEY") + " | " +
          Bold("all") + "]\n.br\n";
  text += Bold("espalier --version") + "\n";
  text += SectionHead("DESCRIPTION") + Plain(kDescription) + "\n" + SectionHead("COMMANDS");
  for (const CLI::App* command : ListedCommands(app)) text += Command(*command);
  text += SectionHead("DECKS") + Plain(kDeck) + "\n" + DeckKeys();
  text += SectionHead("EXIT STATUS") + Entries(kStatuses);
  text += SectionHead("ENVIRONMENT") + Environment();
  text += SectionHead("FILES") + Entries(kFiles);
  text += SectionHead("EXAMPLES") + Entries(kExamples);
  text += SectionHead("SEE ALSO") + "\\fBmpirun\\fR(1), \\fBsrun\\fR(1)\n";
  return text;
}

}  // namespace espalier
