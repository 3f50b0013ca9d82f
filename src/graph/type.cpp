#include "espalier/graph/type.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "espalier/graph/local_range.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

AxisSet Placements::Sharded() const {
  AxisSet axes;
  for (const std::vector<Axis>& dim : dims)
    for (Axis a : dim) axes.Add(a);
  return axes;
}

int Placements::DimOf(Axis axis) const {
  for (size_t d = 0; d < dims.size(); ++d)
    if (std::find(dims[d].begin(), dims[d].end(), axis) != dims[d].end()) return static_cast<int>(d);
  return -1;
}

Type MakeType(Dtype dtype, Shape shape) {
  Type type{dtype, std::move(shape), {}};
  type.placements.dims.resize(type.shape.size());
  return type;
}

namespace {

std::string AxisList(const std::vector<Axis>& axes) {
  std::string text;
  for (Axis a : axes) text += (text.empty() ? "" : ",") + std::string(Name(a));
  return text;
}

/// Reads a type left to right; every error names the whole text.
class TypeReader {
 public:
  explicit TypeReader(std::string_view text) : text_(text), rest_(text) {}

  Type Read() {
    Type type = MakeType(ReadDtype(), {});
    Expect("[");
    while (!Take("]")) {
      type.shape.push_back(ReadInteger());
      type.placements.dims.push_back(Take("{") ? ReadAxes() : std::vector<Axis>{});
      Take(",");
    }
    if (Take("+sum{"))
      for (Axis a : ReadAxes()) type.placements.partial_sum.Add(a);
    if (Take("+max{"))
      for (Axis a : ReadAxes()) type.placements.partial_max.Add(a);
    CHECK(rest_.empty(), "type '{}': unexpected '{}'", text_, rest_);
    return type;
  }

 private:
  bool Take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void Expect(std::string_view token) { CHECK(Take(token), "type '{}': expected '{}' at '{}'", text_, token, rest_); }
  Dtype ReadDtype() {
    for (Dtype d : kDtypes)
      if (Take(Name(d))) return d;
    CHECK(false, "type '{}': unknown element type", text_);
  }
  int64_t ReadInteger() {
    int64_t value = 0;
    auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    CHECK(error == std::errc{}, "type '{}': expected an extent at '{}'", text_, rest_);
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return value;
  }
  std::vector<Axis> ReadAxes() {
    std::vector<Axis> axes;
    while (!Take("}")) {
      const auto axis = std::find_if(kAxes.begin(), kAxes.end(), [&](Axis a) {
        const std::string_view name = Name(a);
        return rest_.starts_with(name) && rest_.size() > name.size() &&
               (rest_[name.size()] == ',' || rest_[name.size()] == '}');
      });
      CHECK(axis != kAxes.end(), "type '{}': unknown axis at '{}'", text_, rest_);
      Take(Name(*axis));
      Take(",");
      axes.push_back(*axis);
    }
    return axes;
  }

  std::string_view text_, rest_;
};

}  // namespace

std::string ToString(const Type& type) {
  std::string text = std::string(Name(type.dtype)) + "[";
  for (size_t d = 0; d < type.shape.size(); ++d) {
    text += fmt::format("{}{}", d > 0 ? "," : "", type.shape[d]);
    if (!type.placements.dims[d].empty()) text += "{" + AxisList(type.placements.dims[d]) + "}";
  }
  text += "]";
  if (!type.placements.partial_sum.Empty()) text += "+sum{" + AxisList(type.placements.partial_sum.List()) + "}";
  if (!type.placements.partial_max.Empty()) text += "+max{" + AxisList(type.placements.partial_max.List()) + "}";
  return text;
}

Type ParseType(std::string_view text) { return TypeReader(text).Read(); }

Range ShardOf(Range whole, int n, int i) {
  const int64_t extent = whole.Extent();
  const int64_t c = (extent + n - 1) / n;
  return {whole.begin + std::min(extent, i * c), whole.begin + std::min(extent, (i + 1) * c)};
}

Shape ExtentsOf(const Box& box) {
  Shape shape;
  shape.reserve(box.size());
  for (const Range& r : box) shape.push_back(r.Extent());
  return shape;
}

Box Intersect(const Box& a, const Box& b) {
  CHECK(a.size() == b.size(), "boxes of rank {} and {}", a.size(), b.size());
  Box box;
  box.reserve(a.size());
  for (size_t d = 0; d < a.size(); ++d) {
    const int64_t begin = std::max(a[d].begin, b[d].begin);
    box.push_back({begin, std::max(begin, std::min(a[d].end, b[d].end))});
  }
  return box;
}

bool IsEmpty(const Box& box) {
  return std::any_of(box.begin(), box.end(), [](const Range& r) { return r.Extent() == 0; });
}

namespace {

/// Piece number `i` of a range that is cut into pieces of `extent` elements. The last pieces are shorter, or empty.
Range PieceOf(Range whole, int64_t extent, int64_t i) {
  return {std::min(whole.end, whole.begin + i * extent), std::min(whole.end, whole.begin + (i + 1) * extent)};
}

}  // namespace

/// Factors with Division::kOfWhole divide the shards of the whole axis, so that the split changes no sum.
Range LocalRange(const Type& type, size_t dim, const Mesh& mesh, const Coordinate& coordinate) {
  Range range{0, type.shape[dim]};
  int64_t shard = 0;  // extent of a shard of the whole axis
  AxisSet inside;     // factors that divide a range of such shards
  for (Axis a : type.placements.dims[dim]) {
    if (RowOf(a).division == Division::kOfRest) {
      range = ShardOf(range, mesh.Degree(a), coordinate[a]);
      continue;
    }
    const bool continues = inside.Has(a);
    inside = FactorsInside(a);
    const int64_t ranks_inside = mesh.GroupSize(inside), n = mesh.Degree(a) * ranks_inside;
    if (!continues) shard = (range.Extent() + n - 1) / n;
    range = PieceOf(range, shard * ranks_inside, coordinate[a]);
  }
  return range;
}

Box LocalBox(const Type& type, const Mesh& mesh, const Coordinate& coordinate) {
  Box box;
  box.reserve(type.shape.size());
  for (size_t d = 0; d < type.shape.size(); ++d) box.push_back(LocalRange(type, d, mesh, coordinate));
  return box;
}

Shape LocalShape(const Type& type, const Mesh& mesh, const Coordinate& coordinate) {
  Shape shape;
  shape.reserve(type.shape.size());
  for (size_t d = 0; d < type.shape.size(); ++d) shape.push_back(LocalRange(type, d, mesh, coordinate).Extent());
  return shape;
}

int64_t LocalVolume(const Type& type, const Mesh& mesh, const Coordinate& coordinate) {
  int64_t n = 1;
  for (size_t d = 0; d < type.shape.size(); ++d)
    CHECK(!__builtin_mul_overflow(n, LocalRange(type, d, mesh, coordinate).Extent(), &n),
          "the volume of {} is beyond an int64", ToString(LocalShape(type, mesh, coordinate)));
  return n;
}

}  // namespace espalier
