#include "text/template/functions.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace espalier::jinja {
namespace {

constexpr int64_t kLongestRange = 100000;  // as in Jinja2's sandbox

/// A Python index: from the end if it is negative. Nothing if it is out of range.
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
