#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "text/template/texts.hpp"

namespace espalier::jinja {
namespace {

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

/// The path a.b.0 in map, selectattr and join.
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

/// The remaining arguments, for a filter or a test of each element.
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

}  // namespace

Value ApplyFilter(const std::string& name, const Value& value, Arguments& arguments, Budget& budget) {
  const auto filter = Filters().find(name);
  if (filter == Filters().end()) Fail(fmt::format("the filter {} is not supported", name));
  budget.Spend(SizeOf(value));
  Reader reader(filter->first, arguments);
  return filter->second(value, reader, budget);
}

}  // namespace espalier::jinja
