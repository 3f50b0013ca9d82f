// Which communicator each instruction uses.
#include <algorithm>

#include "espalier/comm/agreement.hpp"
#include "espalier/comm/communication.hpp"
#include "espalier/comm/pack.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

Channel PointToPoint(const Mesh& mesh, int from, int to) {
  CHECK(from != to, "stage {} sends to itself", from);
  return {mesh.Real({Axis::kPp}), Lane::kPpSend, to > from ? Route::kUp : Route::kDown};
}

std::vector<Channel> Distinct(std::vector<Channel> channels) {
  std::sort(channels.begin(), channels.end());
  channels.erase(std::unique(channels.begin(), channels.end()), channels.end());
  return channels;
}

}  // namespace

Channel ChannelOf(const Program& program, const Instruction& instruction) {
  const Op& op = program.graph->ops[static_cast<size_t>(instruction.op)];
  const Mesh& mesh = program.mesh;
  if (op.kind == OpKind::kSend) return PointToPoint(mesh, program.stage, op.Peer());
  if (op.kind == OpKind::kRecv) return PointToPoint(mesh, op.Peer(), program.stage);
  if (op.kind == OpKind::kGatherStages) return {mesh.Real({Axis::kPp}), instruction.lane, Route::kGroup};
  const auto axes = op.Axes();
  return {mesh.Real(axes), instruction.lane, Route::kGroup};
}

std::vector<Channel> ChannelsOf(const Program& program) {
  std::vector<Channel> channels;
  for (const Instruction& instruction : program.instructions) {
    if (!IsMessageLane(instruction.lane)) continue;
    const Channel channel = ChannelOf(program, instruction);
    if (!channel.axes.Empty()) channels.push_back(channel);
  }
  return Distinct(std::move(channels));
}

std::vector<Channel> AgreeOnChannels(World& world, const std::vector<Channel>& mine) {
  std::vector<Channel> all;
  for (const std::vector<Channel>& channels : Gathered(world, mine))
    all.insert(all.end(), channels.begin(), channels.end());
  return Unpack<std::vector<Channel>>(world.Broadcast(Pack(Distinct(std::move(all)))));
}

}  // namespace espalier
