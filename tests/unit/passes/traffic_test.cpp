// The bytes that every rank sends in a step, by group, op and role, against closed forms of the deck's numbers
// (Korthikanti et al. 2022 for tensor parallelism, Rajbhandari et al. 2020 for sharded states): a redundant gather or
// reduction fails here.
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <set>
#include <tuple>

#include "espalier/ops/op.hpp"
#include "espalier/program/compile.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

using Row = std::tuple<std::string, std::string, std::string>;  // group, op, role
using Rows = std::map<Row, std::pair<int64_t, int64_t>>;        // messages, bytes

std::string Text(const Rows& rows) {
  std::string text;
  for (const auto& [row, total] : rows)
    text += fmt::format("{} {} {}: {} messages, {} bytes\n", std::get<0>(row), std::get<1>(row), std::get<2>(row),
                        total.first, total.second);
  return text;
}

Rows Counted(const Compilation& c, const Coordinate& coordinate) {
  Rows rows;
  for (const MessageRow& row : ListMessages(MakeProgram(c, coordinate), coordinate)) {
    auto& [count, bytes] = rows[{Name(row.group), std::string(Name(row.kind)), std::string(Name(row.role))}];
    count += row.total.count;
    bytes += row.total.bytes;
  }
  return rows;
}

/// The same from the deck, for sizes that the degrees divide.
class ClosedForm {
 public:
  ClosedForm(const Compilation& c, const Coordinate& coordinate)
      : d_(c.deck),
        mesh_(c.mesh),
        at_(coordinate),
        stage_(coordinate[0]),
        stages_(mesh_.Degree(Axis::kPp)),
        micro_(c.batch.microbatches) {
    for (const Op& op : c.graph->ops)
      if (op.role == Role::kF && !IsReshard(op.kind) && op.chunk >= 0 && c.StageOf(op.chunk) == stage_ &&
          op.layer >= 1 && op.layer <= d_.model.layers)
        layers_.insert(op.layer);
    SetSizes();
  }

  Rows Run() {
    TensorParallel();
    Context();
    for (const Parameters& p : ParametersHere()) {
      Gathers(p);
      Reductions(p);
    }
    Scalars();
    Stages();
    return std::move(rows_);
  }

 private:
  /// A tensor of a layer: local elements over tp, and the axes on which its gradient is still a sum besides dp and cp.
  struct Tensor {
    int64_t elements;
    AxisSet cut;      // by tp
    AxisSet partial;  // over tp
  };
  /// The parameters of a layer share a message.
  struct Parameters {
    std::vector<Tensor> tensors;
    int64_t forward, backward;  // elements used in F and in B
    bool head = false;
  };

  void SetSizes() {
    const auto& m = d_.model;
    tp_ = mesh_.GroupSize(kTensorAxes);
    dim_ = m.dim;
    compute_ = SizeOf(d_.precision.compute);
    tokens_ = d_.batch.micro * m.seq_len / mesh_.Degree(Axis::kCp);
    const AxisSet tensor = mesh_.Real(kTensorAxes), kv = mesh_.Real({Axis::kTp}),
                  shared = mesh_.Real({Axis::kKvReplicate});
    const int64_t kv_rows = m.kv_heads * m.dim / m.heads / mesh_.GroupSize(kv);
    norm_ = {dim_, {}, d_.parallel.sequence_parallel ? tensor : AxisSet()};
    square_ = {dim_ * dim_ / tp_, tensor, {}};
    grouped_ = {kv_rows * dim_, kv, shared};
    wide_ = {m.ffn_dim * dim_ / tp_, tensor, {}};
    table_ = {m.vocab * dim_ / tp_, tensor, {}};
  }

  bool First() const { return stage_ == 0; }
  bool Last() const { return stage_ == stages_ - 1; }
  bool Tied() const { return d_.model.tie_embeddings; }

  static int64_t Sum(const std::vector<Tensor>& tensors) {
    int64_t sum = 0;
    for (const Tensor& t : tensors) sum += t.elements;
    return sum;
  }

