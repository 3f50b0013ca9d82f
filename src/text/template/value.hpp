// The values of a template, with Python's semantics.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace espalier::jinja {

struct Value;

/// The value of an undefined name: printed as nothing, false, without elements.
struct Undefined {
  std::string name;
};
struct None {};

/// The Python type of a sequence, which decides how it may be used: views cannot be printed, generators are read once.
enum class Sequence : uint8_t { kList, kTuple, kView, kGenerator };
struct List {
  std::vector<Value> items;
  Sequence kind = Sequence::kList;
  bool read = false;  ///< a generator that has been read
};

/// In the order of insertion. Only a namespace can be changed by a template.
struct Dict {
  std::vector<std::pair<std::string, Value>> entries;
  bool is_namespace = false;

  const Value* Find(std::string_view key) const;
  void Set(const std::string& key, Value value);
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};
using Function = std::function<Value(Arguments&)>;

struct Value {
  using Variant = std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>,
                               std::shared_ptr<Dict>, std::shared_ptr<Function>>;
  Variant held;

  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(held);
  }
  bool IsUndefined() const { return Is<Undefined>(); }
  bool IsNone() const { return Is<None>(); }
  /// The string, or null if the value has another type.
  const std::string* Text() const { return std::get_if<std::string>(&held); }
  List* Elements() const;
  Dict* Entries() const;
  /// An integer or a bool.
  std::optional<int64_t> Whole() const;
  /// Any number or a bool.
  std::optional<double> Number() const;
};

/// The error of a template: its line and its message.
struct TemplateError {
  int64_t line = 0;  ///< 0: line of the evaluated expression
  std::string what;
};

[[noreturn]] void Fail(std::string what, int64_t line = 0);

Value MakeList(std::vector<Value> items, Sequence kind = Sequence::kList);
Value MakeDict(std::vector<std::pair<std::string, Value>> entries);
Value FromJson(const nlohmann::ordered_json& json);

/// Python's name of the type.
std::string_view TypeName(const Value& value);
bool IsTrue(const Value& value);
bool AreEqual(const Value& a, const Value& b);
/// a < b; fails if Python's comparison does.
bool IsLess(const Value& a, const Value& b);
bool Contains(const Value& whole, const Value& part);
/// The elements over which a loop iterates; fails for values that are not iterable, and for a generator that was read.
std::vector<Value> ElementsOf(const Value& value);
/// Python's str and repr.
std::string ToText(const Value& value);
std::string ToRepr(const Value& value);
/// json.dumps without ensure_ascii; `indent` < 0: on one line.
std::string ToJson(const Value& value, int64_t indent = -1);
/// The pairs (key, value) of a dict; fails for any other value.
Value ItemsOf(const Value& value, Sequence kind);
/// An integer; fails for any other value.
int64_t NeedWhole(const Value& value);
/// The cost of reading a value: bytes of a text, elements of a list.
size_t SizeOf(const Value& value);
/// The characters of a text.
std::vector<std::string_view> CharactersOf(std::string_view text);

}  // namespace espalier::jinja
