// Settings as written in decks, cluster files, their includes and the command line, before names and types are checked.
// Only its source (src/deck/settings.cpp) includes the TOML library.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "espalier/deck/schema.hpp"

namespace espalier {

/// A value as written. The types of DeckValue come first, in the same order. An empty list is a list of integers.
using RawValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<std::string>,
                              std::vector<double>, std::vector<std::vector<double>>>;

/// Nothing if no key of a deck can hold it.
std::optional<DeckValue> AsDeckValue(const RawValue& value);

struct RawSetting {
  std::string name;               ///< "model.heads"; only the name outside of any section
  std::optional<RawValue> value;  ///< nothing if no key can hold such a value: a table, a date, a mixed list
  std::string shown;              ///< for messages: "model.heads = 7", or the override as typed
  std::string place;              ///< "tiny.toml:12", "command line"
  std::filesystem::path folder;   ///< folder to which paths are relative
  bool section = false;           ///< a table whose name is not a section
  bool reported = false;          ///< the line is not TOML: its error is already reported
  int row = -1;                   ///< for an entry of a table: its number, counted over all files
};

/// A kind of file.
struct SettingsFormat {
  std::string_view what;                   ///< for messages: "deck"
  std::vector<std::string_view> sections;  ///< tables of settings
  std::vector<std::string_view> rows;      ///< arrays of tables, [[kernel]]: each row has settings of its own
  int64_t max_bytes = 0;                   ///< limit of one file
};
/// Decks: the sections of the schema.
SettingsFormat DeckFormat();

/// The settings of a file or text.
struct RawDeck {
  std::vector<RawSetting> settings;  ///< rising precedence: includes first, each file in the order of its lines
  bool whole = true;                 ///< false: a part could not be read, so missing keys are no errors
};

using Errors = std::vector<std::string>;

/// A file with its includes.
RawDeck ReadSettingsFile(const std::string& path, const SettingsFormat& format, Errors& errors);

/// A text without includes; `label` names it in places ("label:12").
RawDeck ReadSettingsText(std::string_view text, const std::string& label, const SettingsFormat& format, Errors& errors);

/// One "key=value" of the command line; nothing if it is malformed.
std::optional<RawSetting> ReadOverride(const std::string& text, Errors& errors);

}  // namespace espalier
