// Typed access to the keys of a config.json, with all errors collected.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

class ConfigReader {
 public:
  using json = nlohmann::json;

  /// `place` begins every message: the path, or the path and a key whose object this is.
  ConfigReader(std::string place, json config) : place_(std::move(place)), config_(std::move(config)) {}

  /// The value of a key; nullptr if it is absent or null.
  const json* Find(const std::string& key) {
    seen_.insert(key);
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }
  /// Also true for null.
  bool Contains(const std::string& key) const { return config_.contains(key); }
  int64_t Integer(const std::string& key, int64_t least = 1) {
    const json* value = Find(key);
    if (value == nullptr) return Missing(key), least;
    return Whole(key, *value, least);
  }
  int64_t IntegerOr(const std::string& key, int64_t otherwise, int64_t least = 1) {
    const json* value = Find(key);
    return value == nullptr ? otherwise : Whole(key, *value, least);
  }
  double NumberOr(const std::string& key, double otherwise) {
    const json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) return Refuse(key, *value, "a number"), otherwise;
    return value->get<double>();
  }
  double Number(const std::string& key) {
    if (Find(key) == nullptr) return Missing(key), 1;
    return NumberOr(key, 1);
  }
  bool FlagOr(const std::string& key, bool otherwise) {
    const json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) return Refuse(key, *value, "true, false"), otherwise;
    return value->get<bool>();
  }
  std::string TextOr(const std::string& key, const std::string& otherwise) {
    const json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) return Refuse(key, *value, "a string"), otherwise;
    return value->get<std::string>();
  }
  /// The key may be absent, or have one of these values.
  void Expect(const std::string& key, const std::vector<json>& allowed) {
    const json* value = Find(key);
    if (value == nullptr) return;
    std::vector<std::string> texts;
    for (const json& one : allowed) {
      if (*value == one) return;
      texts.push_back(one.dump());
    }
    Refuse(key, *value, fmt::format("{}", fmt::join(texts, ", ")));
  }
  /// Keys that nothing follows from; they are listed if they are there.
  void Unused(const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
      seen_.insert(key);
      if (config_.contains(key)) unused_.push_back(key);
    }
  }
  /// Keys that nobody has asked for are errors: what they change is not known.
  void RefuseOthers() {
    for (const auto& [key, value] : config_.items())
      if (!seen_.contains(key))
        errors_.push_back(
            fmt::format("{}: {} = {}: unknown key, which may change what the model computes (allowed: to "
                        "remove it, if it does not)",
                        place_, key, Shown(value)));
  }
  void Refuse(const std::string& key, const json& value, std::string_view allowed) {
    errors_.push_back(
        fmt::format("{}: {} = {}: cannot be expressed (allowed: {})", place_, key, Shown(value), allowed));
  }

  const std::string& place() const { return place_; }
  std::vector<std::string>& errors() { return errors_; }
  const std::vector<std::string>& unused() const { return unused_; }

 private:
  static std::string Shown(const json& value) {
    const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    return text.size() <= 80 ? text : text.substr(0, 77) + "...";
  }
  void Missing(const std::string& key) { errors_.push_back(fmt::format("{}: {}: missing", place_, key)); }
  int64_t Whole(const std::string& key, const json& value, int64_t least) {
    constexpr int64_t kMax = INT32_MAX;
    if (value.is_number_integer() && value >= least && value <= kMax) return value.get<int64_t>();
    Refuse(key, value, fmt::format("{} to {}", least, kMax));
    return least;
  }

  std::string place_;
  json config_;
  std::set<std::string> seen_;
  std::vector<std::string> errors_, unused_;
};

}  // namespace espalier
