#include <algorithm>

#include "espalier/comm/communicator.hpp"
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

/// Three characters a channel.
std::string Encode(const std::vector<Channel>& channels) {
  std::string text;
  for (const Channel& c : channels)
    text += {static_cast<char>(c.axes.bits()), static_cast<char>(c.lane), static_cast<char>(c.route)};
  return text;
}
std::vector<Channel> Decode(const std::string& text) {
  std::vector<Channel> channels;
  for (size_t i = 0; i + 2 < text.size(); i += 3)
    channels.push_back({AxisSet::FromBits(text[i]), static_cast<Lane>(text[i + 1]), static_cast<Route>(text[i + 2])});
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
    if (instruction.lane == Lane::kCompute) continue;
    const Channel channel = ChannelOf(program, instruction);
    if (!channel.axes.Empty()) channels.push_back(channel);
  }
  return Distinct(std::move(channels));
}

std::vector<Channel> AgreeOnChannels(World& world, const std::vector<Channel>& mine) {
  std::vector<Channel> all;
  for (const std::string& text : world.Gather(Encode(mine))) {
    const std::vector<Channel> channels = Decode(text);
    all.insert(all.end(), channels.begin(), channels.end());
  }
  return Decode(world.Broadcast(Encode(Distinct(std::move(all)))));
}

}  // namespace espalier
