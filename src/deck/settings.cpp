#include "settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "key_parts.hpp"
#include "text.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxDeckBytes = 1 << 20;
constexpr size_t kMaxIncludeDepth = 16;
constexpr int kMaxIncludes = 64;
constexpr size_t kMaxShown = 80;

/// A list of one element type; an empty list fits both kinds of list (DeckValue of integers stands for it).
std::optional<DeckValue> ListValue(const toml::array& array) {
  if (array.empty()) return DeckValue(std::vector<int64_t>{});
  if (array.is_homogeneous<int64_t>()) {
    std::vector<int64_t> list;
    for (const toml::node& x : array) list.push_back(x.ref<int64_t>());
    return list;
  }
  if (!array.is_homogeneous<std::string>()) return std::nullopt;
  std::vector<std::string> list;
  for (const toml::node& x : array) list.push_back(x.ref<std::string>());
  return list;
}

std::optional<DeckValue> ToValue(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::boolean:
      return node.ref<bool>();
    case toml::node_type::integer:
      return node.ref<int64_t>();
    case toml::node_type::floating_point:
      return node.ref<double>();
    case toml::node_type::string:
      return node.ref<std::string>();
    case toml::node_type::array:
      return ListValue(*node.as_array());
    default:
      return std::nullopt;
  }
}

std::string Trim(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string Shorten(std::string text) {
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown - 3) + "...";
  return text;
}

/// Lists and tables are printed here: the library, which counts their columns first, takes unsigned numbers of negative logarithms (toml++ 3.3.0).
void Print(const toml::node& node, std::ostringstream& text) {
  const auto flags = toml::format_flags::none;
  const auto separate = [&](const char* bracket, bool first) {
    text << (first ? bracket : ",") << ' ';
    return static_cast<size_t>(text.tellp()) <= kMaxShown;
  };
  node.visit([&](const auto& n) {
    using T = std::remove_cvref_t<decltype(n)>;
    bool first = true;
    if constexpr (std::is_same_v<T, toml::array>) {
      for (const toml::node& x : n) {
        if (!separate("[", std::exchange(first, false))) break;
        Print(x, text);
      }
      text << (first ? "[]" : " ]");
    } else if constexpr (std::is_same_v<T, toml::table>) {
      for (const auto& [key, x] : n) {
        if (!separate("{", std::exchange(first, false))) break;
        text << key.str() << " = ";
        Print(x, text);
      }
      text << (first ? "{}" : " }");
    } else {
      text << toml::toml_formatter{n, flags};
    }
  });
}

/// The value as it may stand in a message: one short ASCII line.
std::string Show(const toml::node& node) {
  if (node.is_table()) return "{...}";
  std::ostringstream text;
  Print(node, text);
  std::string line = text.str();
  for (char& c : line)
    if (c < 0x20 || c >= 0x7f) c = '?';
  return Shorten(std::move(line));
}

std::string Place(const std::string& label, const toml::node& node) {
  return fmt::format("{}:{}", label, static_cast<int>(node.source().begin.line));
}

bool IsSection(std::string_view name) {
  return std::ranges::any_of(DeckSections(), [&](const DeckSection& s) { return s.name == name; });
}

/// Reports the first byte of a text that is not ASCII; true if there is none.
bool CheckAscii(std::string_view text, const std::string& label, Mistakes& mistakes) {
  int line = 1;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x7f || (byte < 0x20 && c != '\n' && c != '\t' && c != '\r')) {
      mistakes.push_back(fmt::format("{}:{}: byte 0x{:02x} is not allowed: decks are ASCII", label, line, byte));
      return false;
    }
    line += c == '\n';
  }
  return true;
}

/// One text through the TOML library. The library stops at its first mistake; a line that is broken by itself (or sets
/// a key twice) is reported, blanked and left behind, so that the mistakes after it are found too.
class TextParser {
 public:
  TextParser(std::string_view text, std::string label, Mistakes& mistakes)
      : label_(std::move(label)), mistakes_(mistakes) {
    std::istringstream stream{std::string(text)};
    for (std::string line; std::getline(stream, line);) lines_.push_back(line);
  }

  /// The table, or nothing if it cannot be recovered.
  std::optional<toml::table> Parse() {
    while (true) {
      const std::string text = Join();
      if (const int line = LineOfLongKey(text); line > 0) return Refuse(line, kLongKey), std::nullopt;
      try {
        return toml::parse(text);
      } catch (const toml::parse_error& error) {
        if (!StepOver(error)) return std::nullopt;
      }
    }
  }

  /// Keys on lines that were left behind.
  std::vector<RawSetting> Unread() { return std::move(unread_); }

 private:
  void Refuse(int line, std::string_view why) { mistakes_.push_back(fmt::format("{}:{}: not valid TOML: {}", label_, line, why)); }

  std::string Join() const { return fmt::format("{}\n", fmt::join(lines_, "\n")); }

