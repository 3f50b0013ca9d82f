#include "train/measuring/ladder.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "espalier/comm/agreement.hpp"
#include "espalier/costs/costs.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/median.hpp"
#include "train/measuring/kernel_times.hpp"

namespace espalier {
namespace {

constexpr int64_t kMinBytes = 1 << 10, kBytesFactor = 4;
constexpr int kWarmUpRepeats = 2;
constexpr OpKind kCollectives[] = {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kAllReduce, OpKind::kAllToAll,
                                   OpKind::kRingShift};

int Repetitions(int64_t bytes) { return bytes <= (64 << 10) ? 40 : bytes <= (1 << 20) ? 20 : 6; }

/// A program that only transfers, for the rank at `coordinate`. Each transfer is repeated; all share their buffers.
class TransferBenchmark {
 public:
  TransferBenchmark(const Mesh& mesh, const Coordinate& coordinate) : coordinate_(coordinate) { program_.mesh = mesh; }

  /// f32[n] values with types written as in graphs.
  void AddCollective(OpKind kind, int64_t bytes) {
    const auto group = static_cast<int64_t>(program_.mesh.GroupSize({Axis::kDpShard}));
    // Each member sends a shard to each of the others, twice in an all_reduce; in a ring_shift to one.
    const int64_t peers = kind == OpKind::kRingShift ? 1 : kind == OpKind::kAllReduce ? 2 * (group - 1) : group - 1;
    const int64_t shard = std::max<int64_t>(1, bytes / (4 * peers));
    const auto type = [&](std::string_view form) { return ParseType(fmt::format(fmt::runtime(form), group * shard)); };
    const Type whole = type("f32[{}]"), part = type("f32[{}{{dp_shard}}]"), sum = type("f32[{}]+sum{{dp_shard}}");
    switch (kind) {
      case OpKind::kAllGather:
        return Add(kind, part, whole, Lane::kDp, bytes);
      case OpKind::kReduceScatter:
        return Add(kind, sum, part, Lane::kDp, bytes);
      case OpKind::kAllReduce:
        return Add(kind, sum, whole, Lane::kDp, bytes);
      case OpKind::kAllToAll:
        return Add(kind, ParseType(fmt::format("f32[{}{{dp_shard}},{}]", group, group * shard)),
                   ParseType(fmt::format("f32[{},{}{{dp_shard}}]", group, group * shard)), Lane::kDp, bytes);
      default:
        return Add(kind, part, part, Lane::kDp, bytes);
    }
  }

  /// Messages from even stages to the next one; the last stage of an odd number takes no part.
  void AddMessage(int64_t bytes) {
    const int stage = coordinate_[Axis::kPp];
    program_.stage = stage;
    if (stage % 2 == 0 && stage + 1 == program_.mesh.Degree(Axis::kPp)) return;
    const Type type = ParseType(fmt::format("f32[{}]", bytes / 4));
    Add(stage % 2 == 0 ? OpKind::kSend : OpKind::kRecv, type, type, stage % 2 == 0 ? Lane::kPpSend : Lane::kPpRecv,
        bytes);
  }

  /// The program; add nothing more.
  const Program& Finish() {
    const int64_t values = Aligned(most_value_bytes_), work = Aligned(most_work_bytes_);
    for (const Rung& rung : rungs_) {
      const Op& op = graph_.op(rung.op);
      const std::vector<Operand> inputs = OperandsAt(0, op.inputs), outputs = OperandsAt(values, op.outputs);
      for (size_t i = 0; i < rung.instructions.size(); ++i)
        program_.instructions.Add({.op = rung.op,
                                   .lane = rung.lane,
                                   .inputs = inputs,
                                   .outputs = outputs,
                                   .workspace = {-1, 2 * values, rung.work_bytes}});
    }
    program_.arena_bytes = 2 * values + work;
    program_.graph = std::make_shared<Graph>(graph_);
    return program_;
  }

  /// Kind of each transfer, and the bytes that a member sends.
  struct Rung {
    OpKind kind = OpKind::kNone;
    int64_t bytes = 0;
    int op = -1;
    Lane lane = Lane::kCompute;
    int64_t work_bytes = 0;
    std::vector<size_t> instructions;
  };
  const std::vector<Rung>& rungs() const { return rungs_; }

