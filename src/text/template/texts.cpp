#include "text/template/texts.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace espalier::jinja {
namespace {

/// Bytes of Python's white space at text[at]; 0: none.
size_t BlankBytes(std::string_view text, size_t at) {
  const auto c = static_cast<unsigned char>(text[at]);
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f) ? 1 : 0;
  for (const std::string_view blank :
       {"\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007",
        "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"})
    if (text.substr(at).starts_with(blank)) return blank.size();
  return 0;
}

std::string InAscii(std::string_view name, const std::string& text) {
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
    Fail(fmt::format("{}: letters beyond ASCII are not supported", name));
  return text;
}
char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

}  // namespace

std::string Strip(std::string_view text, const std::optional<std::string>& set, Side side) {
  std::vector<std::string_view> characters = CharactersOf(text);
  const auto goes = [&](std::string_view c) {
    return set ? set->find(c) != std::string::npos : BlankBytes(c, 0) == c.size();
  };
  size_t begin = 0, end = characters.size();
  if (side != Side::kRight)
    while (begin < end && goes(characters[begin])) ++begin;
  if (side != Side::kLeft)
    while (end > begin && goes(characters[end - 1])) --end;
  std::string out;
  for (size_t i = begin; i < end; ++i) out += characters[i];
  return out;
}

std::string InCase(std::string_view name, std::string text, Letters letters) {
  text = InAscii(name, text);
  for (size_t i = 0; i < text.size(); ++i)
    text[i] =
        letters == Letters::kUpper || (letters == Letters::kCapitalized && i == 0) ? Upper(text[i]) : Lower(text[i]);
  return text;
}
std::string Titled(std::string text) {
  text = InCase("title", std::move(text), Letters::kLower);
  for (size_t i = 0; i < text.size(); ++i)
    if (i == 0 || std::string_view(" \t\n\r\f\v-({[<").find(text[i - 1]) != std::string_view::npos)
      text[i] = Upper(text[i]);
  return text;
}
std::string MethodTitled(std::string text) {
  text = InCase("title", std::move(text), Letters::kLower);
  for (size_t i = 0; i < text.size(); ++i)
    if (i == 0 || Lower(text[i - 1]) < 'a' || Lower(text[i - 1]) > 'z') text[i] = Upper(text[i]);
  return text;
}

std::string Replaced(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                     Budget& budget) {
  if (from.empty()) Fail("replace: the text to find is empty");
  std::string out;
  size_t at = 0;
  for (size_t found; most != 0 && (found = text.find(from, at)) != text.npos; at = found + from.size(), --most) {
    budget.Spend(found - at + to.size());
    out += text.substr(at, found - at) + to;
  }
  return out + text.substr(at);
}

Value Split(const std::string& text, Reader& reader, bool from_right) {
  const std::optional<std::string> by = reader.TakeText("sep");
  int64_t most = reader.WholeOr("maxsplit", -1);
  std::vector<Value> parts;
  if (!by) {
    if (most >= 0) Fail("split: maxsplit without a separator is not supported");
    std::string word;
    for (const std::string_view c : CharactersOf(text + " ")) {
      if (BlankBytes(c, 0) == 0)
        word += c;
      else if (!word.empty())
        parts.push_back({std::exchange(word, {})});
    }
    return MakeList(std::move(parts));
  }
  if (by->empty()) Fail("split: the separator is empty");
  size_t begin = 0, end = text.size();
  for (; most != 0; --most) {
    const size_t at =
        from_right ? (end < by->size() ? text.npos : text.rfind(*by, end - by->size())) : text.find(*by, begin);
    if (at == text.npos) break;
    parts.push_back(
        {from_right ? text.substr(at + by->size(), end - at - by->size()) : text.substr(begin, at - begin)});
    (from_right ? end : begin) = from_right ? at : at + by->size();
  }
  parts.push_back({text.substr(begin, end - begin)});
  if (from_right) std::ranges::reverse(parts);
  return MakeList(std::move(parts));
}

bool HasEdge(const std::string& text, const Value& edges, bool at_end) {
  const std::vector<Value> all = edges.Text() != nullptr ? std::vector{edges} : ElementsOf(edges);
  return std::ranges::any_of(all, [&](const Value& edge) {
    if (edge.Text() == nullptr) Fail(fmt::format("startswith, endswith: {} is no str", TypeName(edge)));
    return at_end ? text.ends_with(*edge.Text()) : text.starts_with(*edge.Text());
  });
}

std::string Indented(const std::string& text, Reader& reader, Budget& budget) {
  const std::optional<Value> width = reader.Take("width");
  std::string by = "    ";
  if (width && width->Text() != nullptr)
    by = *width->Text();
  else if (width)
    by = std::string(static_cast<size_t>(std::clamp<int64_t>(width->Whole().value_or(-1), 0, 1000)), ' ');
  const bool first = reader.TruthOr("first", false), blank = reader.TruthOr("blank", false);
  std::string out = first ? by : "";
  for (size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (text[i] != '\n') continue;
    const bool empty = i + 1 == text.size() || text[i + 1] == '\n';
    budget.Spend(by.size());
    if (blank || !empty) out += by;
  }
  return out;
}

}  // namespace espalier::jinja
