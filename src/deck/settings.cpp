#include "espalier/deck/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "check_text.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"
#include "key_parts.hpp"
#include "text.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxIncludeDepth = 16;
constexpr int kMaxIncludes = 64;
constexpr size_t kMaxShown = 80;

/// A text in a form for the TOML library, which is unsafe beyond ASCII: other bytes are replaced by words that the text
/// does not contain.
class AsciiForm {
 public:
  explicit AsciiForm(std::string_view text) {
    const auto beyond = [](char c) { return (c & 0x80) != 0; };
    if (std::ranges::any_of(text, beyond)) lead_ = Unused(text);
    for (char c : text)
      ascii_ += beyond(c) ? fmt::format("{}{:02x}", lead_, static_cast<unsigned char>(c)) : std::string(1, c);
  }

  const std::string& ascii() const { return ascii_; }

  std::string Back(std::string_view text) const {
    std::string back;
    size_t at = 0;
    for (size_t next; !lead_.empty() && (next = text.find(lead_, at)) != text.npos; at = next) {
      back += text.substr(at, next - at);
      next += lead_.size();
      if (const auto byte = Hex(text.substr(next, 2), 2)) back += static_cast<char>(*byte), next += 2;
    }
    return back.append(text.substr(at));
  }
  std::optional<RawValue> ValueBack(std::optional<RawValue> value) const {
    if (!value) return value;
    if (auto* text = std::get_if<std::string>(&*value)) *text = Back(*text);
    if (auto* texts = std::get_if<std::vector<std::string>>(&*value))
      for (std::string& text : *texts) text = Back(text);
    return value;
  }

 private:
  static constexpr std::string_view kWord = "Zq";
  static constexpr size_t kDigits = 5;  // more words than a deck has room for

  static std::optional<unsigned> Hex(std::string_view text, size_t digits) {
    unsigned number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + std::min(digits, text.size()), number, 16);
    return error == std::errc{} && end == text.data() + digits ? std::optional(number) : std::nullopt;
  }
  /// The first of the words Zq00000, Zq00001, ... that the text does not contain.
  static std::string Unused(std::string_view text) {
    std::vector<bool> used(size_t{1} << (4 * kDigits));
    for (size_t at = text.find(kWord); at != text.npos; at = text.find(kWord, at + 1))
      if (const auto number = Hex(text.substr(at + kWord.size()), kDigits)) used[*number] = true;
    return fmt::format("{}{:05x}", kWord, std::ranges::find(used, false) - used.begin());
  }

  std::string lead_, ascii_;
};

bool AreNumbers(const toml::array& array) {
  return std::ranges::all_of(array, [](const toml::node& x) { return x.is_number(); });
}
std::vector<double> Numbers(const toml::array& array) {
  std::vector<double> numbers;
  for (const toml::node& x : array) numbers.push_back(*x.value<double>());
  return numbers;
}

/// A list of one element type, or of lists of numbers.
std::optional<RawValue> ListValue(const toml::array& array) {
  if (array.empty()) return RawValue(std::vector<int64_t>{});
  if (array.is_homogeneous<int64_t>()) {
    std::vector<int64_t> list;
    for (const toml::node& x : array) list.push_back(x.ref<int64_t>());
    return list;
  }
  if (array.is_homogeneous<std::string>()) {
    std::vector<std::string> list;
    for (const toml::node& x : array) list.push_back(x.ref<std::string>());
    return list;
  }
  if (AreNumbers(array)) return Numbers(array);
  std::vector<std::vector<double>> lists;
  for (const toml::node& x : array) {
    if (!x.is_array() || !AreNumbers(*x.as_array())) return std::nullopt;
    lists.push_back(Numbers(*x.as_array()));
  }
  return lists;
}

