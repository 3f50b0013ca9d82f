#include "copy_lanes.hpp"

namespace espalier {

CopyLanes::CopyLanes(const std::vector<HostCopy>& copies) {
  for (const HostCopy& copy : copies) copies_[copy.instruction.lane].push_back(&copy);
}

CopyLanes::~CopyLanes() { Finish(); }

void CopyLanes::Start(LaneCounts& lanes, const std::function<void(const HostCopy&)>& make) {
  for (const Lane lane : {Lane::kCopyOut, Lane::kCopyIn}) {
    if (copies_[lane].empty()) continue;
    threads_.emplace_back([this, lane, &lanes, &make] {
      try {
        for (const HostCopy* copy : copies_[lane]) {
          for (const Wait& wait : copy->instruction.waits) lanes.Await(wait);
          make(*copy);
          lanes.Raise(lane);
        }
      } catch (const std::exception&) {
        lanes.Fail();  // a wait throws where another thread has failed
      }
    });
  }
}

void CopyLanes::Finish() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace espalier
