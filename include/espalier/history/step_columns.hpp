// The numbers of steps as columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

/// One row per step. Columns have the names of the fields of metrics.jsonl; members of objects have dotted names
/// ("exposed_ms.tp"). NaN is null, or a field that a line does not have.
class StepColumns {
 public:
  /// Limit of the numbers of all columns together, including missing ones: 1 GiB.
  static constexpr size_t kMaxNumbers = size_t{1} << 27;
  explicit StepColumns(size_t most_numbers = kMaxNumbers) : most_(most_numbers) {}

  /// Adds a row with no values; returns its index. Throws std::length_error if the table would be too large.
  size_t AddRow(int64_t step);
  /// Sets every field of a line that is a number. Throws as AddRow.
  void Set(size_t row, const nlohmann::json& line);
  /// The rows with these indices, in this order.
  StepColumns Select(const std::vector<size_t>& rows) const;

  size_t Rows() const { return steps_.size(); }
  const std::vector<int64_t>& steps() const { return steps_; }
  /// True if some row has a number there.
  bool Has(std::string_view name) const { return columns_.contains(name); }
  /// One value per row; all NaN if no row has the field.
  const std::vector<double>& Column(std::string_view name) const;

 private:
  void RequireRoom(size_t rows, size_t columns) const;
  void SetField(size_t row, const std::string& name, const nlohmann::json& value);

  size_t most_;
  std::vector<int64_t> steps_;
  std::map<std::string, std::vector<double>, std::less<>> columns_;
  std::vector<double> missing_;  ///< the column of a field that no row has
};

}  // namespace espalier
