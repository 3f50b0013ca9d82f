// Ownership of the parts of a run.
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace espalier {

/// Owns objects of any type until its own end, then destroys them in reverse order of their creation.
///
/// No part of a run may be destroyed while an error of one rank unwinds the stack: a destructor may wait for another
/// rank (a save in flight, a communicator), and a removed heartbeat file means that its rank has ended in order. So the
/// parts of a run belong to an object outside of the try block, whose handlers end the job.
class Parts {
 public:
  Parts() = default;
  ~Parts() {
    while (!parts_.empty()) parts_.pop_back();
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  template <typename Part, typename... Arguments>
  Part& Make(Arguments&&... arguments) {
    return Keep(std::make_unique<Part>(std::forward<Arguments>(arguments)...));
  }
  template <typename Part>
  Part& Keep(std::unique_ptr<Part> part) {
    parts_.push_back(std::shared_ptr<Part>(std::move(part)));
    return *static_cast<Part*>(parts_.back().get());
  }

 private:
  std::vector<std::shared_ptr<void>> parts_;
};

}  // namespace espalier
