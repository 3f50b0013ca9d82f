// All lanes in parallel, in random order, for many steps: compute fills a buffer, a lane communicates it, compute
// checks the result, and both buffers are used again by others.
#include <random>
#include <thread>

#include "harness.hpp"

namespace espalier::test {
namespace {

int step_now = 0;
int64_t wrong_elements = 0;

int Attribute(const KernelCall& call, const char* name) { return static_cast<int>(call.attributes->Number(name)); }

/// Types that the kernels need besides their tensors, by track.
std::vector<Type> from_types, to_types;

void FillKernel(const KernelCall& call) {
  const int track = Attribute(call, "track");
  Fill(call.outputs[0], from_types[static_cast<size_t>(track)], track, Attribute(call, "member"), step_now);
}
void CheckKernel(const KernelCall& call) {
  const int track = Attribute(call, "track");
  wrong_elements += CountWrong(call.inputs[0], to_types[static_cast<size_t>(track)], track, Attribute(call, "members"),
                               Reduce::kSum, step_now);
}
/// The ops of the tracks run kernels of this test: rope_table fills a value, clip checks one.
Kernel FindKernel(std::string_view op) {
  if (op == "rope_table") return FillKernel;
  if (op == "clip") return CheckKernel;
  return nullptr;
}

/// The tracks of one program: kind, group, types. The same on all ranks.
struct Track {
  std::string kind;
  AxisSet axes;
  std::string from, to;
};

class SoakBuilder {
 public:
  SoakBuilder(const Mesh& mesh, unsigned seed) : mesh_(mesh), builder_(mesh), random_(seed) {
    for (Axis axis : kAxes)
      if (axis != Axis::kPp && mesh.Degree(axis) > 1) axes_.push_back(AxisSet{axis});
  }

  Program Build(int tracks) {
    from_types.clear();
    to_types.clear();
    for (int t = 0; t < tracks; ++t) AddTrack(t);
    // Checks come some tracks after their fills, so that several lanes are busy at the same time.
    for (int t = 0; t < tracks + kAhead; ++t) {
      if (t < tracks) Begin(t);
      if (t >= kAhead) End(t - kAhead);
    }
    return builder_.Take();
  }

 private:
  static constexpr int kAhead = 4;

  int Random(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  void AddTrack(int t) {
    const std::string type = Random(2) == 0 ? "f32" : "bf16";
    const int rows = 1 + Random(40), columns = 1 + Random(Random(8) == 0 ? 3000 : 60);
    const int kinds = axes_.empty() ? 0 : 3, pipelines = mesh_.Degree(Axis::kPp) > 1 ? 1 : 0;
    const int kind = Random(kinds + pipelines);
    Track track{"ring", {}, fmt::format("{}[{},{}]", type, rows, columns), {}};
    track.to = track.from;
    if (kind < kinds) {
      track.axes = axes_[static_cast<size_t>(Random(static_cast<int>(axes_.size())))];
      const std::string axis = Name(track.axes);
      const std::string sharded = fmt::format("{}[{}{{{}}},{}]", type, rows, axis, columns),
                        partial = "+sum{" + axis + "}";
      if (kind == 0) track = {"all_gather", track.axes, sharded, track.from};
      if (kind == 1) track = {"reduce_scatter", track.axes, track.from + partial, sharded};
      if (kind == 2) track = {"all_reduce", track.axes, track.from + partial, track.from};
    }
    from_.push_back(builder_.AddValue(fmt::format("from{}", t), track.from));
    to_.push_back(builder_.AddValue(fmt::format("to{}", t), track.to));
    from_types.push_back(ParseType(track.from));
    to_types.push_back(ParseType(track.to));
    builder_.Place(from_.back());
    builder_.Place(to_.back());
    tracks_.push_back(std::move(track));
  }

  void Begin(int t) {
    const Track& track = tracks_[static_cast<size_t>(t)];
    const int from = from_[static_cast<size_t>(t)], to = to_[static_cast<size_t>(t)];
    Op fill{OpKind::kRopeTable, {}, {from}, {}, Role::kF, 1, 0};
    fill.attributes.numbers = {
        {"track", t},
        {"member", mesh_.IndexInGroup(track.kind == "all_gather" ? AxisSet{} : track.axes, builder_.coordinate())}};
    builder_.Run(fill, Lane::kCompute);
    if (track.kind == "ring") {
      const int stages = mesh_.Degree(Axis::kPp);
      Op recv{OpKind::kRecv, {}, {to}, {}, Role::kF, 1, 0}, send{OpKind::kSend, {from}, {}, {}, Role::kF, 1, 0};
      recv.attributes.numbers["from"] = (builder_.stage() + stages - 1) % stages;
      send.attributes.numbers["to"] = (builder_.stage() + 1) % stages;
      builder_.Run(recv, Lane::kPpRecv);
      builder_.Run(send, Lane::kPpSend);
      return;
    }
    const Lane lane = (track.axes - kTensorAxes).Empty() ? Lane::kTp
                      : track.axes == AxisSet{Axis::kCp} ? Lane::kCp
                                                         : Lane::kDp;
    builder_.Run(GroupOp(OpKindOf(track.kind), {from}, {to}, track.axes), lane);
  }

  void End(int t) {
    const Track& track = tracks_[static_cast<size_t>(t)];
    const bool sums = track.kind == "reduce_scatter" || track.kind == "all_reduce";
    Op verify{OpKind::kClip, {to_[static_cast<size_t>(t)]}, {}, {}, Role::kF, 1, 0};
    verify.attributes.numbers = {{"track", t}, {"members", sums ? mesh_.GroupSize(track.axes) : 1}};
    builder_.Run(verify, Lane::kCompute);
  }

  const Mesh& mesh_;
  ProgramBuilder builder_;
  std::mt19937 random_;
  std::vector<AxisSet> axes_;
  std::vector<Track> tracks_;
  std::vector<int> from_, to_;
};

TEST(Soak, AllLanesInRandomOrder) {
  unsigned seed = 17;
  for (const Mesh& mesh : Meshes()) {
    SCOPED_TRACE(mesh.ToString());
    Runner runner(SoakBuilder(mesh, ++seed).Build(40), FindKernel);
    wrong_elements = 0;
    for (step_now = 0; step_now < 6; ++step_now) runner.executor().RunStep();
    EXPECT_EQ(wrong_elements, 0) << "on rank " << TheWorld().Rank();
  }
}

TEST(Soak, CallsOnTheWorldMeetStepsInProgress) {
  const Mesh mesh = Meshes().back();
  Runner runner(SoakBuilder(mesh, 5).Build(60), FindKernel);
  const std::unique_ptr<World> other = TheWorld().Duplicate();
  wrong_elements = 0;
  std::vector<int64_t> largest;
  std::thread saver([&] {
    for (int i = 0; i < 20; ++i) largest.push_back(other->Max(i * 100 + other->Rank()));
  });
  for (step_now = 0; step_now < 10; ++step_now) runner.executor().RunStep();
  saver.join();
  EXPECT_EQ(wrong_elements, 0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(largest[static_cast<size_t>(i)], i * 100 + other->Size() - 1);
}

}  // namespace
}  // namespace espalier::test
