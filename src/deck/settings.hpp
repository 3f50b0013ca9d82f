// Settings as written: the values of decks, includes and the command line before anything is known of their meaning.
// The only place that knows the TOML library.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/deck/schema.hpp"

namespace espalier {

struct RawSetting {
  std::string name;                ///< "model.heads"; the name alone for what stands outside any section
  std::optional<DeckValue> value;  ///< nothing if no key can hold it: a table, a date, a mixed list
  std::string shown;               ///< for messages: "model.heads = 7", or the override as typed
  std::string place;               ///< "tiny.toml:12", "command line"
  std::filesystem::path folder;    ///< where relative paths start
  bool section = false;            ///< a table that has the name of no section
  bool reported = false;           ///< the line is not TOML: a mistake that is listed already
};

/// What a file or text holds.
struct RawDeck {
  std::vector<RawSetting> settings;  ///< rising precedence: those of includes first, each file's in the order of lines
  bool whole = true;                 ///< false: part of it could not be read, so keys may be missing for that reason
};

using Mistakes = std::vector<std::string>;

/// A deck file with its includes.
RawDeck ReadDeckFile(const std::string& path, Mistakes& mistakes);

/// A text without includes; `label` names it in places ("label:12").
RawDeck ReadDeckText(std::string_view text, const std::string& label, Mistakes& mistakes);

/// One "key=value" of the command line; nothing if it cannot be read.
std::optional<RawSetting> ReadOverride(const std::string& text, Mistakes& mistakes);

}  // namespace espalier
