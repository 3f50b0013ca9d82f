// Messages between stages: both directions at the same time, any size, several tensors in one message; scalars of all
// stages on all of them.
#include "harness.hpp"

namespace espalier::test {
namespace {

Op SendOp(std::vector<int> values, int to) {
  Op op{OpKind::kSend, std::move(values), {}, {}, Role::kF, 1, 0};
  op.attributes.numbers["to"] = to;
  return op;
}
Op RecvOp(std::vector<int> values, int from) {
  Op op{OpKind::kRecv, {}, std::move(values), {}, Role::kF, 1, 0};
  op.attributes.numbers["from"] = from;
  return op;
}

/// Every stage sends `sets` of tensors to the next (up) and to the previous stage (down), all in flight together.
void CheckNeighbours(const Mesh& mesh, const std::vector<std::vector<std::string>>& sets,
                     MpiCommunicationOptions options = {}) {
  SCOPED_TRACE(mesh.ToString());
  const int stages = mesh.Degree(Axis::kPp);
  ProgramBuilder builder(mesh);
  struct Travel {
    int id, value, from;
  };
  std::vector<Travel> sent, received;
  int id = 0;
  for (int direction : {+1, -1})
    for (const std::vector<std::string>& types : sets) {
      std::vector<int> out, in;
      for (const std::string& type : types) {
        out.push_back(builder.AddValue(fmt::format("out{}", id), type));
        in.push_back(builder.AddValue(fmt::format("in{}", id), type));
        const int to = builder.stage() + direction, from = builder.stage() - direction;
        if (to >= 0 && to < stages) sent.push_back({id, out.back(), builder.stage()});
        if (from >= 0 && from < stages) received.push_back({id, in.back(), from});
        builder.Place(out.back());
        builder.Place(in.back());
        ++id;
      }
      const int to = builder.stage() + direction, from = builder.stage() - direction;
      if (from >= 0 && from < stages) builder.Run(RecvOp(in, from), Lane::kPpRecv);
      if (to >= 0 && to < stages) builder.Run(SendOp(out, to), Lane::kPpSend);
    }
  Runner runner(builder.Take(), nullptr, options);
  for (int step = 0; step < 3; ++step) {
    // The step's number encodes the sender, so that a message from another stage or step would be noticed.
    for (const Travel& t : sent) Fill(runner.At(t.value), runner.TypeOf(t.value), t.id, 0, step * 100 + t.from);
    runner.executor().RunStep();
    for (const Travel& t : received)
      EXPECT_EQ(CountWrong(runner.At(t.value), runner.TypeOf(t.value), t.id, 1, Reduce::kSum, step * 100 + t.from), 0)
          << "tensor " << t.id << " from stage " << t.from << " in step " << step << " on rank " << TheWorld().Rank();
  }
}

std::vector<Mesh> PipelineMeshes() {
  std::vector<Mesh> meshes;
  for (const Mesh& mesh : Meshes())
    if (mesh.Degree(Axis::kPp) > 1) meshes.push_back(mesh);
  return meshes;
}

TEST(Pipeline, NeighboursExchangeOddPieces) {
  for (const Mesh& mesh : PipelineMeshes())
    CheckNeighbours(mesh, {{"f32[3,7{tp}]"}, {"bf16[13{dp_shard},5]", "f32[]", "i32[3]"}, {"f32[]"}});
}

TEST(Pipeline, MessagesLargerThanEager) {
  for (const Mesh& mesh : PipelineMeshes()) CheckNeighbours(mesh, {{"f32[23,1001]"}, {"bf16[40001]", "f32[20001]"}});
}

TEST(Pipeline, MegabytesBothWays) {
  const Mesh mesh({TheWorld().Size(), 1, 1, 1, 1});
  CheckNeighbours(mesh, {{"f32[1100003]"}, {"f32[7]"}});
}

TEST(Pipeline, LongMessagesTravelInParts) {
  MpiCommunicationOptions options;
  options.largest_part = 1000;
  const Mesh mesh({TheWorld().Size(), 1, 1, 1, 1});
  CheckNeighbours(mesh, {{"f32[1007]"}, {"bf16[2001]", "f32[250]"}}, options);
}

TEST(Pipeline, PiecesOfNoElementsSendNothing) {
  // 1 element over tp leaves the last members without elements.
  for (const Mesh& mesh : PipelineMeshes()) CheckNeighbours(mesh, {{"f32[1{tp},3]"}, {"f32[1{tp},3]", "bf16[1{tp}]"}});
}

/// Scalar i lives on stage chunk_of[i].
void CheckGatherStages(const Mesh& mesh, const std::vector<int>& chunk_of) {
  SCOPED_TRACE(mesh.ToString());
  ProgramBuilder builder(mesh);
  std::vector<int> in, out;
  for (size_t i = 0; i < chunk_of.size(); ++i) {
    in.push_back(builder.AddValue(fmt::format("in{}", i), "f32[]", chunk_of[i]));
    if (chunk_of[i] == builder.stage()) builder.Place(in.back());
  }
  for (size_t i = 0; i < chunk_of.size(); ++i) {
    out.push_back(builder.AddValue(fmt::format("out{}", i), "f32[]"));
    builder.Place(out.back());
  }
  builder.Run(GroupOp(OpKind::kGatherStages, in, out, {Axis::kPp}), Lane::kDp);
  Runner runner(builder.Take());
  for (int step = 0; step < 2; ++step) {
    for (size_t i = 0; i < in.size(); ++i)
      if (chunk_of[i] == builder.stage()) Fill(runner.At(in[i]), runner.TypeOf(in[i]), static_cast<int>(i), 0, step);
    runner.executor().RunStep();
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_EQ(CountWrong(runner.At(out[i]), runner.TypeOf(out[i]), static_cast<int>(i), 1, Reduce::kSum, step), 0)
          << "scalar " << i << " on rank " << TheWorld().Rank();
  }
}

TEST(Pipeline, ScalarsOfAllStages) {
  for (const Mesh& mesh : PipelineMeshes()) {
    const int last = mesh.Degree(Axis::kPp) - 1;
    CheckGatherStages(mesh, {0, last, last, 0, 0, last / 2});
    CheckGatherStages(mesh, {last});
    std::vector<int> all;
    for (int stage = last; stage >= 0; --stage) all.push_back(stage);
    CheckGatherStages(mesh, all);
  }
}

}  // namespace
}  // namespace espalier::test