  /// Per layer of this stage; a tied table counts where each of its uses is.
  std::vector<Parameters> ParametersHere() const {
    std::vector<Parameters> all;
    if (First()) all.push_back({{table_}, table_.elements, 0});
    for (size_t l = 0; l < layers_.size(); ++l) {
      const std::vector<Tensor> layer = {norm_, norm_, square_, grouped_, grouped_, square_, wide_, wide_, wide_};
      all.push_back({layer, Sum(layer), Sum(layer)});
    }
    const int64_t head = norm_.elements + table_.elements;
    if (Last()) all.push_back({{norm_, table_}, head, head, true});
    return all;
  }

  void Add(AxisSet group, const std::string& op, Role role, int64_t messages, int64_t bytes) {
    group = mesh_.Real(group);
    if (group.Empty() || messages == 0) return;
    auto& [count, sum] = rows_[{Name(group), op, std::string(Name(role))}];
    count += messages;
    sum += messages * bytes;
  }
  /// A rank sends its piece to all others.
  void Gather(AxisSet group, Role role, int64_t messages, int64_t elements, int64_t size) {
    const int n = mesh_.GroupSize(group);
    Add(group, "all_gather", role, messages, elements / n * (n - 1) * size);
  }
  /// A rank sends all but its own piece.
  void Scatter(AxisSet group, Role role, int64_t messages, int64_t elements, int64_t size) {
    const int n = mesh_.GroupSize(group);
    Add(group, "reduce_scatter", role, messages, elements / n * (n - 1) * size);
  }
  /// Both, of flat pieces.
  void Reduce(AxisSet group, Role role, int64_t messages, int64_t elements, int64_t size) {
    group = mesh_.Real(group);
    const int n = mesh_.GroupSize(group);
    const int64_t mine = ShardOf({0, elements}, n, mesh_.IndexInGroup(group, at_)).Extent();
    Add(group, "all_reduce", role, messages, (elements - mine + (n - 1) * mine) * size);
  }

  // Per layer and microbatch: forward 2 gathers and 2 scatters of the stream, backward 2 and 2, and 2 gathers of the
  // saved inputs for the weights; embedding: a scatter and a gather; head: a gather, a scatter and a gather. Without
  // sequence parallelism all-reduces take the place of scatters, and nothing is gathered. The loss: a maximum and two
  // sums, or the gathered logits.
  void TensorParallel() {
    const auto layers = static_cast<int64_t>(layers_.size());
    const int64_t stream = tokens_ * dim_, first = First(), last = Last();
    if (d_.parallel.sequence_parallel) {
      Gather(kTensorAxes, Role::kF, micro_ * (2 * layers + last), stream, compute_);
      Scatter(kTensorAxes, Role::kF, micro_ * (2 * layers + first), stream, compute_);
      Gather(kTensorAxes, Role::kB, micro_ * 2 * layers, stream, compute_);
      Scatter(kTensorAxes, Role::kB, micro_ * (2 * layers + last), stream, compute_);
      Gather(kTensorAxes, Role::kW, micro_ * (2 * layers + last + first), stream, compute_);
    } else {
      Reduce(kTensorAxes, Role::kF, micro_ * (2 * layers + first), stream, compute_);
      Reduce(kTensorAxes, Role::kB, micro_ * (2 * layers + last), stream, compute_);
    }
    if (last == 0) return;
    if (d_.parallel.loss_parallel) {
      Reduce(kTensorAxes, Role::kF, micro_, tokens_, 4);
      Reduce(kTensorAxes, Role::kF, micro_, 2 * tokens_, 4);
    } else {
      Gather(kTensorAxes, Role::kF, micro_, tokens_ * d_.model.vocab, compute_);
    }
  }