  /// Reports a mistake and blanks its line; false if the cause lies elsewhere or there were too many.
  bool StepOver(const toml::parse_error& error) {
    constexpr size_t kMostMistakes = 20;
    const auto line = static_cast<size_t>(error.source().begin.line);
    Refuse(static_cast<int>(line), error.description());
    if (line == 0 || line > lines_.size() || unread_.size() >= kMostMistakes) return false;
    std::string& text = lines_[line - 1];
    if (Trim(text).starts_with('[')) return false;  // what follows would land in the section before
    if (error.description().find("cannot redefine") == std::string_view::npos && IsToml(text)) return false;
    RawSetting left;
    left.name = SectionAbove(line - 1) + Trim(text.substr(0, text.find('=')));
    left.reported = true;
    unread_.push_back(std::move(left));
    text.clear();
    return true;
  }

  static bool IsToml(const std::string& line) {
    if (LineOfLongKey(line) > 0) return false;
    try {
      (void)toml::parse(line);
      return true;
    } catch (const toml::parse_error&) {
      return false;
    }
  }

  /// "model." below a line [model].
  std::string SectionAbove(size_t line) const {
    while (line-- > 0) {
      const std::string text = Trim(lines_[line]);
      if (text.starts_with('[')) return text.substr(1, text.find(']') - 1) + ".";
    }
    return "";
  }

  std::vector<std::string> lines_;
  std::string label_;
  Mistakes& mistakes_;
  std::vector<RawSetting> unread_;
};

/// Collects the settings of one parsed deck in the order of its lines.
class Collector {
 public:
  Collector(std::string label, fs::path folder) : label_(std::move(label)), folder_(std::move(folder)) {}

  std::vector<RawSetting> Collect(const toml::table& deck) {
    for (const auto& [name, node] : deck) {
      if (name.str() == "include") continue;
      const toml::table* table = node.as_table();
      if (table && IsSection(name.str()))
        for (const auto& [key, value] : *table) Add(fmt::format("{}.{}", name.str(), key.str()), value);
      else
        Add(std::string(name.str()), node);
    }
    std::ranges::stable_sort(found_, {}, &Found::line);
    std::vector<RawSetting> settings;
    for (Found& f : found_) settings.push_back(std::move(f.setting));
    return settings;
  }

 private:
  struct Found {
    uint32_t line;
    RawSetting setting;
  };

  void Add(const std::string& name, const toml::node& node) {
    RawSetting setting{name, ToValue(node), fmt::format("{} = {}", name, Show(node)), Place(label_, node), folder_};
    setting.section = node.is_table() && name.find('.') == name.npos;
    found_.push_back({node.source().begin.line, std::move(setting)});
  }

  std::string label_;
  fs::path folder_;
  std::vector<Found> found_;
};

/// Reads a deck and everything it includes, depth first.
class FileReader {
 public:
  explicit FileReader(Mistakes& mistakes) : mistakes_(mistakes) {}

  RawDeck Read(const std::string& path) {
    Visit(path, "");
    return std::move(deck_);
  }

 private:
  /// `from` is the place of the include, or empty.
  void Visit(const std::string& path, const std::string& from) {
    const std::string at = from.empty() ? "" : from + ": include ";
    std::error_code ignored;
    const fs::path real = fs::weakly_canonical(path, ignored);
    if (std::ranges::find(open_, real) != open_.end()) return Refuse(at, path, "includes itself in a circle");
    if (open_.size() >= kMaxIncludeDepth || ++files_ > kMaxIncludes)
      return Refuse(at, path, fmt::format("more than {} includes, or deeper than {}", kMaxIncludes, kMaxIncludeDepth));
    const std::optional<std::string> text = ReadFile(path, at);
    if (!text) return;
    if (!CheckAscii(*text, path, mistakes_)) return void(deck_.whole = false);
    TextParser parser(*text, path, mistakes_);
    const std::optional<toml::table> deck = parser.Parse();
    if (!deck) return void(deck_.whole = false);
    open_.push_back(real);
    for (const auto& [include, place] : Includes(*deck, path)) Visit(include, place);
    open_.pop_back();
    Append(Collector(path, fs::path(path).parent_path()).Collect(*deck));
    Append(parser.Unread());
  }

  void Append(std::vector<RawSetting> settings) { std::ranges::move(settings, std::back_inserter(deck_.settings)); }

  void Refuse(const std::string& at, const std::string& path, const std::string& why) {
    deck_.whole = false;
    mistakes_.push_back(fmt::format("{}{}: {}", at, path, why));
  }