 private:
  void Add(OpKind kind, const Type& from, const Type& to, Lane lane, int64_t about_bytes) {
    const auto value = [&](const Type& type) {
      Value v;
      v.name = graph_.Unique("v");
      v.type = type;
      v.frequency = Frequency::kStep;
      return graph_.AddValue(std::move(v));
    };
    Op op;
    op.kind = kind;
    op.role = Role::kS;
    op.chunk = kAllChunks;
    const int stage = program_.stage;
    op.attributes.numbers["axes"] = AxisSet{Axis::kDpShard}.bits();
    if (kind == OpKind::kSend) op.attributes.numbers = {{"to", stage + 1}};
    if (kind == OpKind::kRecv) op.attributes.numbers = {{"from", stage - 1}};
    if (kind != OpKind::kRecv) op.inputs = {value(from)};
    if (kind != OpKind::kSend) op.outputs = {value(to)};
    AddRung(graph_.AddOp(op), lane, Repetitions(about_bytes));
  }

  void AddRung(int id, Lane lane, int repetitions) {
    const Op& op = graph_.op(id);
    for (const std::vector<int>& values : {op.inputs, op.outputs})
      for (int value : values) most_value_bytes_ = std::max(most_value_bytes_, BytesOf(value));
    Rung rung{IsBetweenStages(op.kind) ? OpKind::kSend : op.kind,
              op.kind == OpKind::kRecv ? BytesOf(op.outputs[0]) : WireBytes(graph_, op, program_.mesh, coordinate_),
              id,
              lane,
              CommWorkspaceBytes(graph_, op, program_.mesh, coordinate_),
              {}};
    most_work_bytes_ = std::max(most_work_bytes_, rung.work_bytes);
    for (int i = 0; i < repetitions; ++i) rung.instructions.push_back(instructions_++);
    rungs_.push_back(std::move(rung));
  }

  int64_t BytesOf(int value) const {
    const Type& type = graph_.value(value).type;
    return Volume(LocalShape(type, program_.mesh, coordinate_)) * SizeOf(type.dtype);
  }
  std::vector<Operand> OperandsAt(int64_t offset, const std::vector<int>& values) const {
    std::vector<Operand> operands;
    for (int value : values) operands.push_back({value, offset, BytesOf(value)});
    return operands;
  }

  Coordinate coordinate_;
  Graph graph_;
  Program program_;
  std::vector<Rung> rungs_;
  size_t instructions_ = 0;
  int64_t most_value_bytes_ = 0, most_work_bytes_ = 0;
};

std::vector<int64_t> SizesUpTo(int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t bytes = kMinBytes; bytes <= most; bytes *= kBytesFactor) sizes.push_back(bytes);
  return sizes;
}

/// Median times of a rank's rungs, us.
struct RungTimes {
  std::vector<double> us;
  auto Fields() { return std::tie(us); }
};

/// Pages that were never written would all be the same physical page.
void FillMemory(Arena& arena, int64_t bytes) {
  const std::vector<float> ones(1 << 18, 1.0F);
  const auto part = static_cast<int64_t>(ones.size() * sizeof(float));
  for (int64_t at = 0; at < bytes; at += part)
    arena.Write(arena.At(at, std::min(part, bytes - at)), ones.data(), std::min(part, bytes - at));
}

/// Runs a program, and gathers on rank 0 the medians of all ranks that took part, by rung.
std::vector<std::vector<double>> RunRungs(TransferBenchmark& ladder, const Coordinate& coordinate, World& world,
                                          MpiWorld& mpi, Device& device) {
  const Program& program = ladder.Finish();
  device.Connect(mpi, program.mesh, AgreeOnChannels(world, ChannelsOf(program)));
  std::unique_ptr<Arena> arena;
  OnAllRanks(world, [&] { arena = device.MakeArena(std::max<int64_t>(kAlignment, program.arena_bytes)); });
  FillMemory(*arena, program.arena_bytes);
  const auto executor =
      device.MakeExecutor(program, coordinate, *arena, [&](const std::string& message) { mpi.Fail(message); });
  executor->RunStep();
  world.Barrier();
  executor->TimeNextStep();
  executor->RunStep();
  RungTimes mine;
  for (const TransferBenchmark::Rung& rung : ladder.rungs()) {
    std::vector<double> us;
    for (size_t i = kWarmUpRepeats; i < rung.instructions.size(); ++i)
      us.push_back(executor->instruction_ms()[rung.instructions[i]] * 1e3);
    mine.us.push_back(MedianOf(us));
  }
  std::vector<std::vector<double>> by_rung(ladder.rungs().size());
  for (const RungTimes& rank : Gathered(world, mine))
    for (size_t i = 0; i < rank.us.size(); ++i) by_rung[i].push_back(rank.us[i]);
  return by_rung;
}

void AddRows(const TransferBenchmark& ladder, const GroupPlace& place, const std::vector<std::vector<double>>& times,
             CostTable& table) {
  for (size_t i = 0; i < ladder.rungs().size(); ++i) {
    const TransferBenchmark::Rung& rung = ladder.rungs()[i];
    if (times[i].empty()) continue;
    const auto samples = std::ssize(times[i]) * (std::ssize(rung.instructions) - kWarmUpRepeats);
    table.collectives[{rung.kind, place}][rung.bytes] = {MedianOf(times[i]), samples};
  }
}

GroupPlace PairPlace(bool same_node) { return {2, same_node ? 1 : 2, same_node ? 2 : 1}; }

using Points = std::map<int64_t, Measured>;

/// Bytes per us between the first and the last point.
double RateOf(const Points& points) {
  const double us = points.rbegin()->second.us - points.begin()->second.us;
  return us > 0 ? static_cast<double>(points.rbegin()->first - points.begin()->first) / us : 0;
}

void SetLink(const CostTable& table, bool same_node, LinkModel& link) {
  if (const auto pair = table.collectives.find({OpKind::kSend, PairPlace(same_node)});
      pair != table.collectives.end()) {
    link.message_us = pair->second.begin()->second.us;
    link.pair_bytes_per_us = RateOf(pair->second);
  }
  const Points *small = nullptr, *large = nullptr;
  int small_ranks = 0, large_ranks = 0;
  for (const auto& [key, points] : table.collectives) {
    if (key.kind != OpKind::kAllGather || (key.place.nodes == 1) != same_node) continue;
    if (small == nullptr) small = &points, small_ranks = key.place.ranks;
    large = &points, large_ranks = key.place.ranks;
  }
  if (small == nullptr) return;
  const double first_us = small->begin()->second.us;
  link.bytes_per_us = RateOf(*large);
  if (large_ranks > small_ranks)
    link.hop_us = std::max(0.0, (large->begin()->second.us - first_us) / (large_ranks - small_ranks));
  link.base_us = std::max(0.0, first_us - (small_ranks - 1) * link.hop_us);
}

}  // namespace