  // Keys and values of other cp ranks, per layer and microbatch: they hop around forward and backward, and their fp32
  // gradients after them; or are gathered both times, and the gradients scattered; or q, k, v, and o, turn from parts
  // of sequences to parts of heads, and back.
  void Context() {
    const int64_t cp = mesh_.Degree(Axis::kCp), times = micro_ * static_cast<int64_t>(layers_.size());
    const int64_t keys = tokens_ * 2 * grouped_.elements / dim_, queries = tokens_ * dim_ / tp_;
    const ContextMode mode = d_.parallel.context;
    if (mode == ContextMode::kRing) {
      Add({Axis::kCp}, "ring_shift", Role::kF, times * (cp - 1), keys * compute_);
      Add({Axis::kCp}, "ring_shift", Role::kB, times * (cp - 1), keys * compute_);
      Add({Axis::kCp}, "ring_shift", Role::kB, times * (cp - 1), keys * 4);
    }
    if (mode == ContextMode::kAllGather) {
      for (Role role : {Role::kF, Role::kB}) Gather({Axis::kCp}, role, times, keys * cp, compute_);
      Scatter({Axis::kCp}, Role::kB, times, keys * cp, compute_);
    }
    if (mode == ContextMode::kAllToAll)
      for (Role role : {Role::kF, Role::kB})
        for (int64_t elements : {queries + keys, queries})
          Add({Axis::kCp}, "all_to_all", role, times, elements / cp * (cp - 1) * compute_);
  }

  // Sharded parameters: gathered once a step, or once a microbatch in F and again in B; one message a layer. Groups
  // gather what they share once a step, and then within the group.
  void Gathers(const Parameters& p) {
    if (!GathersAgain(d_, mesh_)) return Gather(kShards, Role::kP, 1, p.forward, compute_);
    const int64_t group = mesh_.Degree(Axis::kRegather);
    if (group > 1) Gather(kShards - kGroup, Role::kP, 1, p.forward / group, compute_);
    const AxisSet from = group > 1 ? kGroup : kShards;
    Gather(from, Role::kF, micro_, p.forward, compute_);
    Gather(from, Role::kB, p.backward > 0 ? micro_ : 0, p.backward, compute_);
  }

  // Gradients, in parallel.reduce_dtype, once a step or microbatch: cut to the states' shards, then reduced over what
  // is left of the axes on which they are sums. With zero = 1 those of a microbatch are gathered again.
  void Reductions(const Parameters& p) {
    const bool each = ReduceOf(d_, mesh_) == ReduceFrequency::kMicrobatch;
    const Role role = each ? Role::kW : Role::kS;
    const int64_t times = each ? micro_ : 1, size = SizeOf(d_.parallel.reduce_dtype);
    Scatter(kShards, role, times, Sum(p.tensors), size);
    if (each && d_.parallel.zero == 1) Gather(kShards, role, times, Sum(p.tensors), size);
    // A sum over tp alone stays fp32.
    std::map<AxisSet, int64_t> left;
    for (const Tensor& t : p.tensors)
      left[mesh_.Real(AxisSet{Axis::kDpReplicate} | t.partial)] += t.elements / mesh_.GroupSize(kShards);
    // Loss and count, in fp32, travel with the head's gradients where their groups are the same.
    if (const auto same = left.find(mesh_.Real(kBatch)); Last() && p.head && !each && size == 4 && same != left.end())
      same->second += 2, loss_travels_ = true;
    const bool over_data = !mesh_.Real(kBatch).Empty();
    for (const auto& [group, elements] : left) Reduce(group, role, times, elements, over_data ? size : 4);
  }

  // One sum of squares for each parameter, over the axes that cut it; loss and count, over those that cut the batch.
  // Then every stage tells the others.
  void Scalars() {
    std::map<AxisSet, int64_t> scalars;
    int64_t here = 0;
    const auto count = [&](AxisSet axes) { ++scalars[mesh_.Real(axes)], ++here; };
    for (const Parameters& p : ParametersHere())
      for (const Tensor& t : p.tensors) {
        const bool second_use = Tied() && &t == &p.tensors.back() && p.tensors.size() == 2;
        if (!second_use) count(t.cut | kShards);
      }
    if (Last())
      for (int i = 0; i < 2; ++i) count(kBatch);
    if (loss_travels_) scalars[mesh_.Real(kBatch)] -= 2;
    for (const auto& [group, n] : scalars) Reduce(group, Role::kS, n > 0, n, 4);
    Add({Axis::kPp}, "gather_stages", Role::kS, 1, here * 4 * (stages_ - 1));
  }

