// Filters, tests, methods and functions of templates.
#pragma once

#include <string>
#include <string_view>

#include "text/template/value.hpp"

namespace espalier::jinja {

/// The limit of one rendering, in bytes of text: some 100,000 elements of loops, or 128 MiB.
class Budget {
 public:
  /// Spends part of the budget; fails if it is exhausted.
  void Spend(size_t amount);
  /// The text as a value; spends its size.
  Value Text(std::string text);

 private:
  size_t left_ = size_t{1} << 27;
};

/// value|name(arguments), "value is name(arguments)" and value.name(arguments). They fail if the name is unknown, or if
/// the arguments do not fit.
Value ApplyFilter(const std::string& name, const Value& value, Arguments& arguments, Budget& budget);
bool ApplyTest(const std::string& name, const Value& value, Arguments& arguments);
Value CallMethod(const Value& value, const std::string& name, Arguments& arguments, Budget& budget);
/// Whether a value of this type has such a method in Python: then value.name is not an element of a dict.
bool IsMethod(const Value& value, std::string_view name);

/// value.name and value[index], as Jinja2 finds them.
Value AttributeOf(const Value& value, const std::string& name);
Value ItemOf(const Value& value, const Value& index);
/// value[from:to:step]; an omitted part is None.
Value SliceOf(const Value& value, const Value& from, const Value& to, const Value& step, Budget& budget);

/// range, namespace, dict, raise_exception. Null for any other name.
Value GlobalFunction(std::string_view name, Budget& budget);

}  // namespace espalier::jinja
