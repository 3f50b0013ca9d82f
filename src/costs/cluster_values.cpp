#include "cluster_values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "cluster_ranges.hpp"

namespace espalier {
namespace {

std::string MustBe(std::string_view what, const Allowed& allowed) {
  const std::string text = AllowedText(allowed);
  return fmt::format("must be {}{}", what, text.empty() ? "" : fmt::format(" (allowed: {})", text));
}

template <typename T>
std::string ReadScalar(const RawSetting& setting, const Allowed& allowed, T& field) {
  const T* value = setting.value ? std::get_if<T>(&*setting.value) : nullptr;
  if (value == nullptr) return MustBe(TypeName(DeckValue(T{}).index()), allowed);
  if (std::string fault = FaultOf(*value, allowed); !fault.empty()) return fault;
  field = *value;
  return "";
}

/// A list of lists of `columns` numbers; nothing for any other value.
std::optional<std::vector<std::vector<double>>> RowsOf(const RawSetting& setting, size_t columns) {
  if (!setting.value) return std::nullopt;
  if (const auto* empty = std::get_if<std::vector<int64_t>>(&*setting.value); empty && empty->empty())
    return std::vector<std::vector<double>>{};
  const auto* rows = std::get_if<std::vector<std::vector<double>>>(&*setting.value);
  if (rows == nullptr) return std::nullopt;
  for (const std::vector<double>& row : *rows)
    if (row.size() != columns) return std::nullopt;
  return *rows;
}

std::string Number(double x) { return ToToml(x); }

/// The allowed values of a column in a list of rows.
struct Column {
  Column(const Allowed& bounds, bool is_whole = false) : allowed(bounds), whole(is_whole) {}
  Allowed allowed;
  bool whole;  ///< numbers
};
Column Whole(const Allowed& allowed) { return {allowed, true}; }

/// The error of a row of a list, with its column.
std::string FaultOf(const std::vector<double>& row, const std::vector<Column>& columns) {
  constexpr std::string_view kPlaces[] = {"first", "second", "third"};
  for (size_t i = 0; i < row.size(); ++i) {
    const auto& [allowed, whole] = columns[i];
    std::string fault = FaultOf(DeckValue(row[i]), allowed);
    if (fault.empty() && whole && row[i] != std::trunc(row[i]))
      fault = fmt::format("must be a whole number (allowed: {})", AllowedText(allowed));
    if (!fault.empty()) return fmt::format("the {} number of a row, {}: {}", kPlaces[i], Number(row[i]), fault);
  }
  return "";
}

/// "" if the first column of the rows rises.
std::string Rises(const std::vector<std::vector<double>>& rows, std::string_view what) {
  for (size_t i = 1; i < rows.size(); ++i)
    if (!(rows[i][0] > rows[i - 1][0]))
      return fmt::format("{} must rise from point to point: {} comes after {}", what, rows[i][0], rows[i - 1][0]);
  return "";
}

}  // namespace

std::string Read(const RawSetting& setting, const Allowed& allowed, bool& field) {
  return ReadScalar(setting, allowed, field);
}

std::string Read(const RawSetting& setting, const Allowed& allowed, int& field) {
  int64_t value = 0;
  std::string fault = Read(setting, allowed, value);
  if (fault.empty() && value != static_cast<int>(value))
    return fmt::format("out of range (allowed: up to {})", std::numeric_limits<int>::max());
  if (fault.empty()) field = static_cast<int>(value);
  return fault;
}

std::string Read(const RawSetting& setting, const Allowed& allowed, int64_t& field) {
  return ReadScalar(setting, allowed, field);
}

std::string Read(const RawSetting& setting, const Allowed& allowed, double& field) {
  const auto* integer = setting.value ? std::get_if<int64_t>(&*setting.value) : nullptr;
  if (integer == nullptr) return ReadScalar(setting, allowed, field);
  RawSetting number = setting;
  number.value = static_cast<double>(*integer);
  return ReadScalar(number, allowed, field);
}

std::string Read(const RawSetting& setting, const Allowed& allowed, std::string& field) {
  return ReadScalar(setting, allowed, field);
}

std::string Read(const RawSetting& setting, const Allowed& allowed, std::vector<int64_t>& field) {
  return ReadScalar(setting, allowed, field);
}

std::string Read(const RawSetting& setting, const Allowed& allowed, Curve& field) {
  const auto rows = RowsOf(setting, 2);
  if (!rows) return "must be a list of pairs of numbers, such as [[1e6, 0.6], [1e8, 0.9]]";
  if (std::string fault = Rises(*rows, "the first number"); !fault.empty()) return fault;
  Curve curve;
  for (const std::vector<double>& row : *rows) {
    if (std::string fault = FaultOf(row, {Sizes(), allowed}); !fault.empty()) return fault;
    curve.emplace_back(row[0], row[1]);
  }
  field = std::move(curve);
  return "";
}

std::string Read(const RawSetting& setting, const Allowed& allowed, std::vector<MatmulTile>& field) {
  const auto rows = RowsOf(setting, 3);
  if (!rows) return "must be a list of [rows, columns, share of the rate], such as [[256, 128, 1.0]]";
  std::vector<MatmulTile> tiles;
  for (const std::vector<double>& row : *rows) {
    if (std::string fault = FaultOf(row, {Whole(TileExtent()), Whole(TileExtent()), allowed}); !fault.empty())
      return fault;
    tiles.push_back({static_cast<int64_t>(row[0]), static_cast<int64_t>(row[1]), row[2]});
  }
  field = std::move(tiles);
  return "";
}

std::string Read(const RawSetting& setting, const Allowed& allowed, std::map<int64_t, Measured>& field) {
  const auto rows = RowsOf(setting, 3);
  if (!rows || rows->empty()) return "must be a list of [bytes, us, samples], such as [[1024, 5.5, 100]]";
  if (std::string fault = Rises(*rows, "bytes"); !fault.empty()) return fault;
  std::map<int64_t, Measured> points;
  for (const std::vector<double>& row : *rows) {
    if (std::string fault = FaultOf(row, {Whole(Sizes()), allowed, Whole(Samples())}); !fault.empty()) return fault;
    points[static_cast<int64_t>(row[0])] = {row[1], static_cast<int64_t>(row[2])};
  }
  field = std::move(points);
  return "";
}

std::string Write(bool field) { return ToToml(field); }
std::string Write(int field) { return ToToml(int64_t{field}); }
std::string Write(int64_t field) { return ToToml(field); }
std::string Write(double field) { return Number(field); }
std::string Write(const std::string& field) { return ToToml(field); }
std::string Write(const std::vector<int64_t>& field) { return ToToml(field); }

std::string Write(const Curve& field) {
  std::vector<std::string> points;
  for (const auto& [x, y] : field) points.push_back(fmt::format("[{}, {}]", Number(x), Number(y)));
  return fmt::format("[{}]", fmt::join(points, ", "));
}

std::string Write(const std::vector<MatmulTile>& field) {
  std::vector<std::string> tiles;
  for (const MatmulTile& tile : field)
    tiles.push_back(fmt::format("[{}, {}, {}]", tile.rows, tile.columns, Number(tile.share)));
  return fmt::format("[{}]", fmt::join(tiles, ", "));
}

std::string Write(const std::map<int64_t, Measured>& field) {
  std::vector<std::string> points;
  for (const auto& [bytes, measured] : field)
    points.push_back(fmt::format("[{}, {}, {}]", bytes, Number(measured.us), measured.samples));
  return fmt::format("[{}]", fmt::join(points, ", "));
}

}  // namespace espalier
