#include "espalier/mesh/mesh.hpp"

#include <fmt/core.h>

#include "espalier/util/error.hpp"

namespace espalier {

int Mesh::Ranks() const {
  int n = 1;
  for (int d : degrees_) n *= d;
  return n;
}

Coordinate Mesh::CoordinateOf(int rank) const {
  Coordinate c{};
  for (auto a = kAxesOfRanks.rbegin(); a != kAxesOfRanks.rend(); rank /= degrees_[*a++]) c[*a] = rank % degrees_[*a];
  return c;
}

int Mesh::RankOf(const Coordinate& c) const {
  int rank = 0;
  for (Axis a : kAxesOfRanks) rank = rank * degrees_[a] + c[a];
  return rank;
}

int Mesh::GroupSize(AxisSet axes) const {
  int n = 1;
  for (Axis a : kAxes)
    if (axes.Has(a)) n *= Degree(a);
  return n;
}

int Mesh::IndexInGroup(AxisSet axes, const Coordinate& c) const {
  int index = 0;
  for (Axis a : kAxes)
    if (axes.Has(a)) index = index * Degree(a) + c[a];
  return index;
}

Coordinate Mesh::GroupMember(AxisSet axes, const Coordinate& coordinate, int index) const {
  Coordinate c = coordinate;
  for (auto a = kAxes.rbegin(); a != kAxes.rend(); ++a) {
    if (!axes.Has(*a)) continue;
    c[*a] = index % Degree(*a);
    index /= Degree(*a);
  }
  CHECK(index == 0, "group member index out of range");
  return c;
}

std::vector<int> Mesh::GroupRanks(AxisSet axes, const Coordinate& c) const {
  std::vector<int> ranks;
  for (int i = 0; i < GroupSize(axes); ++i) ranks.push_back(RankOf(GroupMember(axes, c, i)));
  return ranks;
}

AxisSet Mesh::Real(AxisSet axes) const {
  AxisSet real;
  for (Axis a : kAxes)
    if (axes.Has(a) && Degree(a) > 1) real.Add(a);
  return real;
}

std::vector<std::pair<std::string_view, int>> Mesh::DeckDegrees() const {
  std::vector<std::pair<std::string_view, int>> degrees;
  for (const AxisRow& row : kAxisTable)
    if (row.whole == row.axis) degrees.emplace_back(row.name, GroupSize(FactorsOf(row.axis)));
  return degrees;
}

std::string Mesh::ToString() const {
  std::string text;
  for (const auto& [name, degree] : DeckDegrees())
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, degree);
  return text;
}

}  // namespace espalier