std::optional<RawValue> ToValue(const toml::node& node) {
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

/// At most kMaxShown bytes, of whole characters.
std::string Shorten(std::string text) {
  if (text.size() <= kMaxShown) return text;
  size_t end = kMaxShown - 3;
  while (end > 0 && (text[end] & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

/// Lists and tables are printed here: the library, which counts their columns first, takes unsigned numbers of negative
/// logarithms (toml++ 3.3.0).
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

/// The value in a message: one short line.
std::string Show(const toml::node& node, const AsciiForm& form) {
  if (node.is_table()) return "{...}";
  std::ostringstream text;
  Print(node, text);
  return Shorten(Printable(form.Back(text.str())));
}

std::string Place(const std::string& label, const toml::node& node) {
  return fmt::format("{}:{}", Printable(label), static_cast<int>(node.source().begin.line));
}

bool Has(const std::vector<std::string_view>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// Removes the byte order mark that some editors write first.
std::string_view WithoutMark(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  return text;
}

/// Parses one text with the TOML library, which stops at its first error. A line with an error of its own (or a key
/// that is set twice) is reported and blanked, and the text is parsed again, so that later errors are found too.
class TextParser {
 public:
  TextParser(std::string_view text, std::string label, Errors& errors)
      : label_(std::move(label)), errors_(errors), form_(text) {
    std::istringstream stream{form_.ascii()};
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

  /// Keys on lines that were blanked.
  std::vector<RawSetting> Unread() { return std::move(unread_); }

  /// The strings that occur in the table.
  const AsciiForm& form() const { return form_; }

 private:
  void Refuse(int line, std::string_view why) {
    errors_.push_back(fmt::format("{}:{}: not valid TOML: {}", label_, line, form_.Back(why)));
  }

  std::string Join() const { return fmt::format("{}\n", fmt::join(lines_, "\n")); }

  /// Reports an error and blanks its line; false if the cause is on another line or there were too many errors.
  bool StepOver(const toml::parse_error& error) {
    constexpr size_t kMaxErrors = 20;
    const auto line = static_cast<size_t>(error.source().begin.line);
    Refuse(static_cast<int>(line), error.description());
    if (line == 0 || line > lines_.size() || unread_.size() >= kMaxErrors) return false;
    std::string& text = lines_[line - 1];
    if (Trim(text).starts_with('['))
      return false;  // otherwise the following lines would belong to the previous
                     // section
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
      const size_t name = text.find_first_not_of('[');
      if (name != 0 && name != text.npos) return text.substr(name, text.find(']') - name) + ".";
    }
    return "";
  }

  std::vector<std::string> lines_;
  std::string label_;
  Errors& errors_;
  std::vector<RawSetting> unread_;
  AsciiForm form_;
};

/// Collects the settings of one parsed file in the order of its lines. `rows` counts its rows.
class Collector {
 public:
  Collector(const SettingsFormat& format, std::string label, fs::path folder, const AsciiForm& form, int& rows)
      : format_(format), label_(std::move(label)), folder_(std::move(folder)), form_(form), rows_(rows) {}

  std::vector<RawSetting> Collect(const toml::table& file) {
    for (const auto& [name, node] : file) {
      if (name.str() == "include") continue;
      if (const toml::table* table = node.as_table(); table && Has(format_.sections, name.str()))
        AddAll(name.str(), *table, -1);
      else if (node.is_array_of_tables() && Has(format_.rows, name.str()))
        for (const toml::node& row : *node.as_array()) AddAll(name.str(), *row.as_table(), rows_++);
      else
        Add(std::string(name.str()), node, -1);
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

  void AddAll(std::string_view section, const toml::table& table, int row) {
    for (const auto& [key, value] : table) Add(fmt::format("{}.{}", section, key.str()), value, row);
  }

  void Add(const std::string& written, const toml::node& node, int row) {
    const std::string name = form_.Back(written);
    RawSetting setting{name, form_.ValueBack(ToValue(node)), fmt::format("{} = {}", name, Show(node, form_)),
                       Place(label_, node), folder_};
    setting.section = node.is_table() && name.find('.') == name.npos;
    setting.row = row;
    found_.push_back({node.source().begin.line, std::move(setting)});
  }

  const SettingsFormat& format_;
  std::string label_;
  fs::path folder_;
  const AsciiForm& form_;
  int& rows_;
  std::vector<Found> found_;
};

/// Reads a file and everything it includes, depth first.
class FileReader {
 public:
  FileReader(const SettingsFormat& format, Errors& errors) : format_(format), errors_(errors) {}

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
    const std::optional<std::string> text = TextOf(path, at);
    if (!text || !CheckText(*text, path, format_.what, errors_)) return void(deck_.whole = false);
    TextParser parser(WithoutMark(*text), path, errors_);
    const std::optional<toml::table> deck = parser.Parse();
    if (!deck) return void(deck_.whole = false);
    open_.push_back(real);
    for (const auto& [include, place] : Includes(*deck, path, parser.form())) Visit(include, place);
    open_.pop_back();
    Append(Collector(format_, path, fs::path(path).parent_path(), parser.form(), rows_).Collect(*deck));
    Append(parser.Unread());
  }

  /// Nothing, and an error, if the file cannot be read.
  std::optional<std::string> TextOf(const std::string& path, const std::string& at) {
    try {
      return ReadFile(path, {format_.what, format_.max_bytes});
    } catch (const UserError& error) {
      errors_.push_back(at + error.what());
      return std::nullopt;
    }
  }

  void Append(std::vector<RawSetting> settings) { std::ranges::move(settings, std::back_inserter(deck_.settings)); }

  void Refuse(const std::string& at, const std::string& path, const std::string& why) {
    deck_.whole = false;
    errors_.push_back(fmt::format("{}{}: {}", at, path, why));
  }

  struct Include {
    std::string path, place;
  };

  std::vector<Include> Includes(const toml::table& deck, const std::string& path, const AsciiForm& form) {
    const toml::node* node = deck.get("include");
    if (!node) return {};
    const std::string place = Place(path, *node);
    const std::optional<RawValue> value = ToValue(*node);
    if (!node->is_array() || !value ||
        (!node->as_array()->empty() && !std::holds_alternative<std::vector<std::string>>(*value))) {
      deck_.whole = false;
      errors_.push_back(fmt::format("{}: include = {}: must be a list of strings, such as [\"base.toml\"]", place,
                                    Show(*node, form)));
      return {};
    }
    std::vector<Include> includes;
    for (const toml::node& x : *node->as_array())
      includes.push_back(
          {(fs::path(path).parent_path() / form.Back(x.ref<std::string>())).lexically_normal().string(), place});
    return includes;
  }

  const SettingsFormat& format_;
  Errors& errors_;
  std::vector<fs::path> open_;  ///< from the first file down to the one being read
  int files_ = 0;
  int rows_ = 0;
  RawDeck deck_;
};

/// The value of an override: TOML, or a bare word as a string. Dates and times are bare words: no key holds one. Sets
/// `error` for a text that starts like a quoted string or a list but is neither.
std::optional<RawValue> OverrideValue(const std::string& text, std::string& error) {
  if (LineOfLongKey(text) > 0) return error = kLongKey, std::nullopt;
  const AsciiForm form(text);
  try {
    const toml::table table = toml::parse("value = " + form.ascii());
    const toml::node* node = table.get("value");
    if (table.size() == 1 && node && !node->is_date() && !node->is_time() && !node->is_date_time())
      return form.ValueBack(ToValue(*node));
  } catch (const toml::parse_error& e) {
    if (std::string_view("\"'[{").find(text[0]) != std::string_view::npos) error = form.Back(e.description());
  }
  return text;
}

}  // namespace

std::optional<DeckValue> AsDeckValue(const RawValue& value) {
  return std::visit(
      [](const auto& x) -> std::optional<DeckValue> {
        if constexpr (std::is_constructible_v<DeckValue, std::in_place_type_t<std::remove_cvref_t<decltype(x)>>,
                                              decltype(x)>)
          return DeckValue(x);
        else
          return std::nullopt;
      },
      value);
}

SettingsFormat DeckFormat() {
  SettingsFormat format{"deck", {}, {}, kMaxDeckBytes};
  for (const DeckSection& section : DeckSections()) format.sections.push_back(section.name);
  return format;
}

RawDeck ReadSettingsFile(const std::string& path, const SettingsFormat& format, Errors& errors) {
  return FileReader(format, errors).Read(path);
}

RawDeck ReadSettingsText(std::string_view text, const std::string& label, const SettingsFormat& format,
                         Errors& errors) {
  if (text.size() > static_cast<size_t>(format.max_bytes)) {
    errors.push_back(
        fmt::format("{}: has {} bytes, and a {} has at most {}", label, text.size(), format.what, format.max_bytes));
    return {{}, false};
  }
  if (!CheckText(text, label, format.what, errors)) return {{}, false};
  TextParser parser(WithoutMark(text), label, errors);
  const std::optional<toml::table> table = parser.Parse();
  if (!table) return {{}, false};
  if (const toml::node* include = table->get("include"))
    errors.push_back(
        fmt::format("{}: include: only a {} in a file can include others", Place(label, *include), format.what));
  int rows = 0;
  RawDeck read{Collector(format, label, "", parser.form(), rows).Collect(*table)};
  std::ranges::move(parser.Unread(), std::back_inserter(read.settings));
  return read;
}

std::optional<RawSetting> ReadOverride(const std::string& text, Errors& errors) {
  auto refuse = [&](const std::string& shown, const std::string& why) {
    errors.push_back(fmt::format("command line: {}: {}", shown, why));
    return std::nullopt;
  };
  if (!IsPlainText(text)) return refuse("an argument", "is not UTF-8 without control characters");
  const std::string shown = Shorten(text);
  const size_t equals = text.find('=');
  if (equals == text.npos) return refuse(shown, "must be key=value, such as run.steps=20, or another deck");
  const std::string name = Trim(text.substr(0, equals)), value = Trim(text.substr(equals + 1));
  if (name == "include") return refuse(shown, "only decks can include others");
  if (value.empty()) return refuse(shown, "no value (an empty string is \"\")");
  std::string error;
  RawSetting setting{name, OverrideValue(value, error), shown, "command line", ""};
  // If a key holds a string or a list of strings, a number is a string too: run.time_limit=90.
  const DeckKey* key = FindDeckKey(name);
  const bool wants_text = key && (key->field.index() == DeckValue(std::string()).index() ||
                                  key->field.index() == DeckValue(std::vector<std::string>{}).index());
  if (setting.value && wants_text && setting.value->index() < DeckValue(std::string()).index()) setting.value = value;
  if (!error.empty()) return refuse(shown, "not valid TOML: " + error);
  return setting;
}

}  // namespace espalier
