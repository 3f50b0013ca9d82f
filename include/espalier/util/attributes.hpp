// Named constants of an op: numbers and texts, in the order of their names so that printing is deterministic.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "espalier/util/error.hpp"

namespace espalier {

struct Attributes {
  std::map<std::string, double, std::less<>> numbers;
  std::map<std::string, std::string, std::less<>> texts;

  bool operator==(const Attributes&) const = default;

  double Number(std::string_view name) const {
    auto it = numbers.find(name);
    CHECK(it != numbers.end(), "op attribute {} is missing", name);
    return it->second;
  }
  /// An integer, such as an extent or a count.
  int64_t Integer(std::string_view name) const { return static_cast<int64_t>(Number(name)); }
  int64_t IntegerOr(std::string_view name, int64_t otherwise) const {
    const auto it = numbers.find(name);
    return it == numbers.end() ? otherwise : static_cast<int64_t>(it->second);
  }
  double NumberOr(std::string_view name, double otherwise) const {
    auto it = numbers.find(name);
    return it == numbers.end() ? otherwise : it->second;
  }
  const std::string& Text(std::string_view name) const {
    auto it = texts.find(name);
    CHECK(it != texts.end(), "op attribute {} is missing", name);
    return it->second;
  }
  std::string_view TextOr(std::string_view name, std::string_view otherwise) const {
    const auto it = texts.find(name);
    return it == texts.end() ? otherwise : it->second;
  }
};

}  // namespace espalier
