// Settings -> Deck: names, types, bounds, defaults and relations. All errors are collected.
#include "espalier/deck/parse.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "espalier/deck/find_input.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/deck/settings.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/spelling.hpp"
#include "relations.hpp"
#include "text.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

std::string WithAllowed(const std::string& what, const DeckKey& key) {
  const std::string allowed = AllowedText(key.allowed);
  return allowed.empty() ? what : fmt::format("{} (allowed: {})", what, allowed);
}

/// The value in the key's own type (integers become numbers, and so do words for them; an empty list becomes a list of
/// any type, a string a list of one).
std::optional<DeckValue> Convert(const RawValue& written, const DeckKey& key) {
  const std::optional<DeckValue> readable = AsDeckValue(written);
  if (!readable) return std::nullopt;
  const DeckValue& value = *readable;
  if (value.index() == key.ValueIndex()) return value;
  const auto* integer = std::get_if<int64_t>(&value);
  if (integer && DeckValue(0.0).index() == key.ValueIndex()) return static_cast<double>(*integer);
  const auto* text = std::get_if<std::string>(&value);
  if (text)
    for (const auto& [word, number] : key.allowed.words)
      if (*text == word) return number;
  if (text && DeckValue(std::vector<std::string>{}).index() == key.ValueIndex()) return std::vector<std::string>{*text};
  const auto* list = std::get_if<std::vector<int64_t>>(&value);
  if (list && list->empty() && DeckValue(std::vector<std::string>{}).index() == key.ValueIndex())
    return std::vector<std::string>{};
  if (list && DeckValue(std::vector<double>{}).index() == key.ValueIndex())
    return std::vector<double>(list->begin(), list->end());
  return std::nullopt;
}

/// A leading "~/" is the home of the user, as in a shell.
std::string WithHome(const std::string& path) {
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' && path.starts_with("~/") ? home + path.substr(1) : path;
}

/// Paths as the program uses them: paths in lists are absolute.
DeckValue AsPath(const DeckValue& value, const Allowed& allowed, const fs::path& folder) {
  if (allowed.path) return WithHome(std::get<std::string>(value));
  if (!allowed.paths) return value;
  std::vector<std::string> paths = std::get<std::vector<std::string>>(value);
  for (std::string& path : paths)
    path = path.empty() ? path : fs::absolute(folder / WithHome(path)).lexically_normal().string();
  return paths;
}

/// Makes -0.0 to 0.0, since it would print, and divide, differently.
DeckValue Normal(DeckValue value) {
  if (auto* x = std::get_if<double>(&value)) *x += 0.0;
  return value;
}

bool IsZero(const DeckValue& value) { return value == DeckValue(0.0) || value == DeckValue(int64_t{0}); }

/// Merges settings in rising precedence and checks the result.
class Assembler {
 public:
  /// `whole`: the decks could be read to the end, so absent keys are missing.
  Assembler(std::string name, std::string label, bool whole, Errors errors)
      : label_(std::move(label)), whole_(whole), errors_(std::move(errors)) {
    deck_.name = std::move(name);
  }

  void Apply(const RawSetting& setting) {
    if (setting.reported) return void(meant_.insert(setting.name));
    const DeckKey* key = FindDeckKey(setting.name);
    if (!key) return RefuseName(setting);
    const std::string full_name = key->FullName();
    const std::optional<DeckValue> value = setting.value ? Convert(*setting.value, *key) : std::nullopt;
    if (!value) return RefuseValue(full_name, setting, WithAllowed(fmt::format("must be {}", TypeName(*key)), *key));
    if (const std::string fault = FaultOf(*value, key->allowed); !fault.empty())
      return RefuseValue(full_name, setting, fault);
    TakeBackOther(*key, *value, setting.place);
    given_[full_name] = {Normal(AsPath(*value, key->allowed, setting.folder)), setting.place};
    // The folder to which a relative path belongs may have a name that no deck can hold.
    if (const std::string fault = FaultOf(given_[full_name].value, key->allowed); !fault.empty())
      RefuseValue(full_name, setting, fault);
  }

