// Filters, tests, methods and functions of templates.
#pragma once

#include <string>
#include <string_view>

#include "text/template/value.hpp"

namespace espalier::jinja {

/// The limit of one rendering, in bytes of text: some 100,000 elements of loops, or 128 MiB.
class Budget {
 public:
  /// Fails if it is used up.
  void Spend(size_t amount);
  /// The text, paid for.
  Value Text(std::string text);

 private:
  size_t left_ = size_t{1} << 27;
};

/// value|name(arguments), "value is name(arguments)" and value.name(arguments). They fail if the name is unknown, or if
/// the arguments do not fit.
Value ApplyFilter(const std::string& name, const Value& value, Arguments& arguments, Budget& budget);
bool ApplyTest(const std::string& name, const Value& value, Arguments& arguments);
Value CallMethod(const Value& value, const std::string& name, Arguments& arguments, Budget& budget);
/// Whether a value of this type has such a method in Python: then value.name is no element of a dict.
bool IsMethod(const Value& value, std::string_view name);

/// value.name and value[index], as Jinja2 finds them.
Value AttributeOf(const Value& value, const std::string& name);
Value ItemOf(const Value& value, const Value& index);
/// value[from:to:step]; None for a part that is left out.
Value SliceOf(const Value& value, const Value& from, const Value& to, const Value& step, Budget& budget);

/// range, namespace, dict, raise_exception. Null if there is none of this name.
Value GlobalFunction(std::string_view name, Budget& budget);

}  // namespace espalier::jinja
