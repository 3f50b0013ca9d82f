// The schema of a deck as data: one row per key, bound to its field of Deck. Parsing, defaults, help, doc/deck.md and
// the effective deck all come from this table (src/deck/schema.cpp); no key exists outside it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "espalier/deck/deck.hpp"

namespace espalier {

/// The values that a key can hold. Choices are strings here: their names.
using DeckValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<std::string>,
                               std::vector<double>>;

/// An enum field, accessed by the name of its value.
struct ChoiceField {
  std::string_view (*get)(const Deck&);
  void (*set)(Deck&, std::string_view name);  ///< CHECKs that the enum has the name
};

/// The field of a Deck that a key fills; the first seven in the order of DeckValue. An int holds integers with bounds
/// that fit.
using DeckField = std::variant<bool& (*)(Deck&), int64_t& (*)(Deck&), double& (*)(Deck&), std::string& (*)(Deck&),
                               std::vector<int64_t>& (*)(Deck&), std::vector<std::string>& (*)(Deck&),
                               std::vector<double>& (*)(Deck&), int& (*)(Deck&), ChoiceField>;

/// A key that every deck must set, unless it sets another key to a value above 0. The later of the two settings, in
/// decks or on the command line, removes the earlier one.
struct Required {
  std::string_view unless = "";  ///< the full name of that key; empty: there is none
};

/// A default that follows from other keys.
struct Derived {
  std::string_view text;               ///< for people: "model.heads"
  std::vector<std::string_view> keys;  ///< keys that it reads
  DeckValue (*compute)(const Deck&);
};

using DeckDefault = std::variant<DeckValue, Required, Derived>;

/// The allowed values. Numbers (and elements of lists of numbers) have bounds; strings may have choices.
struct Allowed {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;                                       ///< the smallest value itself is not allowed
  bool below_max = false;                                       ///< the largest value itself is not allowed
  bool or_zero = false;                                         ///< 0 is allowed too, and has a meaning of its own
  std::vector<std::string_view> choices = {};                   ///< empty: any string
  std::vector<std::pair<std::string_view, double>> words = {};  ///< strings that stand for a number
  bool paths = false;  ///< files or globs: relative ones belong to the deck that names them
  bool path = false;   ///< a file or folder: relative ones belong to the working directory
};

struct DeckKey {
  std::string_view section, name;
  DeckField field;
  DeckDefault fallback;
  Allowed allowed;
  std::string_view sentence;  ///< meaning, with the unit

  /// Index in DeckValue of the key's type.
  size_t ValueIndex() const;
  std::string FullName() const { return std::string(section) + "." + std::string(name); }
};

struct DeckSection {
  std::string_view name;
  std::string_view sentence;
};

/// All sections, in the order in which decks are printed.
const std::vector<DeckSection>& DeckSections();

/// All keys, by section and in the order in which decks are printed.
const std::vector<DeckKey>& DeckSchema();

/// Row of a key by its full name ("model.heads"), or nullptr.
const DeckKey* FindDeckKey(std::string_view full_name);

/// The full name of a key that an earlier version called `full_name`; empty if none did.
std::string_view NameOfFormerKey(std::string_view full_name);

/// The full name ("section.key") of the key that `written` probably means: a misspelling, a wrong or missing section,
/// another framework's name ("hidden_size"), or the name of an earlier version. Empty if there is none.
std::string NearestKey(std::string_view written);

DeckValue Get(const Deck& deck, const DeckKey& key);

/// The value must have the key's type (CHECKed).
void Set(Deck& deck, const DeckKey& key, const DeckValue& value);

/// "an integer", "a number", "true or false", "a string", "a list of integers", "a list of
/// strings" or "a list of numbers".
std::string_view TypeName(const DeckKey& key);

/// The same by the index of a DeckValue.
std::string_view TypeName(size_t value_index);

/// Bounds or choices for people: ">= 1", "\"auto\", \"cpu\""; empty: anything.
std::string AllowedText(const Allowed& allowed);

/// Why a value is refused, with the allowed values: "out of range (allowed: >= 1)"; empty if it is allowed.
std::string FaultOf(const DeckValue& value, const Allowed& allowed);

/// The value as TOML, in ASCII; numbers with as many digits as they need to read back the same.
std::string ToToml(const DeckValue& value);

}  // namespace espalier
