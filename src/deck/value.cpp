// Values of keys: access through the schema, and their text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "espalier/deck/print.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/spelling.hpp"
#include "text.hpp"

namespace espalier {
namespace {

std::string NumberText(double x) {
  if (std::abs(x) < 1e15 && x == std::trunc(x)) return fmt::format("{:.1f}", x);
  return fmt::format("{}", x);
}

/// Integral bounds print without a decimal point.
std::string BoundText(double x) {
  if (x != 0 && (std::abs(x) >= 1e15 || std::abs(x) < 1e-15)) return fmt::format("{:.3g}", x);
  return x == std::trunc(x) ? fmt::format("{:.0f}", x) : fmt::format("{}", x);
}

std::string RangeText(const Allowed& a) {
  const bool low = std::isfinite(a.min), high = std::isfinite(a.max);
  if (low && high && !a.above_min && !a.below_max)
    return fmt::format("{}{} to {}", a.or_zero ? "0, or " : "", BoundText(a.min), BoundText(a.max));
  std::string text;
  if (low) text = fmt::format("{} {}", a.above_min ? ">" : ">=", BoundText(a.min));
  if (high) text += fmt::format("{}{} {}", low ? " and " : "", a.below_max ? "<" : "<=", BoundText(a.max));
  return text;
}

std::string Quoted(const std::vector<std::string_view>& choices) {
  std::string text;
  for (std::string_view choice : choices) text += (text.empty() ? "" : ", ") + TomlString(choice);
  return text;
}

bool InBounds(double x, const Allowed& a) {
  if (std::ranges::any_of(a.words, [&](const auto& word) { return word.second == x; })) return true;
  return (a.or_zero && x == 0) || ((a.above_min ? x > a.min : x >= a.min) && (a.below_max ? x < a.max : x <= a.max));
}

bool IsChoice(const std::string& text, const Allowed& a) {
  return a.choices.empty() || std::ranges::find(a.choices, text) != a.choices.end();
}

/// Finds what is wrong with a value of the right type; empty if it is allowed.
struct Fault {
  const Allowed& allowed;

  std::string operator()(bool) const { return ""; }
  std::string operator()(int64_t x) const { return (*this)(static_cast<double>(x)); }
  std::string operator()(double x) const {
    const std::string text = AllowedText(allowed);
    if (!std::isfinite(x)) return "must be finite" + (text.empty() ? "" : fmt::format(" (allowed: {})", text));
    return InBounds(x, allowed) ? "" : fmt::format("out of range (allowed: {})", text);
  }
  std::string operator()(const std::string& x) const {
    if (!IsPlainText(x)) return "must be UTF-8 without control characters";
    if (IsChoice(x, allowed)) return "";
    std::vector<std::string> names(allowed.choices.begin(), allowed.choices.end());
    const std::string other = OtherName(x);
    const std::string meant = std::ranges::find(names, other) != names.end() ? other : Nearest(x, names);
    return fmt::format("unknown{} (allowed: {})", DidYouMean(meant), AllowedText(allowed));
  }
  std::string operator()(const std::vector<int64_t>& x) const { return First(x); }
  std::string operator()(const std::vector<double>& x) const { return First(x); }
  std::string operator()(const std::vector<std::string>& x) const {
    if (allowed.paths && std::ranges::find(x, "") != x.end()) return "a path is empty";
    return First(x);
  }

 private:
  template <typename List>
  std::string First(const List& list) const {
    for (const auto& x : list)
      if (std::string fault = (*this)(x); !fault.empty()) return fault;
    return "";
  }
};

}  // namespace

DeckValue Get(const Deck& deck, const DeckKey& key) {
  const auto read = [&](auto field) -> DeckValue {
    if constexpr (std::is_same_v<decltype(field), ChoiceField>)
      return std::string(field.get(deck));
    else if constexpr (std::is_same_v<decltype(field), int& (*)(Deck&)>)
      return int64_t{field(const_cast<Deck&>(deck))};
    else
      return field(const_cast<Deck&>(deck));  // the accessor only names a member; nothing is written
  };
  return std::visit(read, key.field);
}

void Set(Deck& deck, const DeckKey& key, const DeckValue& value) {
  CHECK(value.index() == key.ValueIndex(), "{} is set to a value of another type", key.FullName());
  const auto write = [&](auto field) {
    if constexpr (std::is_same_v<decltype(field), ChoiceField>) {
      field.set(deck, std::get<std::string>(value));
    } else if constexpr (std::is_same_v<decltype(field), int& (*)(Deck&)>) {
      field(deck) = static_cast<int>(std::get<int64_t>(value));
    } else {
      using T = std::remove_reference_t<decltype(field(deck))>;
      field(deck) = std::get<T>(value);
    }
  };
  std::visit(write, key.field);
}

size_t DeckKey::ValueIndex() const {
  if (std::holds_alternative<ChoiceField>(field)) return DeckValue(std::string()).index();
  if (std::holds_alternative<int& (*)(Deck&)>(field)) return DeckValue(int64_t{0}).index();
  return field.index();
}

std::string_view TypeName(size_t value_index) {
  constexpr std::array<std::string_view, std::variant_size_v<DeckValue>> kNames = {
      "true or false",      "an integer",        "a number",         "a string",
      "a list of integers", "a list of strings", "a list of numbers"};
  return kNames.at(value_index);
}
std::string_view TypeName(const DeckKey& key) { return TypeName(key.ValueIndex()); }

std::string AllowedText(const Allowed& allowed) {
  if (!allowed.choices.empty()) return Quoted(allowed.choices);
  std::string text = RangeText(allowed);
  for (const auto& [word, number] : allowed.words)
    text += fmt::format(", {} = {}", TomlString(word), BoundText(number));
  return text;
}

std::string FaultOf(const DeckValue& value, const Allowed& allowed) { return std::visit(Fault{allowed}, value); }

std::string TomlString(std::string_view text) {
  std::string toml = "\"";
  for (size_t i = 0; i < text.size();) {
    const char32_t c = DecodeUtf8(text, i);
    CHECK(c != kNotUtf8, "a string of the deck is not UTF-8");
    if (c == '"' || c == '\\')
      toml += fmt::format("\\{}", static_cast<char>(c));
    else if (c >= 0x20 && c < 0x7f)
      toml += static_cast<char>(c);
    else
      toml += c > 0xffff ? fmt::format("\\U{:08X}", uint32_t{c}) : fmt::format("\\u{:04X}", uint32_t{c});
  }
  return toml + "\"";
}

std::string ToToml(const DeckValue& value) {
  struct Printer {
    std::string operator()(bool x) const { return x ? "true" : "false"; }
    std::string operator()(int64_t x) const { return fmt::format("{}", x); }
    std::string operator()(double x) const { return NumberText(x); }
    std::string operator()(const std::string& x) const { return TomlString(x); }
    std::string operator()(const std::vector<int64_t>& x) const { return fmt::format("[{}]", fmt::join(x, ", ")); }
    std::string operator()(const std::vector<double>& x) const {
      std::string text;
      for (double number : x) text += (text.empty() ? "" : ", ") + NumberText(number);
      return "[" + text + "]";
    }
    std::string operator()(const std::vector<std::string>& x) const {
      std::string text;
      for (const std::string& s : x) text += (text.empty() ? "" : ", ") + TomlString(s);
      return "[" + text + "]";
    }
  };
  return std::visit(Printer{}, value);
}

}  // namespace espalier
