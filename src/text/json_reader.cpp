#include "text/json_reader.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "espalier/util/error.hpp"
#include "espalier/util/json.hpp"

namespace espalier {

nlohmann::json ParseDocument(const std::string& file, const std::string& bytes) {
  try {
    return ParseJson(bytes, JsonRules{});
  } catch (const nlohmann::json::exception& error) {
    throw UserError(ExitStatus::kData, fmt::format("{}: is not JSON: {}", file, error.what()));
  } catch (const std::invalid_argument& error) {
    throw UserError(ExitStatus::kData, fmt::format("{}: {}", file, error.what()));
  }
}

void JsonReader::Refuse(const std::string& why) const {
  constexpr size_t kMaxShown = 120;
  std::string shown = value_->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (shown.size() > kMaxShown) shown = shown.substr(0, kMaxShown) + "...";
  throw UserError(ExitStatus::kData,
                  fmt::format("{}: {} = {}: {}", *file_, place_.empty() ? "the document" : place_, shown, why));
}

JsonReader JsonReader::operator[](const std::string& key) const {
  static const nlohmann::json kNull;
  if (!value_->is_object()) Refuse("must be an object");
  const auto found = value_->find(key);
  return {file_, found == value_->end() ? &kNull : &*found, place_.empty() ? key : place_ + "." + key};
}

std::vector<JsonReader> JsonReader::Elements() const {
  if (!value_->is_array()) Refuse("must be an array");
  std::vector<JsonReader> elements;
  for (const nlohmann::json& element : *value_)
    elements.push_back(JsonReader(file_, &element, fmt::format("{}[{}]", place_, elements.size())));
  return elements;
}

const std::string& JsonReader::Text() const {
  if (!value_->is_string()) Refuse("must be a string");
  return value_->get_ref<const std::string&>();
}

bool JsonReader::Bool() const {
  if (!value_->is_boolean()) Refuse("must be true or false");
  return value_->get<bool>();
}

int64_t JsonReader::Integer(int64_t min, int64_t max) const {
  if (!value_->is_number_integer() || *value_ < min || *value_ > max)
    Refuse(fmt::format("must be an integer from {} to {}", min, max));
  return value_->get<int64_t>();
}

void JsonReader::RequireObject(std::initializer_list<std::string_view> allowed) const {
  if (!value_->is_object()) Refuse("must be an object");
  for (const auto& [key, member] : value_->items())
    if (std::ranges::find(allowed, key) == allowed.end())
      (*this)[key].Refuse(fmt::format("is not supported (supported here: {})", fmt::join(allowed, ", ")));
}

}  // namespace espalier
