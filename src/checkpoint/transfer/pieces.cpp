#include "checkpoint/transfer/pieces.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

void CheckTensor(const StateTensor& tensor, const Mesh& mesh) {
  const size_t rank = tensor.type.shape.size();
  CHECK(tensor.type.dtype == Dtype::kF32, "{} is {}, checkpoints hold fp32", tensor.name, Name(tensor.type.dtype));
  CHECK(rank >= 1 && rank <= 8 && Volume(tensor.type.shape) > 0, "{} has shape {}", tensor.name,
        ToString(tensor.type.shape));
  CHECK(tensor.type.placements.Partial().Empty(), "{} is partial", tensor.name);
  CHECK(tensor.stage >= 0 && tensor.stage < mesh.Degree(Axis::kPp), "{} is on stage {} of {}", tensor.name,
        tensor.stage, mesh.Degree(Axis::kPp));
}

Coordinate OnStage(int stage) {
  Coordinate c{};
  c[static_cast<size_t>(Axis::kPp)] = stage;
  return c;
}

/// The rank with the fewest bytes to write, among those that hold copies of the shard of `holder`.
int ChooseWriter(const Mesh& mesh, AxisSet replicas, const Coordinate& holder, const std::vector<int64_t>& bytes) {
  int best = mesh.RankOf(holder);
  for (int i = 1; i < mesh.GroupSize(replicas); ++i) {
    const int rank = mesh.RankOf(mesh.GroupMember(replicas, holder, i));
    if (bytes[static_cast<size_t>(rank)] < bytes[static_cast<size_t>(best)]) best = rank;
  }
  return best;
}

/// CHECKs that every stored tensor has one shape and is filled exactly once.
void CheckTiling(const std::vector<StateTensor>& tensors, const std::vector<Piece>& pieces) {
  std::map<std::string_view, Shape> shapes;
  std::map<std::string_view, std::vector<Box>> boxes;
  for (const StateTensor& tensor : tensors) {
    const Shape& shape = shapes.emplace(tensor.StoredName(), tensor.StoredShape()).first->second;
    CHECK(shape == tensor.StoredShape(), "{} is part of {} and of {}", tensor.name, ToString(tensor.StoredShape()),
          ToString(shape));
  }
  for (const Piece& piece : pieces) boxes[tensors[static_cast<size_t>(piece.tensor)].StoredName()].push_back(piece.box);
  for (const auto& [name, shape] : shapes) {
    const std::string error = TilingError(shape, boxes[name]);
    CHECK(error.empty(), "{}: {}", name, error);
  }
}

}  // namespace

std::vector<Piece> PlanPieces(const std::vector<StateTensor>& tensors, const Mesh& mesh) {
  const AxisSet within_stage = AxisSet{Axis::kDpReplicate, Axis::kDpShard, Axis::kCp} | kTensorAxes;
  std::vector<Piece> pieces;
  std::vector<int64_t> bytes(static_cast<size_t>(mesh.Ranks()), 0);
  std::set<std::string_view> names;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const StateTensor& tensor = tensors[t];
    CheckTensor(tensor, mesh);
    CHECK(names.insert(tensor.name).second, "{} appears twice", tensor.name);
    const AxisSet sharded = mesh.Real(tensor.type.placements.Sharded());
    for (int i = 0; i < mesh.GroupSize(sharded); ++i) {
      const Coordinate holder = mesh.GroupMember(sharded, OnStage(tensor.stage), i);
      Box box = tensor.StoredBox(mesh, holder);
      if (IsEmpty(box)) continue;
      const int writer = ChooseWriter(mesh, mesh.Real(within_stage - sharded), holder, bytes);
      bytes[static_cast<size_t>(writer)] += Volume(ExtentsOf(box)) * SizeOf(Dtype::kF32);
      pieces.push_back({static_cast<int>(t), std::move(box), writer});
    }
  }
  CheckTiling(tensors, pieces);
  return pieces;
}

}  // namespace espalier