  // The residual stream and its adjoint, as they lie, once a microbatch; a tied table's piece once a step, and its
  // gradient back.
  void Stages() {
    const int64_t stream = tokens_ * dim_ / (d_.parallel.sequence_parallel ? tp_ : 1) * compute_;
    const int64_t piece = table_.elements / mesh_.GroupSize(kShards);
    Add({Axis::kPp}, "send", Role::kF, Last() ? 0 : micro_, stream);
    Add({Axis::kPp}, "send", Role::kB, First() ? 0 : micro_, stream);
    if (!Tied() || stages_ == 1) return;
    Add({Axis::kPp}, "send", Role::kP, First(), piece * compute_);
    Add({Axis::kPp}, "send", Role::kS, Last(), piece * 4);
  }

  static constexpr AxisSet kGroup = {Axis::kRegather}, kShards = kShardAxes | AxisSet{Axis::kCp},
                           kBatch = kBatchAxes | AxisSet{Axis::kCp};

  const Deck& d_;
  const Mesh& mesh_;
  Coordinate at_;
  int stage_, stages_;
  int64_t micro_, tp_ = 1, dim_ = 0, compute_ = 4, tokens_ = 0;
  std::set<int> layers_;
  Tensor norm_{}, square_{}, grouped_{}, wide_{}, table_{};
  bool loss_travels_ = false;
  Rows rows_;
};

struct Case {
  const char* name;
  std::array<int, 5> degrees;  // pp, dp_replicate, dp_shard, cp, tp
  std::vector<std::string> more;
};

