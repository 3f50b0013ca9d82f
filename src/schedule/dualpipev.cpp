// DualPipeV (DeepSeek's DualPipe, arXiv 2412.19437, cut in half along its symmetry): the V of ZB-V. In the steady state
// one job holds the forward of one chunk and the backward of the other, so that the communication of each can overlap
// with the matmuls of the other. The bubble is at most (p - 1)(F&B + BW - 3W), of times of a chunk; activations of p +
// 1/2 microbatches are kept. Labels are microbatch.chunk; each stage takes two lines here.
//
//   stage 0 | F0.0 F1.0 F2.0 F0.3 B0.3 W0.3 F1.3 F3.0&BW1.3==== .... F2.3&BW0.0==== BW2.3==== .... F3.3&BW1.0====
//             BW3.3==== B2.0 W2.0 B3.0 W3.0
//   stage 1 | .... F0.1 F0.2 F1.1 F1.2 F2.1 BW0.2==== F2.2&BW0.1==== F3.1&BW1.2==== F3.2&BW1.1==== BW2.2==== BW2.1====
//             .... B3.2 B3.1 W3.2 W3.1
#include <algorithm>

#include "schedule/jobs.hpp"

namespace espalier {
namespace {

/// Deferred weight gradients, oldest first.
class Deferred {
 public:
  explicit Deferred(JobWriter& jobs) : jobs_(jobs) {}
  void B(int chunk) {
    jobs_.B(chunk);
    chunks_.push_back(chunk);
  }
  void W() { jobs_.W(chunks_.at(next_++)); }

 private:
  JobWriter& jobs_;
  std::vector<int> chunks_;
  size_t next_ = 0;
};

}  // namespace

Schedule DualPipeV(int stages, int microbatches) {
  Schedule schedule = NoJobs(ScheduleKind::kDualPipeV, stages, microbatches, VShaped(stages));
  for (int stage = 0; stage < stages; ++stage) {
    JobWriter jobs(schedule, stage);
    Deferred deferred(jobs);
    const int down = stage, up = 2 * stages - 1 - stage, above = stages - 1 - stage;
    const auto both = [&](int f, int b) { jobs.Add({{f, Role::kF}, {b, Role::kB}, {b, Role::kW}}); };
    // Warm-up: fill the downward chunks, then both, then start the upward backwards.
    for (int i = 0; i < 2 * above; ++i) jobs.F(down);
    for (int i = 0; i <= stage; ++i) jobs.F(down), jobs.F(up);
    for (int i = 0; i < above; ++i) deferred.B(up), deferred.W(), jobs.F(up);
    // Steady state: F of one chunk with B and W of the other, alternating.
    for (int i = 0; i < microbatches - 2 * stages + stage + 1; ++i) {
      // The first gradient of all starts on the last stage and waits for no other forward.
      if (i == 0 && above == 0)
        jobs.F(down), jobs.BW(up);
      else
        both(down, up);
      both(up, down);
    }
    // Drain: the last forwards of the upward chunk; then backward alone, whose second half defers W to the end.
    for (int i = 0; i < above; ++i) jobs.BW(up), both(up, down);
    for (int i = 0, k = 0; i <= stage; ++i)
      for (int chunk : {up, down}) k++ <= stage ? jobs.BW(chunk) : deferred.B(chunk);
    for (int i = 0; i < above; ++i) deferred.W(), deferred.B(down);
    for (int i = 0; i <= stage; ++i) deferred.W();
  }
  return schedule;
}

}  // namespace espalier
