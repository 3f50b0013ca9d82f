// Reads the arguments of a filter, a test or a method.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "text/template/value.hpp"

namespace espalier::jinja {

/// Takes the argument at a position or with a name; remaining arguments are unexpected.
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

}  // namespace espalier::jinja
