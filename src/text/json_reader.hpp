// Reads JSON strictly: every error names the file, the place in it, the value and what is allowed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

/// Parses a file. Throws UserError (kData) if it is not JSON, or nested too deeply for recursion.
nlohmann::json ParseDocument(const std::string& file, const std::string& bytes);

/// A value in a JSON document and its place, such as "model.merges[3]". The document outlives it. Every function throws
/// UserError (kData) if the value does not have the requested type.
class JsonReader {
 public:
  JsonReader(const std::string& file, const nlohmann::json& document) : file_(&file), value_(&document) {}

  const nlohmann::json& value() const { return *value_; }
  bool IsNull() const { return value_->is_null(); }

  /// A member of this object; null if there is none.
  JsonReader operator[](const std::string& key) const;
  /// The elements of this array.
  std::vector<JsonReader> Elements() const;

  const std::string& Text() const;
  bool Bool() const;
  int64_t Integer(int64_t min, int64_t max) const;
  /// The value, or `other` if this is null.
  bool BoolOr(bool other) const { return IsNull() ? other : Bool(); }
  std::string TextOr(std::string other) const { return IsNull() ? other : Text(); }
  int64_t IntegerOr(int64_t other, int64_t min, int64_t max) const { return IsNull() ? other : Integer(min, max); }

  /// Throws unless this is an object whose keys are all in `allowed`.
  void RequireObject(std::initializer_list<std::string_view> allowed) const;

  /// "FILE: PLACE = VALUE: why".
  [[noreturn]] void Refuse(const std::string& why) const;

 private:
  JsonReader(const std::string* file, const nlohmann::json* value, std::string place)
      : file_(file), value_(value), place_(std::move(place)) {}

  const std::string* file_;
  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace espalier
