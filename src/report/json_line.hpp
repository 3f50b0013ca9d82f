// One flat JSON object, its members in the order they were added.
#pragma once

#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace espalier {

class JsonLine {
 public:
  JsonLine& Integer(std::string_view name, int64_t value) { return Raw(name, std::to_string(value)); }
  JsonLine& Text(std::string_view name, std::string_view value) { return Raw(name, Quote(value)); }
  JsonLine& TextIfAny(std::string_view name, std::string_view value) {
    return value.empty() ? *this : Text(name, value);
  }
  JsonLine& Null(std::string_view name) { return Raw(name, "null"); }
  /// `format`: of one double, "{:.9g}". A number that is not finite becomes null and is noted.
  JsonLine& Number(std::string_view name, double value, std::string_view format) {
    if (std::isfinite(value)) return Raw(name, fmt::format(fmt::runtime(format), value));
    notes_ += fmt::format("{}{} is {}", notes_.empty() ? "" : ", ", name, value);
    return Null(name);
  }
  /// `value` is JSON already.
  JsonLine& Raw(std::string_view name, std::string_view value) {
    text_ += fmt::format("{}{}:{}", text_.empty() ? "" : ",", Quote(name), value);
    return *this;
  }
  /// The object, with its line end.
  std::string Finish() {
    if (!notes_.empty()) Text("note", notes_);
    return "{" + text_ + "}\n";
  }

 private:
  /// Bytes that are not UTF-8 are replaced: a path may contain any bytes.
  static std::string Quote(std::string_view text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  std::string text_;
  std::string notes_;
};

}  // namespace espalier
