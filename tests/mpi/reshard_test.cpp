// Whole reshards over MPI, local steps included: uneven sizes, empty pieces, sums, maxima, and values made partial and
// joined again.
#include "espalier/passes/reshard.hpp"

#include "harness.hpp"

namespace espalier::test {
namespace {

/// A chain of values, each resharded into the next.
class Chain {
 public:
  explicit Chain(const Mesh& mesh) : mesh_(mesh), builder_(mesh) {}

  int First(const std::string& type) { return last_ = Place("v0", type); }

  int Then(const std::string& type) {
    const Type from = builder_.graph().values[static_cast<size_t>(last_)].type;
    for (const ReshardStep& step : PlanReshard(from, ParseType(type).placements, mesh_)) {
      Type next = from;
      next.placements = step.placements;
      const int y = Place("v" + std::to_string(++count_), ToString(next));
      Op op = GroupOp(step.kind, {last_}, {y}, step.axes);
      if (!(step.placements.partial_max & step.axes).Empty()) op.attributes.numbers["max"] = 1;
      builder_.Run(std::move(op), LaneOf(step));
      last_ = y;
    }
    return last_;
  }

  ProgramBuilder& builder() { return builder_; }

 private:
  int Place(const std::string& name, const std::string& type) {
    const int value = builder_.AddValue(name, type);
    builder_.Place(value);
    return value;
  }
  static Lane LaneOf(const ReshardStep& step) {
    if (!IsCommunication(step.kind)) return Lane::kCompute;
    return (step.axes - kTensorAxes).Empty() ? Lane::kTp : Lane::kDp;
  }

  const Mesh& mesh_;
  ProgramBuilder builder_;
  int last_ = -1, count_ = 0;
};

/// Reshards along `types`; what arrives is the in-order join of what was there.
void Check(const Mesh& mesh, const std::vector<std::string>& types) {
  SCOPED_TRACE(types.front() + " -> " + types.back() + " on " + mesh.ToString());
  Chain chain(mesh);
  const int first = chain.First(types[0]);
  int last = first;
  for (size_t i = 1; i < types.size(); ++i) last = chain.Then(types[i]);
  const Coordinate coordinate = chain.builder().coordinate();
  Runner runner(chain.builder().Take(), FindCpuKernel);
  for (int step = 0; step < 2; ++step) {
    const Placements& from = runner.TypeOf(first).placements;
    Fill(runner.At(first), runner.TypeOf(first), 0, mesh.IndexInGroup(from.Partial(), coordinate), step);
    runner.executor().RunStep();
    const Reduce how = from.partial_max.Empty() ? Reduce::kSum : Reduce::kMax;
    EXPECT_EQ(CountWrong(runner.At(last), runner.TypeOf(last), 0, mesh.GroupSize(from.Partial()), how, step), 0)
        << "on rank " << TheWorld().Rank() << " in step " << step;
  }
}

TEST(Reshard, OverOneAxis) {
  const Mesh mesh({1, 1, 1, 1, TheWorld().Size()});
  for (const std::string type : {"f32", "bf16"}) {
    Check(mesh, {type + "[7{tp},5]", type + "[7,5{tp}]"});
    Check(mesh, {type + "[5{tp},3]", type + "[5,3{tp}]", type + "[5,3]"});
    Check(mesh, {type + "[5,3]+max{tp}", type + "[5{tp},3]"});
    Check(mesh, {type + "[5]+max{tp}", type + "[5]"});
    Check(mesh, {type + "[5,3]+sum{tp}", type + "[5,3{tp}]", type + "[5{tp},3]"});
    Check(mesh, {type + "[5,3]", type + "[5,3]+sum{tp}", type + "[5{tp},3]"});
    Check(mesh, {type + "[5{tp},3]", type + "[5,3]+max{tp}", type + "[5,3]"});
    Check(mesh, {type + "[5,3{tp}]", type + "[5,3]+sum{tp}", type + "[5,3]"});
  }
}

TEST(Reshard, OverTwoAxes) {
  for (const Mesh& mesh : Meshes()) {
    if (mesh.Degree(Axis::kDpShard) < 2 || mesh.Degree(Axis::kTp) < 2) continue;
    Check(mesh, {"f32[19{tp,dp_shard},7]", "f32[19,7{tp,dp_shard}]"});
    Check(mesh, {"f32[19{tp,dp_shard},7]", "f32[19{dp_shard,tp},7]"});
    Check(mesh, {"f32[19{tp,dp_shard},7]", "f32[19{dp_shard},7]"});
    Check(mesh, {"f32[5{tp},7{dp_shard}]", "f32[5{dp_shard},7{tp}]"});
    Check(mesh, {"f32[5,7{dp_shard}]+max{tp}", "f32[5{tp},7]"});
    Check(mesh, {"f32[5,3]+sum{dp_shard}", "f32[5{dp_shard},3]+max{tp}", "f32[5,3{tp}]"});
  }
}

}  // namespace
}  // namespace espalier::test
