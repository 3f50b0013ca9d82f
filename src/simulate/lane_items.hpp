// A program in the form that the clocks read: the instructions of each lane in sequence, 16 bytes each, without memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "espalier/program/instruction.hpp"
#include "espalier/simulate/simulate.hpp"

namespace espalier::simulate {

/// All groups over the same axes on the same lane. A rank is in one group of each family.
struct Family {
  Lane lane = Lane::kCompute;
  AxisSet axes;
  bool operator==(const Family&) const = default;
};

enum class ItemKind : uint8_t {
  kKernel,
  kCopy,   ///< to or from the host
  kAlone,  ///< communication in a group of one rank, which ends at once
  kGroup,  ///< synchronizes with all members of a group
  kSend,   ///< matches a kRecv of one peer
  kRecv,
};

/// An instruction. Two items match if they are the same op (a recv has the op after its send's) at the same microbatch.
struct Item {
  int32_t op = -1;
  int32_t microbatch = -1;
  uint32_t first_wait = 0;  ///< in LaneItems::waits
  uint8_t waits = 0;
  ItemKind kind = ItemKind::kKernel;
  uint8_t link = 0;  ///< kGroup: the family; kSend and kRecv: the index in LaneItems::peers
  StepPart part = StepPart::kForward;
};

struct LaneItems {
  std::shared_ptr<const Program> program;
  std::vector<Item> items;                  ///< by lane, then in program order
  std::array<int, kLaneCount + 1> begin{};  ///< begin of each lane in `items`
  std::vector<int> instruction;             ///< by item: index in Program::instructions
  std::vector<Wait> waits;
  std::vector<int> peers;  ///< stages that it sends to or receives from
  uint32_t families = 0;   ///< a bit for each family that it uses

  int Length(int lane) const { return begin[lane + 1] - begin[lane]; }
};

/// Appends new families to `families`; a world has at most 32.
LaneItems ReadLanes(std::shared_ptr<const Program> program, std::vector<Family>& families);

}  // namespace espalier::simulate
