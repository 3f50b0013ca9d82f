#include "checkpoint/transfer/pieces.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "espalier/graph/local_range.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

void CheckTensor(const StateTensor& tensor, const Mesh& mesh) {
  const size_t rank = tensor.type.shape.size();
  CHECK(tensor.type.dtype != Dtype::kI32, "{} is {}, checkpoints hold fp32 and bf16", tensor.name,
        Name(tensor.type.dtype));
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
void CheckTiling(const std::vector<StateTensor>& tensors, const std::vector<StatePiece>& pieces) {
  std::map<std::string_view, Shape> shapes;
  std::map<std::string_view, std::vector<Box>> boxes;
  for (const StateTensor& tensor : tensors) {
    const Shape& shape = shapes.emplace(tensor.StoredName(), tensor.StoredShape()).first->second;
    CHECK(shape == tensor.StoredShape(), "{} is part of {} and of {}", tensor.name, ToString(tensor.StoredShape()),
          ToString(shape));
  }
  for (const StatePiece& piece : pieces)
    boxes[tensors[static_cast<size_t>(piece.tensor)].StoredName()].push_back(piece.box);
  for (const auto& [name, shape] : shapes) {
    const std::string error = TilingError(shape, boxes[name]);
    CHECK(error.empty(), "{}: {}", name, error);
  }
}

/// The shards of a type on one stage, without empty ones: by the order of the mesh.
struct Shard {
  Coordinate holder;  ///< the first of the ranks with equal copies
  int64_t bytes;
};
std::vector<Shard> ShardsOf(const StateTensor& tensor, const Mesh& mesh) {
  const AxisSet sharded = mesh.Real(tensor.type.placements.Sharded());
  std::vector<Shard> shards;
  for (int i = 0; i < mesh.GroupSize(sharded); ++i) {
    const Coordinate holder = mesh.GroupMember(sharded, OnStage(tensor.stage), i);
    const int64_t bytes = LocalVolume(tensor.type, mesh, holder) * SizeOf(tensor.type.dtype);
    if (bytes > 0) shards.push_back({holder, bytes});
  }
  return shards;
}

/// Visits every shard of every tensor with its writer: among the ranks with equal copies, the one with the fewest bytes
/// so far. Tensors of one type have equal shards.
void AssignWriters(const std::vector<StateTensor>& tensors, const Mesh& mesh, const auto& visit) {
  std::vector<int64_t> bytes(static_cast<size_t>(mesh.Ranks()), 0);
  std::set<std::string_view> names;
  std::map<std::pair<std::string, int>, std::vector<Shard>> shards_of;  // (type, stage)
  for (size_t t = 0; t < tensors.size(); ++t) {
    const StateTensor& tensor = tensors[t];
    CheckTensor(tensor, mesh);
    CHECK(names.insert(tensor.name).second, "{} appears twice", tensor.name);
    const AxisSet replicas = mesh.Real(kAxesOfStage - tensor.type.placements.Sharded());
    const auto [shards, fresh] = shards_of.try_emplace({ToString(tensor.type), tensor.stage});
    if (fresh) shards->second = ShardsOf(tensor, mesh);
    for (const Shard& shard : shards->second) {
      const int writer = ChooseWriter(mesh, replicas, shard.holder, bytes);
      bytes[static_cast<size_t>(writer)] += shard.bytes;
      visit(t, shard, writer, replicas);
    }
  }
}

}  // namespace

std::vector<StatePiece> PlanPieces(const std::vector<StateTensor>& tensors, const Mesh& mesh) {
  std::vector<StatePiece> pieces;
  AssignWriters(tensors, mesh, [&](size_t t, const Shard& shard, int writer, AxisSet replicas) {
    pieces.push_back(
        {static_cast<int>(t), tensors[t].StoredBox(mesh, shard.holder), writer, mesh.RankOf(shard.holder), replicas});
  });
  CheckTiling(tensors, pieces);
  return pieces;
}

std::vector<int64_t> SumByWriter(const std::vector<StateTensor>& tensors, const Mesh& mesh,
                                 int64_t (*rounded)(int64_t bytes)) {
  std::vector<int64_t> bytes(static_cast<size_t>(mesh.Ranks()), 0);
  AssignWriters(tensors, mesh, [&](size_t, const Shard& shard, int writer, AxisSet) {
    bytes[static_cast<size_t>(writer)] += rounded(shard.bytes);
  });
  return bytes;
}

}  // namespace espalier
