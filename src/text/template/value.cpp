#include "text/template/value.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "espalier/text/utf8.hpp"

namespace espalier::jinja {
namespace {

constexpr int kDeepestList = 100;  // nested lists

/// Formats like repr(float) in Python.
std::string FloatText(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  const std::string text = fmt::format("{}", x);
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

bool IsAscii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string QuotedText(const std::string& text) {
  if (!IsAscii(text)) Fail("a list or dict with letters beyond ASCII is printed: use the filter tojson or join");
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\')
      out += {'\\', c};
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (c < ' ' || c == 0x7f)
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + quote;
}

std::string ReprOfList(const List& list, int depth);
std::string ReprOfDict(const Dict& dict, int depth);

std::string Repr(const Value& value, int depth) {
  if (depth > kDeepestList) Fail("lists are nested too deep");
  if (const std::string* text = value.Text()) return QuotedText(*text);
  if (const List* list = value.Elements()) return ReprOfList(*list, depth);
  if (const Dict* dict = value.Entries()) return ReprOfDict(*dict, depth);
  if (value.IsUndefined()) return "Undefined";
  return ToText(value);
}

std::string ReprOfList(const List& list, int depth) {
  const bool tuple = list.kind == Sequence::kTuple;
  if (!tuple && list.kind != Sequence::kList) Fail("what is printed here is no list: use the filter list");
  std::string out = tuple ? "(" : "[";
  for (size_t i = 0; i < list.items.size(); ++i) out += (i > 0 ? ", " : "") + Repr(list.items[i], depth + 1);
  if (tuple && list.items.size() == 1) out += ",";
  return out + (tuple ? ")" : "]");
}

std::string ReprOfDict(const Dict& dict, int depth) {
  if (dict.is_namespace) Fail("a namespace cannot be printed");
  std::string out = "{";
  for (const auto& [key, value] : dict.entries)
    out += (out.size() > 1 ? ", " : "") + QuotedText(key) + ": " + Repr(value, depth + 1);
  return out + "}";
}

std::string JsonText(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Elements between brackets, each on a line of its own if `indent` >= 0.
template <typename Elements, typename Write>
std::string JsonElements(std::string_view brackets, const Elements& elements, int64_t indent, int depth, Write write) {
  if (elements.empty()) return std::string(brackets);
  const auto line = [&](int at) {
    return indent < 0 ? "" : "\n" + std::string(static_cast<size_t>(indent) * static_cast<size_t>(at), ' ');
  };
  std::string out(1, brackets[0]);
  for (const auto& element : elements)
    out += (out.size() > 1 ? (indent < 0 ? ", " : ",") : "") + line(depth + 1) + write(element);
  return out + line(depth) + brackets[1];
}

std::string Json(const Value& value, int64_t indent, int depth) {
  if (depth > kDeepestList) Fail("tojson: lists are nested too deep");
  if (const std::string* text = value.Text()) return JsonText(*text);
  if (const bool* truth = std::get_if<bool>(&value.held)) return *truth ? "true" : "false";
  if (value.IsNone()) return "null";
  if (value.Number()) return ToText(value);
  const List* list = value.Elements();
  if (list != nullptr && (list->kind == Sequence::kList || list->kind == Sequence::kTuple))
    return JsonElements("[]", list->items, indent, depth,
                        [&](const Value& item) { return Json(item, indent, depth + 1); });
  const Dict* dict = value.Entries();
  if (dict == nullptr || dict->is_namespace) Fail(fmt::format("tojson: {} has no JSON", TypeName(value)));
  return JsonElements("{}", dict->entries, indent, depth, [&](const auto& entry) {
    return JsonText(entry.first) + ": " + Json(entry.second, indent, depth + 1);
  });
}

bool SameEntries(const Dict& a, const Dict& b) {
  return a.entries.size() == b.entries.size() && std::ranges::all_of(a.entries, [&](const auto& entry) {
           const Value* other = b.Find(entry.first);
           return other != nullptr && AreEqual(entry.second, *other);
         });
}

}  // namespace

const Value* Dict::Find(std::string_view key) const {
  const auto found = std::ranges::find(entries, key, [](const auto& e) { return std::string_view(e.first); });
  return found == entries.end() ? nullptr : &found->second;
}

void Dict::Set(const std::string& key, Value value) {
  const auto found = std::ranges::find(entries, key, [](const auto& e) -> const std::string& { return e.first; });
  if (found != entries.end())
    found->second = std::move(value);
  else
    entries.emplace_back(key, std::move(value));
}

List* Value::Elements() const {
  const auto* list = std::get_if<std::shared_ptr<List>>(&held);
  return list != nullptr ? list->get() : nullptr;
}

Dict* Value::Entries() const {
  const auto* dict = std::get_if<std::shared_ptr<Dict>>(&held);
  return dict != nullptr ? dict->get() : nullptr;
}

std::optional<int64_t> Value::Whole() const {
  if (const auto* whole = std::get_if<int64_t>(&held)) return *whole;
  if (const auto* truth = std::get_if<bool>(&held)) return *truth ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::Number() const {
  if (const auto* number = std::get_if<double>(&held)) return *number;
  if (const auto whole = Whole()) return static_cast<double>(*whole);
  return std::nullopt;
}

void Fail(std::string what, int64_t line) { throw TemplateError{line, std::move(what)}; }

Value MakeList(std::vector<Value> items, Sequence kind) {
  return {std::make_shared<List>(List{std::move(items), kind})};
}

Value MakeDict(std::vector<std::pair<std::string, Value>> entries) {
  return {std::make_shared<Dict>(Dict{std::move(entries)})};
}

Value FromJson(const nlohmann::ordered_json& json) {
  if (json.is_null()) return {None{}};
  if (json.is_boolean()) return {json.get<bool>()};
  if (json.is_number_float()) return {json.get<double>()};
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
    Fail(fmt::format("the number {} is too large", json.get<uint64_t>()));
  if (json.is_number()) return {json.get<int64_t>()};
  if (json.is_string()) return {json.get<std::string>()};
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(FromJson(item));
    return MakeList(std::move(items));
  }
  std::vector<std::pair<std::string, Value>> entries;
  for (const auto& [key, value] : json.items()) entries.emplace_back(key, FromJson(value));
  return MakeDict(std::move(entries));
}

std::string_view TypeName(const Value& value) {
  static constexpr std::string_view kNames[] = {"undefined", "None", "bool", "int",     "float",
                                                "str",       "list", "dict", "function"};
  const List* list = value.Elements();
  if (list != nullptr && list->kind == Sequence::kTuple) return "tuple";
  if (list != nullptr && list->kind == Sequence::kGenerator) return "generator";
  return kNames[value.held.index()];
}

bool IsTrue(const Value& value) {
  if (const auto number = value.Number()) return *number != 0;
  if (const std::string* text = value.Text()) return !text->empty();
  if (const List* list = value.Elements()) return list->kind == Sequence::kGenerator || !list->items.empty();
  if (const Dict* dict = value.Entries()) return dict->is_namespace || !dict->entries.empty();
  return value.Is<std::shared_ptr<Function>>();
}

bool AreEqual(const Value& a, const Value& b) {
  if (a.Whole() && b.Whole()) return *a.Whole() == *b.Whole();
  if (a.Number() && b.Number()) return *a.Number() == *b.Number();
  if (a.held.index() != b.held.index()) return false;
  if (a.Text() != nullptr) return *a.Text() == *b.Text();
  if (const List* x = a.Elements(), *y = b.Elements(); x != nullptr)
    return x == y || (x->kind == y->kind && std::ranges::equal(x->items, y->items, AreEqual));
  if (const Dict* x = a.Entries(), *y = b.Entries(); x != nullptr) return x == y || SameEntries(*x, *y);
  return a.IsNone() || a.IsUndefined();
}

bool IsLess(const Value& a, const Value& b) {
  if (a.Whole() && b.Whole()) return *a.Whole() < *b.Whole();
  if (a.Number() && b.Number()) return *a.Number() < *b.Number();
  if (a.Text() != nullptr && b.Text() != nullptr) return *a.Text() < *b.Text();
  Fail(fmt::format("{} and {} have no order", TypeName(a), TypeName(b)));
}

bool Contains(const Value& whole, const Value& part) {
  if (const std::string* text = whole.Text()) {
    if (part.Text() == nullptr) Fail(fmt::format("in: a str has no {} in it", TypeName(part)));
    return text->find(*part.Text()) != text->npos;
  }
  if (const Dict* dict = whole.Entries()) return part.Text() != nullptr && dict->Find(*part.Text()) != nullptr;
  return std::ranges::any_of(ElementsOf(whole), [&](const Value& item) { return AreEqual(item, part); });
}

std::vector<Value> ElementsOf(const Value& value) {
  if (value.IsUndefined()) return {};
  std::vector<Value> elements;
  if (List* list = value.Elements()) {
    if (list->read) Fail("the result of a filter is read twice: keep it with the filter list");
    list->read = list->kind == Sequence::kGenerator;
    return list->items;
  }
  if (const Dict* dict = value.Entries(); dict != nullptr && !dict->is_namespace)
    for (const auto& entry : dict->entries) elements.push_back({entry.first});
  else if (const std::string* text = value.Text())
    for (const std::string_view character : CharactersOf(*text)) elements.push_back({std::string(character)});
  else
    Fail(fmt::format("{} has no elements", TypeName(value)));
  return elements;
}

Value ItemsOf(const Value& value, Sequence kind) {
  std::vector<Value> items;
  const Dict* dict = value.Entries();
  if (value.IsUndefined()) return MakeList({}, kind);
  if (dict == nullptr || dict->is_namespace) Fail(fmt::format("items: {} is no dict", TypeName(value)));
  for (const auto& [key, held] : dict->entries) items.push_back(MakeList({{key}, held}, Sequence::kTuple));
  return MakeList(std::move(items), kind);
}

int64_t NeedWhole(const Value& value) {
  if (!value.Whole()) Fail(fmt::format("{} is no int", TypeName(value)));
  return *value.Whole();
}

size_t SizeOf(const Value& value) {
  if (const std::string* text = value.Text()) return text->size() + 1;
  const List* list = value.Elements();
  return list != nullptr ? 16 * list->items.size() + 1 : 1;
}

std::string ToText(const Value& value) {
  if (const std::string* text = value.Text()) return *text;
  if (value.IsUndefined()) return "";
  if (value.IsNone()) return "None";
  if (const bool* truth = std::get_if<bool>(&value.held)) return *truth ? "True" : "False";
  if (const auto whole = value.Whole()) return fmt::format("{}", *whole);
  if (const auto number = value.Number()) return FloatText(*number);
  if (value.Is<std::shared_ptr<Function>>()) Fail("a function is printed: call it with ()");
  return ToRepr(value);
}

std::string ToRepr(const Value& value) { return Repr(value, 0); }

std::string ToJson(const Value& value, int64_t indent) { return Json(value, indent, 0); }

std::vector<std::string_view> CharactersOf(std::string_view text) {
  std::vector<std::string_view> characters;
  for (size_t at = 0; at < text.size(); at += characters.back().size())
    characters.push_back(text.substr(at, CharacterBytes(text, at)));
  return characters;
}

}  // namespace espalier::jinja