  LoadedDeck Finish() {
    for (const DeckKey& key : DeckSchema()) FillGivenOrDefault(key);
    for (const DeckKey& key : DeckSchema()) FillDerived(key);
    for (const Relation& relation : DeckRelations()) Check(relation);
    if (errors_.empty()) CheckLength();
    for (std::string& error : errors_) error = Printable(error);
    if (!errors_.empty()) throw UserError(ExitStatus::kDeck, std::move(errors_));
    return {std::move(deck_), std::move(origins_), {}};
  }

 private:
  struct Given {
    DeckValue value;
    std::string place;
  };

  /// Checkpoints hold the effective deck, in which every path is absolute.
  void CheckLength() {
    const auto bytes = static_cast<int64_t>(EffectiveDeck(deck_).size());
    if (bytes > kMaxDeckBytes)
      errors_.push_back(fmt::format(
          "{}: the effective deck has {} bytes, and the limit is {} (globs in data.paths are shorter than lists)",
          label_, bytes, kMaxDeckBytes));
  }

  void Refuse(const std::string& place, const std::string& shown, const std::string& why) {
    errors_.push_back(fmt::format("{}: {}: {}", place, shown, why));
  }

  void RefuseValue(const std::string& full_name, const RawSetting& setting, const std::string& why) {
    bad_.insert(full_name);
    Refuse(setting.place, setting.shown, why);
  }

  void RefuseName(const RawSetting& setting) {
    std::vector<std::string> sections;
    for (const DeckSection& s : DeckSections()) sections.emplace_back(s.name);
    if (std::ranges::find(sections, setting.name) != sections.end()) {
      MeantSection(setting.name);
      const std::string key = NearestKey(setting.name);  // lr is a key of [optimizer] too
      const bool named = key.ends_with("." + setting.name);
      if (named) meant_.insert(key);
      return Refuse(setting.place, setting.shown,
                    fmt::format("must be a section, [{}]{}", setting.name, DidYouMean(named ? key : "")));
    }
    if (++unknown_ > kMaxGuesses)
      return Refuse(setting.place, setting.shown, setting.section ? "unknown section" : "unknown key");
    if (setting.section) {
      const std::string nearest = Nearest(setting.name, sections);
      MeantSection(nearest);
      return Refuse(setting.place, "[" + setting.name + "]",
                    "unknown section" + DidYouMean(nearest.empty() ? "" : "[" + nearest + "]"));
    }
    const std::string nearest = NearestKey(setting.name);
    meant_.insert(nearest);
    Refuse(setting.place, setting.shown,
           "unknown key" + (nearest.empty() ? KeysOfSection(setting.name) : DidYouMean(nearest)));
  }

  /// " ([model] has family, layers, ...)" for "model.x"; without a known section the names of all sections.
  static std::string KeysOfSection(const std::string& name) {
    const std::string section = name.substr(0, name.find('.'));
    std::vector<std::string_view> keys, sections;
    for (const DeckKey& key : DeckSchema())
      if (key.section == section) keys.push_back(key.name);
    for (const DeckSection& s : DeckSections()) sections.push_back(s.name);
    if (keys.empty()) return fmt::format(" (sections: {})", fmt::join(sections, ", "));
    return fmt::format(" ([{}] has {})", section, fmt::join(keys, ", "));
  }

  void MeantSection(const std::string& section) {
    for (const DeckKey& key : DeckSchema())
      if (key.section == section) meant_.insert(key.FullName());
  }

  void FillGivenOrDefault(const DeckKey& key) {
    const std::string name = key.FullName();
    if (auto given = given_.find(name); given != given_.end()) return FillGiven(key, given->second);
    if (meant_.contains(name)) bad_.insert(name);
    if (const auto* value = std::get_if<DeckValue>(&key.fallback)) {
      Set(deck_, key, *value);
      origins_[name] = "default";
    } else if (const auto* required = std::get_if<Required>(&key.fallback)) {
      FillRequired(key, required->unless);
    }
  }

