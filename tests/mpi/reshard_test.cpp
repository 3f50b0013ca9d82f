// Whole reshards over MPI, local steps included: uneven sizes, empty shards, sums, maxima, and values made partial and
// reduced again.
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

  /// The same in another element type.
  int Cast(Dtype dtype) {
    Type type = builder_.graph().values[static_cast<size_t>(last_)].type;
    type.dtype = dtype;
    const int y = Place("v" + std::to_string(++count_), ToString(type));
    Op cast{OpKind::kCast, {last_}, {y}, {{}, {{"to", std::string(Name(dtype))}}}, Role::kS, 1, 0};
    builder_.Run(std::move(cast), Lane::kCompute);
    return last_ = y;
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

/// Reshards along `types`; the result is the in-order reduction of the input.
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

/// A gradient of `sharded` x `replicated` ranks, each of which rounds its part: sums in fp32, in the order of ranks,
/// rounded once by the reduce-scatter and once by the all-reduce.
float SumOfRoundedParts(int64_t element, int replicated, int sharded, int step) {
  const auto rounded = [](float x) { return ToFloat(ToBf16(x)); };
  float sum = 0;
  for (int r = 0; r < replicated; ++r) {
    float part = 0;
    for (int s = 0; s < sharded; ++s) {
      const float next = rounded(static_cast<float>(Content(0, element, r * sharded + s, step)));
      part = s == 0 ? next : part + next;
    }
    sum = r == 0 ? rounded(part) : sum + rounded(part);
  }
  return rounded(sum);
}

TEST(Reshard, RoundedGradientsAreTheSameOnEveryRank) {
  for (const Mesh& mesh : Meshes()) {
    const int replicated = mesh.Degree(Axis::kDpReplicate), sharded = mesh.Degree(Axis::kDpShard);
    if (replicated * sharded < mesh.Ranks()) continue;
    SCOPED_TRACE(mesh.ToString());
    const std::string partial = sharded == 1 ? "dp_replicate" : replicated == 1 ? "dp_shard" : "dp_replicate,dp_shard";
    Chain chain(mesh);
    const int first = chain.First("f32[19,7]+sum{" + partial + "}");
    chain.Cast(Dtype::kBf16);
    chain.Then(sharded > 1 ? "bf16[19{dp_shard},7]" : "bf16[19,7]");
    const int last = chain.Cast(Dtype::kF32);
    const Coordinate coordinate = chain.builder().coordinate();
    Runner runner(chain.builder().Take(), FindCpuKernel);
    const int member = mesh.IndexInGroup({Axis::kDpReplicate, Axis::kDpShard}, coordinate);
    for (int step = 0; step < 2; ++step) {
      Fill(runner.At(first), runner.TypeOf(first), 0, member, step);
      runner.executor().RunStep();
      const Tensor sum = runner.At(last);
      ForEachGlobalRun(sum, runner.TypeOf(last).shape, [&](int64_t global, int64_t local, int64_t count) {
        for (int64_t i = 0; i < count; ++i)
          ASSERT_EQ(sum.As<float>()[local + i], SumOfRoundedParts(global + i, replicated, sharded, step))
              << "element " << global + i << " on rank " << TheWorld().Rank();
      });
    }
  }
}

}  // namespace
}  // namespace espalier::test
