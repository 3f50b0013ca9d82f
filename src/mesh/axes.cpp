#include "espalier/mesh/axes.hpp"

#include "espalier/util/error.hpp"

namespace espalier {

std::string_view Name(CommAxis axis) {
  static constexpr ByCommAxis<std::string_view> kNames = {"tp", "cp", "ep", "dp", "pp", "host"};
  return kNames[axis];
}

std::vector<Axis> AxisSet::List() const {
  std::vector<Axis> axes;
  for (Axis a : kAxes)
    if (Has(a)) axes.push_back(a);
  return axes;
}

std::string Name(AxisSet axes) {
  std::string text;
  for (Axis a : axes.List()) text += (text.empty() ? "" : "+") + std::string(Name(a));
  return text.empty() ? "none" : text;
}

AxisSet ParseAxisSet(std::string_view text) {
  AxisSet axes;
  for (std::string_view rest = text; !rest.empty() && text != "none";) {
    const std::string_view name = rest.substr(0, rest.find('+'));
    const auto row = std::ranges::find(kAxisTable, name, &AxisRow::name);
    CHECK(row != kAxisTable.end(), "'{}' is no set of axes", text);
    axes.Add(row->axis);
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
  }
  return axes;
}

}  // namespace espalier
