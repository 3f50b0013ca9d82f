// Tests of values, and the methods of texts and dicts.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "text/template/texts.hpp"

namespace espalier::jinja {
namespace {

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
         return ApplyFilter("join", r.Need("iterable"), by, b);
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

/// A Python index: from the end if it is negative. Nothing if it is out of range.

}  // namespace

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
  budget.Spend(SizeOf(value));
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

}  // namespace espalier::jinja