const Case kCases[] = {
    {"one rank", {1, 1, 1, 1, 1}, {}},
    {"pp", {4, 1, 1, 1, 1}, {}},
    {"dp_replicate", {1, 4, 1, 1, 1}, {}},
    {"dp_shard", {1, 1, 2, 1, 1}, {}},
    {"dp_shard 4, bf16", {1, 1, 4, 1, 1}, {"precision.compute=bf16"}},
    {"tp", {1, 1, 1, 1, 2}, {}},
    {"tp, bf16", {1, 1, 1, 1, 2}, {"precision.compute=bf16"}},
    {"zero 1", {1, 1, 2, 1, 1}, {"parallel.zero=1", "precision.compute=bf16"}},
    {"zero 1, HSDP, microbatch", {1, 2, 2, 1, 1}, {"parallel.zero=1", "parallel.reduce=microbatch"}},
    {"zero 1, cp, tp, microbatch", {1, 1, 1, 2, 2}, {"parallel.zero=1", "parallel.reduce=microbatch"}},
    {"zero 1, HSDP, tp, microbatch, rounded gradients",
     {1, 2, 2, 1, 2},
     {"parallel.zero=1", "parallel.reduce=microbatch", "parallel.reduce_dtype=bf16"}},
    {"zero 2", {1, 1, 2, 1, 1}, {"parallel.zero=2", "precision.compute=bf16"}},
    {"zero 2, pp", {2, 1, 2, 1, 1}, {"parallel.zero=2", "precision.compute=bf16"}},
    {"zero 3, pp", {2, 1, 2, 1, 1}, {"parallel.zero=3", "precision.compute=bf16"}},
    {"zero 3, HSDP, tp, pp", {2, 2, 2, 1, 2}, {"parallel.zero=3", "batch.global=16"}},
    {"groups", {1, 1, 4, 1, 1}, {"parallel.regather_group=2"}},
    {"groups, HSDP, tp, bf16",
     {1, 2, 4, 1, 2},
     {"parallel.regather_group=2", "precision.compute=bf16", "model.vocab=264"}},
    {"groups, cp", {1, 1, 4, 2, 1}, {"parallel.regather_group=2", "parallel.context=all_gather", "model.vocab=264"}},
    {"groups, pp, tied",
     {2, 1, 4, 1, 1},
     {"parallel.regather_group=2", "parallel.zero=3", "model.tie_embeddings=true", "batch.global=16"}},
    {"one group of all ranks", {1, 1, 4, 1, 1}, {"parallel.regather_group=4"}},
    {"rounded gradients", {1, 1, 4, 1, 1}, {"parallel.reduce_dtype=bf16"}},
    {"rounded gradients, zero 2, pp", {2, 1, 2, 1, 1}, {"parallel.reduce_dtype=bf16", "parallel.zero=2"}},
    {"rounded gradients, replicated, tp", {1, 4, 1, 1, 2}, {"parallel.reduce_dtype=bf16", "precision.compute=bf16"}},
    {"rounded gradients, HSDP, step", {1, 2, 2, 1, 1}, {"parallel.reduce_dtype=bf16", "parallel.reduce=step"}},
    {"rounded gradients, pp, dp_shard, cp, tp",
     {2, 1, 2, 2, 2},
     {"parallel.reduce_dtype=bf16", "model.vocab=264", "parallel.reduce=step"}},
    {"rounded gradients, tp alone", {1, 1, 1, 1, 2}, {"parallel.reduce_dtype=bf16"}},
    {"zero 3, step", {1, 1, 2, 1, 1}, {"parallel.reduce=step", "precision.compute=bf16"}},
    {"zero 3, one microbatch", {1, 1, 4, 1, 1}, {"batch.global=4"}},
    {"regather never", {1, 1, 2, 1, 2}, {"recompute.regather=never", "precision.compute=bf16"}},
    {"pp, dp_shard", {2, 1, 2, 1, 1}, {}},
    {"pp, tp", {2, 1, 1, 1, 2}, {}},
    {"pp, dp_replicate", {2, 2, 1, 1, 1}, {}},
    {"dp_shard, tp", {1, 1, 2, 1, 2}, {}},
    {"dp_replicate, tp", {1, 2, 1, 1, 2}, {}},
    {"HSDP", {1, 2, 2, 1, 1}, {}},
    {"HSDP, tp", {1, 2, 2, 1, 2}, {"precision.compute=bf16"}},
    {"all", {2, 2, 2, 1, 2}, {"batch.global=16"}},
    {"all, bf16, zero 3", {2, 2, 2, 1, 2}, {"batch.global=16", "precision.compute=bf16", "parallel.zero=3"}},
    {"cp, ring", {1, 1, 1, 4, 1}, {"precision.compute=bf16"}},
    {"cp, all_gather", {1, 1, 1, 2, 1}, {"parallel.context=all_gather"}},
    {"cp, all_to_all", {1, 1, 1, 2, 1}, {"parallel.context=all_to_all"}},
    {"cp, tp", {1, 1, 1, 2, 2}, {"parallel.context=all_gather", "precision.compute=bf16"}},
    {"dp_shard, cp", {1, 1, 2, 2, 1}, {"parallel.zero=2"}},
    {"pp, dp_shard, cp, tp", {2, 1, 2, 2, 2}, {"model.vocab=264", "precision.compute=bf16"}},
    {"shared kv heads, cp", {1, 1, 1, 2, 4}, {"model.ffn_dim=96", "model.vocab=264"}},
    {"shared kv heads, cp, all_gather",
     {1, 2, 1, 2, 4},
     {"model.ffn_dim=96", "model.vocab=264", "parallel.context=all_gather"}},
    {"no sequence parallelism", {2, 1, 2, 1, 2}, {"parallel.sequence_parallel=false"}},
    {"no loss parallelism", {1, 1, 1, 1, 2}, {"parallel.loss_parallel=false"}},
    {"neither",
     {2, 1, 1, 1, 2},
     {"parallel.sequence_parallel=false", "parallel.loss_parallel=false", "precision.compute=bf16"}},
    {"tied, one stage", {1, 1, 2, 1, 2}, {"model.tie_embeddings=true"}},
    {"tied, pp", {2, 1, 1, 1, 1}, {"model.tie_embeddings=true", "precision.compute=bf16"}},
    {"tied, pp, dp_shard, tp", {4, 1, 2, 1, 2}, {"model.tie_embeddings=true", "precision.compute=bf16"}},
    {"shared kv heads", {1, 1, 1, 1, 4}, {}},
    {"shared kv heads, dp_shard", {1, 1, 2, 1, 4}, {"precision.compute=bf16", "model.ffn_dim=96", "model.vocab=264"}},
    {"one kv head", {1, 2, 1, 1, 2}, {"model.kv_heads=1"}},
    {"one kv head, dp_shard", {1, 1, 2, 1, 4}, {"model.kv_heads=1", "model.ffn_dim=96", "model.vocab=264"}},
    {"shared kv heads, HSDP, pp", {2, 2, 2, 1, 4}, {"model.ffn_dim=96", "model.vocab=264"}},
    {"shared kv heads, no sequence parallelism", {1, 2, 1, 1, 4}, {"parallel.sequence_parallel=false"}},
};

