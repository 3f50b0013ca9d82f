#include "espalier/timeline/timeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

std::string_view Name(CommAxis axis) {
  static constexpr ByCommAxis<std::string_view> kNames = {"tp", "cp", "dp", "pp"};
  return kNames[axis];
}

CommAxis CommAxisOf(Lane lane) {
  switch (lane) {
    case Lane::kTp:
      return CommAxis::kTp;
    case Lane::kCp:
      return CommAxis::kCp;
    case Lane::kDp:
    case Lane::kCopy:
      return CommAxis::kDp;
    case Lane::kPpSend:
    case Lane::kPpRecv:
      return CommAxis::kPp;
    case Lane::kCompute:
      break;
  }
  CHECK(false, "the compute lane has no communication axis");
}

}  // namespace espalier