  /// A key that `unless` replaces is derived later; until then it is 0.
  void FillRequired(const DeckKey& key, std::string_view unless) {
    const std::string name = key.FullName();
    if (!unless.empty() && (IsAboveZero(unless) || Mentioned(std::string(unless)))) {
      origins_[name] = fmt::format("from {}", unless);
    } else if (bad_.insert(name).second && whole_) {
      const std::string or_other = unless.empty() ? "" : fmt::format(", or set {}", unless);
      Refuse(label_, name,
             WithAllowed(fmt::format("missing: every deck must set it to {}{}", TypeName(key), or_other), key));
    }
  }

  /// Set in the deck, but with a wrong value or name.
  bool Mentioned(const std::string& name) const { return bad_.contains(name) || meant_.contains(name); }

  bool IsAboveZero(std::string_view name) const {
    const auto given = given_.find(name);
    return given != given_.end() && !IsZero(given->second.value);
  }

  /// If a deck sets one of two exclusive keys, drops the value that an earlier deck gave the other one.
  void TakeBackOther(const DeckKey& key, const DeckValue& value, const std::string& place) {
    const std::string other = OtherForm(key);
    const auto given = given_.find(other);
    if (given == given_.end() || IsZero(value) || FileOf(given->second.place) == FileOf(place)) return;
    given_.erase(given);
  }
  /// "a.toml" of "a.toml:12".
  static std::string FileOf(const std::string& place) { return place.substr(0, place.rfind(':')); }
  static std::string OtherForm(const DeckKey& key) {
    const auto unless = [](const DeckKey& k) {
      const auto* required = std::get_if<Required>(&k.fallback);
      return std::string(required == nullptr ? "" : required->unless);
    };
    for (const DeckKey& k : DeckSchema())
      if (unless(k) == key.FullName()) return k.FullName();
    return unless(key);
  }

  void FillGiven(const DeckKey& key, const Given& given) {
    Set(deck_, key, given.value);
    origins_[key.FullName()] = given.place;
  }

  void FillDerived(const DeckKey& key) {
    const auto* derived = std::get_if<Derived>(&key.fallback);
    if (!derived || given_.contains(key.FullName())) return;
    if (IsAnyBad(derived->keys)) {
      bad_.insert(key.FullName());
      return;
    }
    const DeckValue value = derived->compute(deck_);
    if (const std::string fault = FaultOf(value, key.allowed); !fault.empty()) {
      bad_.insert(key.FullName());
      const auto* text = std::get_if<std::string>(&value);  // may hold a value that no deck can hold
      return Refuse(label_, fmt::format("{} = {}", key.FullName(), ToToml(text ? Printable(*text) : value)),
                    fmt::format("{} (it follows from {}: set it)", fault, derived->text));
    }
    Set(deck_, key, value);
    origins_[key.FullName()] = fmt::format("from {}", derived->text);
  }

  bool IsAnyBad(const std::vector<std::string_view>& keys) const {
    return std::ranges::any_of(keys, [&](std::string_view key) { return bad_.contains(std::string(key)); });
  }

  void Check(const Relation& relation) {
    if (IsAnyBad(relation.keys)) return;
    const std::string broken = relation.broken(deck_);
    if (broken.empty()) return;
    const std::string_view blamed = relation.keys[0];
    Refuse(PlaceOf(relation.keys), fmt::format("{} = {}", blamed, ToToml(Get(deck_, *FindDeckKey(blamed)))), broken);
  }

  /// The place of the first of these keys that is set anywhere.
  std::string PlaceOf(const std::vector<std::string_view>& keys) const {
    for (std::string_view key : keys)
      if (auto given = given_.find(key); given != given_.end()) return given->second.place;
    return label_;
  }

  /// Unknown names beyond this number are refused without a suggestion: suggestions take time, and a file with so many
  /// errors is no deck.
  static constexpr int kMaxGuesses = 100;

