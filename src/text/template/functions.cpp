#include "text/template/functions.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

namespace espalier::jinja {
namespace {

constexpr int64_t kLongestRange = 100000;  // as in Jinja2's sandbox

// Arguments.

/// The argument at a place or of a name; taken out, so that what is left was not expected.
class Reader {
 public:
  Reader(std::string_view of, Arguments& arguments) : of_(of), arguments_(arguments) {}
  ~Reader() noexcept(false) {
    if (std::uncaught_exceptions() == 0) RefuseOthers();
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  std::optional<Value> Take(std::string_view name) {
    if (next_ < arguments_.positional.size()) return arguments_.positional[next_++];
    const auto found =
        std::ranges::find(arguments_.named, name, [](const auto& n) { return std::string_view(n.first); });
    if (found == arguments_.named.end()) return std::nullopt;
    Value value = std::move(found->second);
    arguments_.named.erase(found);
    return value;
  }
  Value Need(std::string_view name) {
    if (std::optional<Value> value = Take(name)) return *std::move(value);
    Fail(fmt::format("{}: the argument {} is missing", of_, name));
  }
  std::string NeedText(std::string_view name) { return TextOf(name, Need(name)); }
  std::optional<std::string> TakeText(std::string_view name) {
    const std::optional<Value> value = Take(name);
    if (!value || value->IsNone()) return std::nullopt;
    return TextOf(name, *value);
  }
  int64_t WholeOr(std::string_view name, int64_t other) {
    const std::optional<Value> value = Take(name);
    if (!value || value->IsNone()) return other;
    if (const auto whole = value->Whole()) return *whole;
    Fail(fmt::format("{}: the argument {} is {}, not int", of_, name, TypeName(*value)));
  }
  bool TruthOr(std::string_view name, bool other) {
    const std::optional<Value> value = Take(name);
    return value ? IsTrue(*value) : other;
  }
  size_t left() const { return arguments_.positional.size() - next_; }
  std::vector<std::pair<std::string, Value>> TakeNamed() { return std::exchange(arguments_.named, {}); }

 private:
  std::string TextOf(std::string_view name, const Value& value) const {
    if (value.Text() == nullptr) Fail(fmt::format("{}: the argument {} is {}, not str", of_, name, TypeName(value)));
    return *value.Text();
  }
  void RefuseOthers() const {
    if (left() > 0) Fail(fmt::format("{}: too many arguments", of_));
    if (!arguments_.named.empty())
      Fail(fmt::format("{}: the argument {} is not supported", of_, arguments_.named[0].first));
  }

  const std::string_view of_;
  Arguments& arguments_;
  size_t next_ = 0;
};

// Texts.

/// Bytes of Python's white space at text[at]; 0: there is none.
size_t BlankBytes(std::string_view text, size_t at) {
  const auto c = static_cast<unsigned char>(text[at]);
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f) ? 1 : 0;
  for (const std::string_view blank :
       {"\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007",
        "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"})
    if (text.substr(at).starts_with(blank)) return blank.size();
  return 0;
}

enum class Side : uint8_t { kLeft, kRight, kBoth };

/// Without characters of `set`, or white space, at the ends.
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

std::string InAscii(std::string_view name, const std::string& text) {
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
    Fail(fmt::format("{}: letters beyond ASCII are not supported", name));
  return text;
}
char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

enum class Letters : uint8_t { kUpper, kLower, kCapitalized };

std::string InCase(std::string_view name, std::string text, Letters letters) {
  text = InAscii(name, text);
  for (size_t i = 0; i < text.size(); ++i)
    text[i] =
        letters == Letters::kUpper || (letters == Letters::kCapitalized && i == 0) ? Upper(text[i]) : Lower(text[i]);
  return text;
}
/// The filter `title`: words begin after a blank, a hyphen or an open bracket.
std::string Titled(std::string text) {
  text = InCase("title", std::move(text), Letters::kLower);
  for (size_t i = 0; i < text.size(); ++i)
    if (i == 0 || std::string_view(" \t\n\r\f\v-({[<").find(text[i - 1]) != std::string_view::npos)
      text[i] = Upper(text[i]);
  return text;
}
/// The method `title`: words begin after anything but a letter.
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

/// One text or a tuple of them.
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

// Sequences.

int64_t LengthOf(const Value& value) {
  if (const std::string* text = value.Text()) return std::ssize(CharactersOf(*text));
  if (const Dict* dict = value.Entries(); dict != nullptr && !dict->is_namespace) return std::ssize(dict->entries);
  const List* list = value.Elements();
  if (value.IsUndefined()) return 0;
  if (list == nullptr || list->kind == Sequence::kGenerator)
    Fail(fmt::format("length: {} has none{}", TypeName(value),
                     list != nullptr ? " (use the filter list before it)" : ""));
  return std::ssize(list->items);
}

/// a.b.0 of map, selectattr and join.
Value PathOf(const Value& value, const std::string& path) {
  Value found = value;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    int64_t index = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = !part.empty() && read.ec == std::errc() && read.ptr == part.data() + part.size();
    found = ItemOf(found, is_index ? Value{index} : Value{part});
    begin = end + 1;
  }
  return found;
}

Value Joined(const Value& value, Reader& reader, Budget& budget) {
  const std::optional<Value> between = reader.Take("d");
  const std::optional<std::string> attribute = reader.TakeText("attribute");
  std::string out;
  bool first = true;
  for (const Value& item : ElementsOf(value)) {
    out += (first || !between ? "" : ToText(*between)) + ToText(attribute ? PathOf(item, *attribute) : item);
    budget.Spend(16);
    if (out.size() > size_t{1} << 27) budget.Spend(out.size());
    first = false;
  }
  return budget.Text(std::move(out));
}

/// The rest of the arguments, for a filter or a test of each element.
Arguments RestOf(Reader& reader) {
  Arguments rest;
  while (reader.left() > 0) rest.positional.push_back(reader.Need(""));
  rest.named = reader.TakeNamed();
  return rest;
}

Value Mapped(const Value& value, Reader& reader, Budget& budget) {
  std::vector<Value> out;
  if (reader.left() == 0) {
    const std::string attribute = reader.NeedText("attribute");
    const std::optional<Value> fallback = reader.Take("default");
    for (const Value& item : ElementsOf(value)) {
      Value found = PathOf(item, attribute);
      out.push_back(found.IsUndefined() && fallback ? *fallback : std::move(found));
    }
  } else {
    const std::string filter = reader.NeedText("filter");
    const Arguments rest = RestOf(reader);
    for (const Value& item : ElementsOf(value)) {
      Arguments own = rest;
      out.push_back(ApplyFilter(filter, item, own, budget));
    }
  }
  return MakeList(std::move(out), Sequence::kGenerator);
}

/// select, reject, selectattr, rejectattr.
Value Selected(const Value& value, Reader& reader, bool by_attribute, bool wanted) {
  const std::string attribute = by_attribute ? reader.NeedText("attribute") : "";
  const bool by_truth = reader.left() == 0;
  const std::string test = by_truth ? "" : reader.NeedText("test");
  const Arguments rest = RestOf(reader);
  std::vector<Value> out;
  for (const Value& item : ElementsOf(value)) {
    const Value of = by_attribute ? PathOf(item, attribute) : item;
    Arguments own = rest;
    if ((by_truth ? IsTrue(of) : ApplyTest(test, of, own)) == wanted) out.push_back(item);
  }
  return MakeList(std::move(out), Sequence::kGenerator);
}

Value ItemsOf(const Value& value, Sequence kind) {
  std::vector<Value> items;
  const Dict* dict = value.Entries();
  if (value.IsUndefined()) return MakeList({}, kind);
  if (dict == nullptr || dict->is_namespace) Fail(fmt::format("items: {} is no dict", TypeName(value)));
  for (const auto& [key, held] : dict->entries) items.push_back(MakeList({{key}, held}, Sequence::kTuple));
  return MakeList(std::move(items), kind);
}

Value Reversed(const Value& value) {
  std::string text;
  std::vector<Value> items = ElementsOf(value);
  std::ranges::reverse(items);
  if (value.Text() == nullptr) return MakeList(std::move(items), Sequence::kGenerator);
  for (const Value& item : items) text += *item.Text();
  return {std::move(text)};
}

Value EdgeOf(const Value& value, bool last) {
  if (const List* list = value.Elements(); last && list != nullptr && list->kind == Sequence::kGenerator)
    Fail("last: a generator has none (use the filter list before it)");
  const std::vector<Value> items = ElementsOf(value);
  if (items.empty()) return {Undefined{last ? "the last element of nothing" : "the first element of nothing"}};
  return last ? items.back() : items.front();
}

Value ToWhole(const Value& value, Reader& reader) {
  const int64_t other = reader.WholeOr("default", 0);
  if (const auto whole = value.Whole()) return {*whole};
  if (const auto number = value.Number(); number && std::abs(*number) < 9e15) return {static_cast<int64_t>(*number)};
  if (value.Text() == nullptr) return {other};
  const std::string text = Strip(*value.Text(), std::nullopt, Side::kBoth);
  int64_t whole = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (read.ec == std::errc() && read.ptr == text.data() + text.size()) return {whole};
  if (text.find_first_of("0123456789") != text.npos) Fail(fmt::format("int: \"{}\" is not supported", text));
  return {other};
}

Value Absolute(const Value& value) {
  if (const auto whole = value.Whole(); whole && *whole != std::numeric_limits<int64_t>::min())
    return {std::abs(*whole)};
  if (value.Is<double>()) return {std::abs(*value.Number())};
  Fail(fmt::format("abs: {} is no number", TypeName(value)));
}

Value WithDefault(const Value& value, Reader& reader) {
  Value other = reader.Take("default_value").value_or(Value{std::string()});
  const bool also_false = reader.TruthOr("boolean", false);
  return value.IsUndefined() || (also_false && !IsTrue(value)) ? other : value;
}

// Tables.

using Filter = Value (*)(const Value&, Reader&, Budget&);

const std::map<std::string, Filter, std::less<>>& Filters() {
  static const std::map<std::string, Filter, std::less<>> filters = {
      {"abs", [](const Value& v, Reader&, Budget&) { return Absolute(v); }},
      {"capitalize",
       [](const Value& v, Reader&, Budget&) { return Value{InCase("capitalize", ToText(v), Letters::kCapitalized)}; }},
      {"count", [](const Value& v, Reader&, Budget&) { return Value{LengthOf(v)}; }},
      {"d", [](const Value& v, Reader& r, Budget&) { return WithDefault(v, r); }},
      {"default", [](const Value& v, Reader& r, Budget&) { return WithDefault(v, r); }},
      {"first", [](const Value& v, Reader&, Budget&) { return EdgeOf(v, false); }},
      {"indent", [](const Value& v, Reader& r, Budget& b) { return b.Text(Indented(ToText(v), r, b)); }},
      {"int", [](const Value& v, Reader& r, Budget&) { return ToWhole(v, r); }},
      {"items", [](const Value& v, Reader&, Budget&) { return ItemsOf(v, Sequence::kGenerator); }},
      {"join", [](const Value& v, Reader& r, Budget& b) { return Joined(v, r, b); }},
      {"last", [](const Value& v, Reader&, Budget&) { return EdgeOf(v, true); }},
      {"length", [](const Value& v, Reader&, Budget&) { return Value{LengthOf(v)}; }},
      {"list", [](const Value& v, Reader&, Budget&) { return MakeList(ElementsOf(v)); }},
      {"lower", [](const Value& v, Reader&, Budget&) { return Value{InCase("lower", ToText(v), Letters::kLower)}; }},
      {"map", [](const Value& v, Reader& r, Budget& b) { return Mapped(v, r, b); }},
      {"reject", [](const Value& v, Reader& r, Budget&) { return Selected(v, r, false, false); }},
      {"rejectattr", [](const Value& v, Reader& r, Budget&) { return Selected(v, r, true, false); }},
      {"replace",
       [](const Value& v, Reader& r, Budget& b) {
         const std::string from = r.NeedText("old"), to = r.NeedText("new");
         return b.Text(Replaced(ToText(v), from, to, r.WholeOr("count", -1), b));
       }},
      {"reverse", [](const Value& v, Reader&, Budget&) { return Reversed(v); }},
      {"safe", [](const Value& v, Reader&, Budget& b) { return b.Text(ToText(v)); }},
      {"select", [](const Value& v, Reader& r, Budget&) { return Selected(v, r, false, true); }},
      {"selectattr", [](const Value& v, Reader& r, Budget&) { return Selected(v, r, true, true); }},
      {"string", [](const Value& v, Reader&, Budget& b) { return b.Text(ToText(v)); }},
      {"title", [](const Value& v, Reader&, Budget&) { return Value{Titled(ToText(v))}; }},
      {"tojson",
       [](const Value& v, Reader& r, Budget& b) {
         const int64_t indent = std::min<int64_t>(r.WholeOr("indent", -1), 100);
         return b.Text(ToJson(v, indent));
       }},
      {"trim",
       [](const Value& v, Reader& r, Budget& b) { return b.Text(Strip(ToText(v), r.TakeText("chars"), Side::kBoth)); }},
      {"upper", [](const Value& v, Reader&, Budget&) { return Value{InCase("upper", ToText(v), Letters::kUpper)}; }},
  };
  return filters;
}

using TestOf = bool (*)(const Value&, Reader&);

bool Divides(const Value& v, Reader& r) {
  const int64_t by = r.WholeOr("num", 0);
  if (by == 0 || by == -1 || !v.Whole()) Fail("divisibleby needs ints, and a number other than 0 and -1");
  return *v.Whole() % by == 0;
}
bool IsSequence(const Value& v) {
  const List* list = v.Elements();
  if (list != nullptr && list->kind == Sequence::kView) Fail("sequence: use the filter list before it");
  return v.Text() != nullptr || v.Entries() != nullptr || v.IsUndefined() ||
         (list != nullptr && list->kind != Sequence::kGenerator);
}
int64_t NeedWhole(const Value& v) {
  if (!v.Whole()) Fail(fmt::format("{} is no int", TypeName(v)));
  return *v.Whole();
}

const std::map<std::string, TestOf, std::less<>>& Tests() {
  static const TestOf equal = [](const Value& v, Reader& r) { return AreEqual(v, r.Need("other")); };
  static const TestOf unequal = [](const Value& v, Reader& r) { return !AreEqual(v, r.Need("other")); };
  static const std::map<std::string, TestOf, std::less<>> tests = {
      {"==", equal},
      {"!=", unequal},
      {"boolean", [](const Value& v, Reader&) { return v.Is<bool>(); }},
      {"callable", [](const Value& v, Reader&) { return v.Is<std::shared_ptr<Function>>(); }},
      {"defined", [](const Value& v, Reader&) { return !v.IsUndefined(); }},
      {"divisibleby", Divides},
      {"eq", equal},
      {"equalto", equal},
      {"even", [](const Value& v, Reader&) { return NeedWhole(v) % 2 == 0; }},
      {"false", [](const Value& v, Reader&) { return v.Is<bool>() && !IsTrue(v); }},
      {"float", [](const Value& v, Reader&) { return v.Is<double>(); }},
      {"in", [](const Value& v, Reader& r) { return Contains(r.Need("seq"), v); }},
      {"integer", [](const Value& v, Reader&) { return v.Is<int64_t>(); }},
      {"iterable",
       [](const Value& v, Reader&) {
         return v.Text() != nullptr || v.Elements() != nullptr || v.IsUndefined() ||
                (v.Entries() != nullptr && !v.Entries()->is_namespace);
       }},
      {"mapping", [](const Value& v, Reader&) { return v.Entries() != nullptr && !v.Entries()->is_namespace; }},
      {"ne", unequal},
      {"none", [](const Value& v, Reader&) { return v.IsNone(); }},
      {"number", [](const Value& v, Reader&) { return v.Number().has_value(); }},
      {"odd", [](const Value& v, Reader&) { return NeedWhole(v) % 2 != 0; }},
      {"sequence", [](const Value& v, Reader&) { return IsSequence(v); }},
      {"string", [](const Value& v, Reader&) { return v.Text() != nullptr; }},
      {"true", [](const Value& v, Reader&) { return v.Is<bool>() && IsTrue(v); }},
      {"undefined", [](const Value& v, Reader&) { return v.IsUndefined(); }},
  };
  return tests;
}

using Method = Value (*)(const Value&, Reader&, Budget&);

template <Side kSide>
Value StripMethod(const Value& v, Reader& r, Budget& b) {
  return b.Text(Strip(*v.Text(), r.TakeText("chars"), kSide));
}
template <Letters kLetters>
Value CaseMethod(const Value& v, Reader&, Budget& b) {
  return b.Text(InCase("a method", *v.Text(), kLetters));
}
int64_t CountOf(const std::string& text, const std::string& part) {
  if (part.empty()) Fail("count: the text to find is empty");
  int64_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

const std::map<std::string, Method, std::less<>>& TextMethods() {
  static const std::map<std::string, Method, std::less<>> methods = {
      {"capitalize", CaseMethod<Letters::kCapitalized>},
      {"count", [](const Value& v, Reader& r, Budget&) { return Value{CountOf(*v.Text(), r.NeedText("sub"))}; }},
      {"endswith",
       [](const Value& v, Reader& r, Budget&) { return Value{HasEdge(*v.Text(), r.Need("suffix"), true)}; }},
      {"join",
       [](const Value& v, Reader& r, Budget& b) {
         Arguments by{{v}, {}};
         Reader reader("join", by);
         return Joined(r.Need("iterable"), reader, b);
       }},
      {"lower", CaseMethod<Letters::kLower>},
      {"lstrip", StripMethod<Side::kLeft>},
      {"replace",
       [](const Value& v, Reader& r, Budget& b) {
         const std::string from = r.NeedText("old"), to = r.NeedText("new");
         return b.Text(Replaced(*v.Text(), from, to, r.WholeOr("count", -1), b));
       }},
      {"rsplit", [](const Value& v, Reader& r, Budget&) { return Split(*v.Text(), r, true); }},
      {"rstrip", StripMethod<Side::kRight>},
      {"split", [](const Value& v, Reader& r, Budget&) { return Split(*v.Text(), r, false); }},
      {"startswith",
       [](const Value& v, Reader& r, Budget&) { return Value{HasEdge(*v.Text(), r.Need("prefix"), false)}; }},
      {"strip", StripMethod<Side::kBoth>},
      {"title", [](const Value& v, Reader&, Budget& b) { return b.Text(MethodTitled(*v.Text())); }},
      {"upper", CaseMethod<Letters::kUpper>},
  };
  return methods;
}

Value Column(const Dict& dict, bool keys) {
  std::vector<Value> all;
  for (const auto& [key, value] : dict.entries) all.push_back(keys ? Value{key} : value);
  return MakeList(std::move(all), Sequence::kView);
}

const std::map<std::string, Method, std::less<>>& DictMethods() {
  static const std::map<std::string, Method, std::less<>> methods = {
      {"get",
       [](const Value& v, Reader& r, Budget&) {
         const Value key = r.Need("key");
         const Value other = r.Take("default").value_or(Value{None{}});
         const Value* found = key.Text() != nullptr ? v.Entries()->Find(*key.Text()) : nullptr;
         return found != nullptr ? *found : other;
       }},
      {"items", [](const Value& v, Reader&, Budget&) { return ItemsOf(v, Sequence::kView); }},
      {"keys", [](const Value& v, Reader&, Budget&) { return Column(*v.Entries(), true); }},
      {"values", [](const Value& v, Reader&, Budget&) { return Column(*v.Entries(), false); }},
  };
  return methods;
}

const std::map<std::string, Method, std::less<>>& MethodsOf(const Value& value) {
  static const std::map<std::string, Method, std::less<>> none;
  if (value.Text() != nullptr) return TextMethods();
  return value.Entries() != nullptr && !value.Entries()->is_namespace ? DictMethods() : none;
}

/// An index of Python: from the end if it is negative. Nothing if it is outside.
std::optional<size_t> IndexIn(int64_t size, int64_t index) {
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  return static_cast<size_t>(index);
}

Value Range(Arguments& arguments) {
  std::vector<int64_t> numbers;
  for (const Value& value : arguments.positional) numbers.push_back(NeedWhole(value));
  if (numbers.empty() || numbers.size() > 3 || !arguments.named.empty()) Fail("range needs one to three ints");
  const int64_t from = numbers.size() > 1 ? numbers[0] : 0, to = numbers[numbers.size() > 1 ? 1 : 0];
  const int64_t step = numbers.size() > 2 ? numbers[2] : 1;
  if (step == 0) Fail("range: a step of 0");
  std::vector<Value> items;
  for (int64_t i = from; step > 0 ? i < to : i > to;) {
    if (std::ssize(items) == kLongestRange) Fail(fmt::format("range: more than {} numbers", kLongestRange));
    items.push_back({i});
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return MakeList(std::move(items), Sequence::kView);
}

Value DictOf(Arguments& arguments, bool is_namespace) {
  if (!arguments.positional.empty()) Fail("namespace and dict take arguments with names only");
  Value made = MakeDict(std::move(arguments.named));
  made.Entries()->is_namespace = is_namespace;
  return made;
}

[[noreturn]] void RaiseException(Arguments& arguments) {
  Fail("the template refuses this conversation: " +
       (arguments.positional.empty() ? "" : ToText(arguments.positional[0])));
}

}  // namespace

void Budget::Spend(size_t amount) {
  if (amount >= left_) Fail("the template takes too long, or makes too much text");
  left_ -= amount;
}

Value Budget::Text(std::string text) {
  Spend(text.size());
  return {std::move(text)};
}

Value ApplyFilter(const std::string& name, const Value& value, Arguments& arguments, Budget& budget) {
  const auto filter = Filters().find(name);
  if (filter == Filters().end()) Fail(fmt::format("the filter {} is not supported", name));
  budget.Spend(1);
  Reader reader(filter->first, arguments);
  return filter->second(value, reader, budget);
}

bool ApplyTest(const std::string& name, const Value& value, Arguments& arguments) {
  const auto test = Tests().find(name);
  if (test == Tests().end()) Fail(fmt::format("the test {} is not supported", name));
  Reader reader(test->first, arguments);
  return test->second(value, reader);
}

Value CallMethod(const Value& value, const std::string& name, Arguments& arguments, Budget& budget) {
  const auto& methods = MethodsOf(value);
  const auto method = methods.find(name);
  if (method == methods.end()) Fail(fmt::format("the method {} of {} is not supported", name, TypeName(value)));
  Reader reader(method->first, arguments);
  return method->second(value, reader, budget);
}

bool IsMethod(const Value& value, std::string_view name) {
  static constexpr std::string_view kDict = " clear copy fromkeys get items keys pop popitem setdefault update values ";
  static constexpr std::string_view kText =
      " capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha "
      "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower "
      "lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split "
      "splitlines startswith strip swapcase title translate upper zfill ";
  static constexpr std::string_view kList =
      " append clear copy count extend index insert items keys pop remove reverse sort values ";
  const Dict* dict = value.Entries();
  if (name.find(' ') != name.npos || (dict != nullptr && dict->is_namespace)) return false;
  const std::string_view all = dict != nullptr               ? kDict
                               : value.Text() != nullptr     ? kText
                               : value.Elements() != nullptr ? kList
                                                             : "";
  return all.find(" " + std::string(name) + " ") != all.npos;
}

Value AttributeOf(const Value& value, const std::string& name) {
  if (value.IsUndefined())
    Fail(fmt::format("{} is undefined, and .{} of it is read", std::get<Undefined>(value.held).name, name));
  if (IsMethod(value, name) || value.Is<std::shared_ptr<Function>>())
    Fail(fmt::format("{}.{} is read: only calls of methods are supported", TypeName(value), name));
  const Dict* dict = value.Entries();
  const Value* found = dict != nullptr ? dict->Find(name) : nullptr;
  return found != nullptr ? *found : Value{Undefined{name}};
}

Value ItemOf(const Value& value, const Value& index) {
  if (value.IsUndefined())
    Fail(fmt::format("{} is undefined, and an element of it is read", std::get<Undefined>(value.held).name));
  if (const Dict* dict = value.Entries()) {
    const Value* found = index.Text() != nullptr ? dict->Find(*index.Text()) : nullptr;
    if (found != nullptr) return *found;
    return index.Text() != nullptr ? AttributeOf(value, *index.Text()) : Value{Undefined{ToText(index)}};
  }
  if (index.Text() != nullptr) return AttributeOf(value, *index.Text());
  const List* list = value.Elements();
  if (list != nullptr && list->kind != Sequence::kList && list->kind != Sequence::kTuple)
    Fail("an element of a filter's result or of a view is read: use the filter list before");
  const std::vector<std::string_view> characters =
      value.Text() != nullptr ? CharactersOf(*value.Text()) : std::vector<std::string_view>();
  const std::optional<size_t> at =
      index.Whole() ? IndexIn(list != nullptr ? std::ssize(list->items) : std::ssize(characters), *index.Whole())
                    : std::nullopt;
  if (!at) return {Undefined{"an element outside"}};
  return list != nullptr ? list->items[*at] : Value{std::string(characters[*at])};
}

Value SliceOf(const Value& value, const Value& from, const Value& to, const Value& step, Budget& budget) {
  const List* list = value.Elements();
  if (value.Text() == nullptr && (list == nullptr || (list->kind != Sequence::kList && list->kind != Sequence::kTuple)))
    Fail(fmt::format("a slice of {}: only str, list and tuple have slices", TypeName(value)));
  const std::vector<Value> all = ElementsOf(value);
  const int64_t size = std::ssize(all), by = step.IsNone() ? 1 : NeedWhole(step);
  if (by == 0) Fail("a slice with a step of 0");
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const auto bound = [&](const Value& part, int64_t other) {
    if (part.IsNone()) return other;
    const int64_t at = NeedWhole(part);
    return std::clamp(at < 0 ? at + size : at, low, high);
  };
  const int64_t begin = bound(from, by > 0 ? low : high), end = bound(to, by > 0 ? high : low);
  std::vector<Value> items;
  for (int64_t i = begin; by > 0 ? i < end : i > end;) {
    items.push_back(all[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  budget.Spend(items.size());
  if (list != nullptr) return MakeList(std::move(items), list->kind);
  std::string text;
  for (const Value& item : items) text += *item.Text();
  return {std::move(text)};
}

Value GlobalFunction(std::string_view name, Budget& budget) {
  const auto make = [](Function function) { return Value{std::make_shared<Function>(std::move(function))}; };
  if (name == "range")
    return make([&budget](Arguments& a) {
      Value made = Range(a);
      budget.Spend(made.Elements()->items.size());
      return made;
    });
  if (name == "namespace") return make([](Arguments& a) { return DictOf(a, true); });
  if (name == "dict") return make([](Arguments& a) { return DictOf(a, false); });
  if (name == "raise_exception") return make([](Arguments& a) -> Value { RaiseException(a); });
  return {Undefined{std::string(name)}};
}

}  // namespace espalier::jinja
