// Settings as written in decks, includes and the command line, before names and types are checked. Only its source
// includes the TOML library.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/deck/schema.hpp"

namespace espalier {

struct RawSetting {
  std::string name;                ///< "model.heads"; only the name outside of any section
  std::optional<DeckValue> value;  ///< nothing if no key can hold it: a table, a date, a mixed list
  std::string shown;               ///< for messages: "model.heads = 7", or the override as typed
  std::string place;               ///< "tiny.toml:12", "command line"
  std::filesystem::path folder;    ///< where relative paths start
  bool section = false;            ///< a table whose name is not a section
  bool reported = false;           ///< the line is not TOML: an error that is listed already
};

/// The settings of a file or text.
struct RawDeck {
  std::vector<RawSetting> settings;  ///< rising precedence: includes first, each file in the order of its lines
  bool whole = true;                 ///< false: a part could not be read, so missing keys are no errors
};

using Errors = std::vector<std::string>;

/// A deck file with its includes.
RawDeck ReadDeckFile(const std::string& path, Errors& errors);

/// A text without includes; `label` names it in places ("label:12").
RawDeck ReadDeckText(std::string_view text, const std::string& label, Errors& errors);

/// One "key=value" of the command line; nothing if it cannot be read.
std::optional<RawSetting> ReadOverride(const std::string& text, Errors& errors);

}  // namespace espalier
