#include "simulate/lane_items.hpp"

#include <algorithm>
#include <optional>

#include "espalier/util/error.hpp"

namespace espalier::simulate {
namespace {

template <typename T>
uint8_t IndexOf(std::vector<T>& list, const T& element) {
  const auto it = std::find(list.begin(), list.end(), element);
  const auto index = it - list.begin();
  CHECK(index < 32, "a world of more than 32 families of groups, or a program with more than 32 peers");
  if (it == list.end()) list.push_back(element);
  return static_cast<uint8_t>(index);
}

class Reader {
 public:
  Reader(LaneItems& lanes, std::vector<Family>& families)
      : lanes_(lanes), families_(families), by_op_(lanes.program->graph->ops.size()) {}

  void Run() {
    const Instructions& instructions = lanes_.program->instructions;
    for (const Instruction& i : instructions) ++lanes_.begin[static_cast<size_t>(i.lane) + 1];
    for (size_t l = 0; l < kLaneCount; ++l) lanes_.begin[l + 1] += lanes_.begin[l];
    lanes_.items.resize(instructions.size());
    lanes_.instruction.resize(instructions.size());
    std::array<int, kLaneCount + 1> next = lanes_.begin;
    for (size_t i = 0; i < instructions.size(); ++i) {
      const auto at = static_cast<size_t>(next[static_cast<size_t>(instructions[i].lane)]++);
      lanes_.items[at] = ItemOf(instructions[i]);
      lanes_.instruction[at] = static_cast<int>(i);
    }
  }

 private:
  Item ItemOf(const Instruction& instruction) {
    std::optional<Item>& of_op = by_op_[static_cast<size_t>(instruction.op)];
    if (!of_op) of_op = ItemOf(lanes_.program->graph->op(instruction.op), instruction.lane);
    Item item = *of_op;
    item.op = instruction.op;
    item.microbatch = instruction.microbatch;
    item.first_wait = static_cast<uint32_t>(lanes_.waits.size());
    item.waits = static_cast<uint8_t>(instruction.waits.size());
    lanes_.waits.insert(lanes_.waits.end(), instruction.waits.begin(), instruction.waits.end());
    return item;
  }

  /// The properties that all instructions of an op share: attributes are looked up by name once.
  Item ItemOf(const Op& op, Lane lane) {
    CHECK(IsCommunication(op.kind) == IsMessageLane(lane), "{} on lane {}", op.kind, Name(lane));
    Item item;
    item.part = PartOf(*lanes_.program->graph, op);
    if (IsHostCopy(op.kind)) item.kind = ItemKind::kCopy;
    if (!IsCommunication(op.kind)) return item;
    if (IsBetweenStages(op.kind)) {
      item.kind = op.kind == OpKind::kSend ? ItemKind::kSend : ItemKind::kRecv;
      item.link = IndexOf(lanes_.peers, op.Peer());
    } else if (lanes_.program->mesh.GroupSize(op.Axes()) == 1) {
      item.kind = ItemKind::kAlone;
    } else {
      item.kind = ItemKind::kGroup;
      item.link = IndexOf(families_, {lane, lanes_.program->mesh.Real(op.Axes())});
      lanes_.families |= 1u << item.link;
    }
    return item;
  }

  LaneItems& lanes_;
  std::vector<Family>& families_;
  std::vector<std::optional<Item>> by_op_;
};

}  // namespace

LaneItems ReadLanes(std::shared_ptr<const Program> program, std::vector<Family>& families) {
  LaneItems lanes;
  lanes.program = std::move(program);
  Reader(lanes, families).Run();
  return lanes;
}

}  // namespace espalier::simulate
