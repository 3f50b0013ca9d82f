#include "checkpoint/pieces.hpp"

#include <algorithm>
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

/// Of the ranks that differ from `holder` only on axes that replicate, the one with the least to write.
int ChooseWriter(const Mesh& mesh, AxisSet replicas, const Coordinate& holder, const std::vector<int64_t>& bytes) {
  int best = mesh.RankOf(holder);
  for (int i = 1; i < mesh.GroupSize(replicas); ++i) {
    const int rank = mesh.RankOf(mesh.GroupMember(replicas, holder, i));
    if (bytes[static_cast<size_t>(rank)] < bytes[static_cast<size_t>(best)]) best = rank;
  }
  return best;
}

}  // namespace

std::vector<Piece> PlanPieces(const std::vector<StateTensor>& tensors, const Mesh& mesh) {
  const AxisSet within_stage = {Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp};
  std::vector<Piece> pieces;
  std::vector<int64_t> bytes(static_cast<size_t>(mesh.Ranks()), 0);
  std::set<std::string_view> names;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const StateTensor& tensor = tensors[t];
    CheckTensor(tensor, mesh);
    CHECK(names.insert(tensor.name).second, "{} appears twice", tensor.name);
    const AxisSet sharded = mesh.Real(tensor.type.placements.Sharded());
    std::vector<Box> boxes;
    for (int i = 0; i < mesh.GroupSize(sharded); ++i) {
      const Coordinate holder = mesh.GroupMember(sharded, OnStage(tensor.stage), i);
      Box box = LocalBox(tensor.type, mesh, holder);
      if (IsEmpty(box)) continue;
      const int writer = ChooseWriter(mesh, mesh.Real(within_stage - sharded), holder, bytes);
      bytes[static_cast<size_t>(writer)] += Volume(ExtentsOf(box)) * SizeOf(Dtype::kF32);
      boxes.push_back(box);
      pieces.push_back({static_cast<int>(t), std::move(box), writer});
    }
    const std::string mistake = TilingMistake(tensor.type.shape, boxes);
    CHECK(mistake.empty(), "{}: {}", tensor.name, mistake);
  }
  return pieces;
}

}  // namespace espalier