void PrintTo(const Case& layout, std::ostream* out) { *out << layout.name; }

class Traffic : public testing::TestWithParam<Case> {};

TEST_P(Traffic, IsTheClosedFormOnEveryRank) {
  const Case& layout = GetParam();
  constexpr const char* kAxisKeys[] = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};
  std::vector<std::string> overrides = layout.more;
  int ranks = 1;
  for (size_t a = 0; a < layout.degrees.size(); ++a) {
    overrides.push_back(fmt::format("parallel.{}={}", kAxisKeys[a], layout.degrees[a]));
    ranks *= layout.degrees[a];
  }
  const Compilation c = Compile(SmallDeck(overrides), ranks, Purpose::kTrain);
  for (int rank = 0; rank < ranks; ++rank) {
    const Coordinate coordinate = c.mesh.CoordinateOf(rank);
    ASSERT_EQ(Text(Counted(c, coordinate)), Text(ClosedForm(c, coordinate).Run())) << layout.name << ", rank " << rank;
  }
}

/// The messages of Muon's iterations on weights of experts.
std::set<OpKind> SentForExperts(std::vector<std::string> overrides, int ranks) {
  overrides.insert(overrides.end(), {"optimizer.name=muon", "experts.per_token=2", "experts.ffn_dim=20"});
  const Compilation c = Compile(SmallDeck(overrides), ranks, Purpose::kTrain);
  std::set<OpKind> kinds;
  for (const Op& op : c.graph->ops)
    for (int input : op.inputs)
      if (const std::string& name = c.graph->value(input).name;
          IsCommunication(op.kind) && name.starts_with("muon/") && name.find(".experts.") != name.npos)
        kinds.insert(op.kind);
  return kinds;
}

TEST(MuonTraffic, OfExpertsIsNothingWhereEveryRankHasAMatrix) {
  const std::set<OpKind> none;
  for (const char* count : {"experts.count=4", "experts.count=6", "experts.count=8"}) {
    for (const char* zero : {"parallel.zero=1", "parallel.zero=3"})
      EXPECT_EQ(SentForExperts({"parallel.dp_shard=4", zero, count}, 4), none) << count << " " << zero;
    EXPECT_EQ(SentForExperts({"parallel.dp_shard=2", "parallel.tp=2", count}, 4), none) << count;
    EXPECT_EQ(SentForExperts({"parallel.dp_shard=4", "parallel.ep=2", count}, 4), none) << count;
    EXPECT_EQ(SentForExperts({"parallel.dp_replicate=2", "parallel.tp=2", "parallel.ep=2", count}, 4), none) << count;
  }
  const std::vector<std::string> four = {"parallel.dp_shard=2", "parallel.tp=2", "experts.count=3"};
  EXPECT_TRUE(SentForExperts(four, 4).contains(OpKind::kReduceScatter)) << "three matrices on four ranks";
  EXPECT_TRUE(SentForExperts(four, 4).contains(OpKind::kAllGather));
}

INSTANTIATE_TEST_SUITE_P(Layouts, Traffic, testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.name;
  for (char& ch : name)
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  return name;
});

}  // namespace
}  // namespace espalier