  std::string label_;
  bool whole_;
  int unknown_ = 0;
  Errors errors_;
  Deck deck_{};
  std::map<std::string, Given, std::less<>> given_;
  std::set<std::string> bad_;    ///< keys with a wrong value, whose error is reported already
  std::set<std::string> meant_;  ///< keys that a misspelt or broken setting probably meant: not reported as missing
  std::map<std::string, std::string, std::less<>> origins_;
};

LoadedDeck Assemble(const std::string& name, const std::string& label, RawDeck deck,
                    const std::vector<std::string>& overrides, KeyNames names, Errors errors) {
  if (names == KeyNames::kOfAnyVersion)
    for (RawSetting& setting : deck.settings)
      if (const std::string_view now = NameOfFormerKey(setting.name); !now.empty()) setting.name = now;
  for (const std::string& text : overrides)
    if (std::optional<RawSetting> setting = ReadOverride(text, errors)) deck.settings.push_back(std::move(*setting));
  Assembler assembler(name, label, deck.whole, std::move(errors));
  for (const RawSetting& setting : deck.settings) assembler.Apply(setting);
  return assembler.Finish();
}

/// If the command line gives a key twice, the last value counts, so that scripts can append arguments; a line reports
/// it.
std::vector<std::string> Repeated(const std::vector<std::string>& overrides) {
  std::vector<std::string> lines;
  std::map<std::string, std::string> last;
  for (const std::string& text : overrides) {
    std::string& before = last[text.substr(0, text.find_first_of(" \t="))];
    if (!before.empty() && before != text)
      lines.push_back(fmt::format("command line: {} has no effect: {} comes later", before, text));
    before = text;
  }
  return lines;
}

/// A file with another ending that sets no key was probably meant as data.
bool IsPlainData(const std::string& path, const RawDeck& deck) {
  std::error_code error;
  return fs::path(path).extension() != ".toml" && fs::is_regular_file(path, error) &&
         std::ranges::none_of(deck.settings, [](const RawSetting& setting) { return FindDeckKey(setting.name); });
}

RawDeck ReadDeckFile(const std::string& name, Errors& errors) {
  const std::optional<std::string> path = FindInput(name);
  if (!path) {
    errors.push_back(fmt::format("{}: no such file{}", name, WhereElse(name)));
    return {{}, false};
  }
  Errors found;
  RawDeck deck = ReadSettingsFile(*path, DeckFormat(), found);
  if (!found.empty() && IsPlainData(*path, deck)) {
    found = {
        fmt::format("{}: this is a text, not a deck: train on it with data.paths={}, such as "
                    "espalier llama/tiny.toml data.paths={}",
                    name, name, name)};
    deck = {{}, false};
  }
  std::ranges::move(found, std::back_inserter(errors));
  return deck;
}

/// A second deck among the key=value arguments.
bool IsDeck(const std::string& argument) {
  return argument.find('=') == argument.npos && (argument.ends_with(".toml") || FindInput(argument).has_value());
}

}  // namespace

LoadedDeck LoadDeck(const std::string& path, const std::vector<std::string>& overrides, KeyNames names) {
  Errors errors;
  RawDeck deck = ReadDeckFile(path, errors);
  std::vector<std::string> keys;
  for (const std::string& argument : overrides) {
    if (!IsDeck(argument)) {
      keys.push_back(argument);
      continue;
    }
    RawDeck next = ReadDeckFile(argument, errors);
    std::ranges::move(next.settings, std::back_inserter(deck.settings));
    deck.whole &= next.whole;
  }
  LoadedDeck loaded = Assemble(fs::path(path).stem().string(), path, std::move(deck), keys, names, std::move(errors));
  loaded.repeated = Repeated(keys);
  return loaded;
}

LoadedDeck ParseDeck(std::string_view text, const std::string& name, const std::vector<std::string>& overrides,
                     KeyNames names) {
  Errors errors;
  RawDeck deck = ReadSettingsText(text, name, DeckFormat(), errors);
  return Assemble(name, name, std::move(deck), overrides, names, std::move(errors));
}

}  // namespace espalier
