#include "espalier/history/step_columns.hpp"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace espalier {

void StepColumns::RequireRoom(size_t rows, size_t columns) const {
  if (columns > 0 && rows > most_ / columns)
    throw std::length_error(fmt::format("{} rows of {} columns are more than {} numbers", rows, columns, most_));
}

size_t StepColumns::AddRow(int64_t step) {
  RequireRoom(steps_.size() + 1, columns_.size());
  steps_.push_back(step);
  missing_.push_back(std::nan(""));
  for (auto& [name, values] : columns_) values.push_back(std::nan(""));
  return steps_.size() - 1;
}

void StepColumns::Set(size_t row, const nlohmann::json& line) {
  for (const auto& [name, value] : line.items()) {
    if (!value.is_object()) {
      SetField(row, name, value);
      continue;
    }
    for (const auto& [member, inner] : value.items()) SetField(row, name + "." + member, inner);
  }
}

void StepColumns::SetField(size_t row, const std::string& name, const nlohmann::json& value) {
  if (!value.is_number() || name == "step") return;
  if (!columns_.contains(name)) RequireRoom(steps_.size(), columns_.size() + 1);
  const auto column = columns_.try_emplace(name, missing_).first;
  column->second[row] = value.get<double>();
}

StepColumns StepColumns::Select(const std::vector<size_t>& rows) const {
  StepColumns selected;
  for (const size_t row : rows) selected.AddRow(steps_[row]);
  for (const auto& [name, values] : columns_) {
    std::vector<double> column;
    bool empty = true;
    for (const size_t row : rows) {
      column.push_back(values[row]);
      empty = empty && std::isnan(values[row]);
    }
    if (!empty) selected.columns_.emplace(name, std::move(column));
  }
  return selected;
}

const std::vector<double>& StepColumns::Column(std::string_view name) const {
  const auto found = columns_.find(name);
  return found == columns_.end() ? missing_ : found->second;
}

}  // namespace espalier