  std::optional<std::string> ReadFile(const std::string& path, const std::string& at) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) return Refuse(at, path, "no such file"), std::nullopt;
    if (fs::is_directory(status)) return Refuse(at, path, "is a folder, not a deck"), std::nullopt;
    std::ifstream file(path, std::ios::binary);
    std::string text(kMaxDeckBytes + 1, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!file.eof() && !file.good()) return Refuse(at, path, "cannot be read"), std::nullopt;
    text.resize(static_cast<size_t>(file.gcount()));
    if (text.size() > kMaxDeckBytes) return Refuse(at, path, "is larger than 1 MiB: not a deck"), std::nullopt;
    return text;
  }

  struct Include {
    std::string path, place;
  };

  std::vector<Include> Includes(const toml::table& deck, const std::string& path) {
    const toml::node* node = deck.get("include");
    if (!node) return {};
    const std::string place = Place(path, *node);
    const std::optional<DeckValue> value = ToValue(*node);
    if (!node->is_array() || !value ||
        (!node->as_array()->empty() && !std::holds_alternative<std::vector<std::string>>(*value))) {
      deck_.whole = false;
      mistakes_.push_back(
          fmt::format("{}: include = {}: must be a list of strings, such as [\"base.toml\"]", place, Show(*node)));
      return {};
    }
    std::vector<Include> includes;
    for (const toml::node& x : *node->as_array())
      includes.push_back({(fs::path(path).parent_path() / x.ref<std::string>()).lexically_normal().string(), place});
    return includes;
  }

  Mistakes& mistakes_;
  std::vector<fs::path> open_;  ///< from the deck down to the file being read
  int files_ = 0;
  RawDeck deck_;
};

/// A text for the TOML library, which is not sound beyond ASCII: other bytes travel through it as words that the text does not hold.
class AsciiForm {
 public:
  explicit AsciiForm(const std::string& text) {
    while (text.find(lead_) != text.npos) lead_ += 'q';
    for (char c : text) ascii_ += (c & 0x80) == 0 ? std::string(1, c) : fmt::format("{}{:02x}", lead_, static_cast<unsigned char>(c));
  }

  const std::string& ascii() const { return ascii_; }

  std::string Back(std::string text) const {
    for (size_t at = text.find(lead_); at != text.npos && at + lead_.size() + 2 <= text.size(); at = text.find(lead_, at + 1))
      text.replace(at, lead_.size() + 2, 1, static_cast<char>(std::stoi(text.substr(at + lead_.size(), 2), nullptr, 16)));
    return text;
  }
  std::optional<DeckValue> Back(std::optional<DeckValue> value) const {
    if (!value) return value;
    if (auto* text = std::get_if<std::string>(&*value)) *text = Back(*text);
    if (auto* texts = std::get_if<std::vector<std::string>>(&*value))
      for (std::string& text : *texts) text = Back(text);
    return value;
  }

 private:
  std::string lead_ = "Zq", ascii_;
};

/// The value of an override: TOML, or a bare word as a string. Dates and times are bare words: no key holds one.
/// Sets `error` for what starts like a quoted string or a list and is none.
std::optional<DeckValue> OverrideValue(const std::string& text, std::string& error) {
  if (LineOfLongKey(text) > 0) return error = kLongKey, std::nullopt;
  const AsciiForm form(text);
  try {
    const toml::table table = toml::parse("value = " + form.ascii());
    const toml::node* node = table.get("value");
    if (table.size() == 1 && node && !node->is_date() && !node->is_time() && !node->is_date_time())
      return form.Back(ToValue(*node));
  } catch (const toml::parse_error& e) {
    if (std::string_view("\"'[{").find(text[0]) != std::string_view::npos) error = form.Back(std::string(e.description()));
  }
  return text;
}

}  // namespace

RawDeck ReadDeckFile(const std::string& path, Mistakes& mistakes) { return FileReader(mistakes).Read(path); }

RawDeck ReadDeckText(std::string_view text, const std::string& label, Mistakes& mistakes) {
  if (!CheckAscii(text, label, mistakes)) return {{}, false};
  TextParser parser(text, label, mistakes);
  const std::optional<toml::table> table = parser.Parse();
  if (!table) return {{}, false};
  if (const toml::node* include = table->get("include"))
    mistakes.push_back(Place(label, *include) + ": include: only a deck in a file can include others");
  RawDeck deck{Collector(label, "").Collect(*table)};
  std::ranges::move(parser.Unread(), std::back_inserter(deck.settings));
  return deck;
}

std::optional<RawSetting> ReadOverride(const std::string& text, Mistakes& mistakes) {
  auto refuse = [&](const std::string& shown, const std::string& why) {
    mistakes.push_back(fmt::format("command line: {}: {}", shown, why));
    return std::nullopt;
  };
  if (!IsPlainText(text)) return refuse("an argument", "is not UTF-8 without control characters");
  const std::string shown = Shorten(text);
  const size_t equals = text.find('=');
  if (equals == text.npos) return refuse(shown, "must be key=value, such as run.steps=20");
  const std::string name = Trim(text.substr(0, equals)), value = Trim(text.substr(equals + 1));
  if (name == "include") return refuse(shown, "only decks can include others");
  if (value.empty()) return refuse(shown, "no value (an empty string is \"\")");
  std::string error;
  RawSetting setting{name, OverrideValue(value, error), shown, "command line", ""};
  if (!error.empty()) return refuse(shown, "not valid TOML: " + error);
  return setting;
}

}  // namespace espalier
