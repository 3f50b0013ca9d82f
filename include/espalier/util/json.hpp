// JSON from untrusted sources.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

namespace espalier {

struct JsonRules {
  int most_depth = 100;      ///< limit of nested objects and arrays, which bounds the recursion of readers
  bool unique_keys = false;  ///< false: the last of equal keys counts
  /// Called at the end of each object, with the number of enclosing levels; false drops the object.
  std::function<bool(int depth, const nlohmann::json& object)> keep = nullptr;
};

/// Parses a text in linear time; nlohmann::json::parse with a callback takes quadratic time in the members of an
/// object. Throws nlohmann::json::exception for malformed JSON, and std::invalid_argument for a violation of the rules.
nlohmann::json ParseJson(std::string_view text, const JsonRules& rules);

}  // namespace espalier