std::vector<LadderPlace> LadderPlaces(int ranks, int ranks_per_node) {
  std::vector<LadderPlace> places;
  const auto add = [&](EnumArray<Axis, int, kAxisCount> degrees) {
    const Mesh mesh(degrees);
    places.push_back({mesh, PlaceOf(mesh, {Axis::kDpShard}, {}, ranks_per_node)});
  };
  for (int group = 2; group < ranks; group *= 2)
    if (ranks % group == 0) add({0, ranks / group, group});
  if (ranks > 1) add({0, 0, ranks});
  if (ranks > ranks_per_node && ranks_per_node > 1 && ranks % ranks_per_node == 0)
    add({0, 0, ranks / ranks_per_node, 0, ranks_per_node});
  return places;
}

CostTable MeasureTransfers(World& world, MpiWorld* mpi, const OpenDevice& open, int64_t most_bytes) {
  CostTable table;
  if (mpi == nullptr || world.Size() == 1) return table;
  for (const LadderPlace& place : LadderPlaces(world.Size(), mpi->NodeRanks())) {
    const Coordinate coordinate = place.mesh.CoordinateOf(world.Rank());
    TransferBenchmark ladder(place.mesh, coordinate);
    for (OpKind kind : kCollectives)
      for (int64_t bytes : SizesUpTo(most_bytes)) ladder.AddCollective(kind, bytes);
    AddRows(ladder, place.place, RunRungs(ladder, coordinate, world, *mpi, *open()), table);
  }
  const Mesh stages(EnumArray<Axis, int, kAxisCount>{world.Size()});
  const Coordinate coordinate = stages.CoordinateOf(world.Rank());
  TransferBenchmark ladder(stages, coordinate);
  for (int64_t bytes : SizesUpTo(most_bytes)) ladder.AddMessage(bytes);
  AddRows(ladder, PairPlace(mpi->NodeRanks() > 1), RunRungs(ladder, coordinate, world, *mpi, *open()), table);
  return table;
}

void SetLinks(Cluster& cluster) {
  SetLink(cluster.table, true, cluster.node);
  SetLink(cluster.table, false, cluster.network);
}

}  // namespace espalier
