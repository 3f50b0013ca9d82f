#include "train/evaluating/token_scorer.hpp"

#include <algorithm>
#include <cmath>

#include "espalier/comm/agreement.hpp"
#include "espalier/comm/memory_demand.hpp"
#include "espalier/train/states.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

/// Rows as the samples of a source.
class RowSource final : public TokenSource {
 public:
  RowSource(const std::vector<Row>& rows, int64_t seq_len) : rows_(rows), seq_len_(seq_len) {}

  int64_t samples() const override { return std::ssize(rows_); }
  int64_t tokens() const override { return samples() * seq_len_; }
  int64_t seq_len() const override { return seq_len_; }
  /// The rest of a row, after its windows, is a document by itself, of which nothing counts.
  void Read(int64_t sample, Sample& out) override {
    const Row& row = rows_[static_cast<size_t>(sample)];
    out.tokens = row.tokens;
    out.documents = row.documents;
    out.uncounted = row.uncounted;
    if (std::ssize(row.tokens) <= seq_len_) out.documents.push_back(std::ssize(row.tokens));
    out.tokens.resize(static_cast<size_t>(seq_len_) + 1, 0);
    out.uncounted.resize(static_cast<size_t>(seq_len_) + 1, 1);
  }

 private:
  const std::vector<Row>& rows_;
  int64_t seq_len_;
};

void RequireMemory(World& world, const Device& device, int64_t bytes) {
  const MemoryShortage shortage = FindShortage(world, {HostName(), bytes, device.ArenaLimits()});
  if (shortage.ranks == 0) return;
  const std::string text = OnRankZero(world, [&] {
    return shortage.Text("the whole model and its activations") +
           "; give the ranks parts of the model (parallel.tp=2, or parallel.dp_shard=-1), or start fewer on this node";
  });
  throw AgreedError(ExitStatus::kDoesNotFit, text);
}

}  // namespace

TokenScorer::TokenScorer(const Deck& deck, const std::string& dir, World& world, MpiWorld* mpi, Device& device)
    : world_(world), seq_len_(deck.model.seq_len) {
  OnAllRanks(world, [&] {
    compilation_ = Compile(deck, world.Size(), Purpose::kScore, device.Kind());
    coordinate_ = compilation_.mesh.CoordinateOf(world.Rank());
    runnable_.program = MakeProgram(compilation_, coordinate_);
    layout_ = LayoutOfBatch(compilation_, coordinate_);
  });
  const int64_t bytes = world.Max(runnable_.program.arena_bytes);
  RequireMemory(world, device, bytes);
  OnAllRanks(world, [&] { arena_ = device.MakeArena(bytes); });
  MakeExecutor(mpi, device);
  const std::vector<StateTensor> tensors = StateTensors(compilation_);
  Load(dir, tensors, LocalTensors(tensors, *runnable_.executor, coordinate_), compilation_.mesh, world,
       Coverage::kSome);
}

void TokenScorer::MakeExecutor(MpiWorld* mpi, Device& device) {
  Executor::Abort abort;
  if (mpi != nullptr) {
    device.Connect(*mpi, compilation_.mesh, AgreeOnChannels(world_, ChannelsOf(runnable_.program)));
    abort = [mpi](const std::string& message) { mpi->Fail(message); };
  }
  runnable_.executor = device.MakeExecutor(runnable_.program, coordinate_, *arena_, abort);
}

std::vector<double> TokenScorer::Losses(const std::vector<Row>& rows) {
  CHECK(!rows.empty() && std::ssize(rows) <= layout_.Global(), "{} rows of {}", rows.size(), layout_.Global());
  RowSource source(rows, seq_len_);
  Batch batch;
  LoadBatch(source, {0, Order::kSequential}, layout_, 0, batch);
  runnable_.Fill(batch, layout_.positions);
  runnable_.executor->RunStep();
  std::vector<double> losses(static_cast<size_t>(layout_.Global() * seq_len_));
  for (const Part& part : Gathered(world_, OwnLosses()))
    for (size_t i = 0; i < part.places.size(); ++i) losses[static_cast<size_t>(part.places[i])] = part.losses[i];
  return losses;
}

TokenScorer::Part TokenScorer::OwnLosses() const {
  Part part;
  for (int64_t m = 0; m < layout_.microbatches; ++m) {
    const auto microbatch = static_cast<int>(m);
    const std::vector<float> max = Result(0, microbatch), sum = Result(1, microbatch), target = Result(2, microbatch);
    const auto width = layout_.positions.size();
    for (size_t i = 0; i < max.size(); ++i) {
      const int64_t row = m * layout_.microbatch_rows + layout_.rows.begin + static_cast<int64_t>(i / width);
      part.places.push_back(row * seq_len_ + layout_.positions[i % width]);
      // -log softmax of the target
      part.losses.push_back(std::log(double{sum[i]}) + (double{max[i]} - double{target[i]}));
    }
  }
  return part;
}

std::vector<float> TokenScorer::Result(size_t index, int microbatch) const {
  const Program& program = runnable_.program;
  const int id = program.graph->results.at(index);
  const bool here = std::ranges::any_of(program.persistent, [&](const PersistentBuffer& buffer) {
    return buffer.value == id && buffer.microbatch == microbatch;
  });
  if (!here) return {};
  const Tensor tensor = runnable_.executor->At(program.graph->value(id).name, microbatch);
  std::vector<float> numbers(static_cast<size_t>(Volume(tensor.shape)));
  arena_->Read(tensor.data, numbers.data(), std::ssize(numbers) * int64_t{sizeof(float)});
  return numbers;
}

}  // namespace espalier
