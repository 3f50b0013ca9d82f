// The loss in chunks of rows (tokens): the logits of a microbatch are never stored whole. The gradient of the loss in
// the logits needs nothing of backward, since that starts from 1 at the summed loss. So each chunk goes from the
// normalised stream x to the loss and back within forward. What waits for backward is dx [tokens, dim], not the logits
// [tokens, vocab]:
//
//   F  z = matmul(x, w)                            F  x0 = take_rows(x)              with chunk 0, then 1, ...
//   F  m = logits_max(z)                           F  z0 = matmul(x0, w)
//   F  s, t = logits_sum(z, m, targets)            F  m0 = logits_max(z0)
//   F  loss, count += token_loss(m, s, t, ..)      F  s0, t0 = logits_sum(z0, m0, targets0)
//   B  dz = cross_entropy_grad(z, m, s, ..)   ->   F  loss, count += token_loss(m0, s0, t0, ..)
//   B  dx = matmul(dz, w)                          F  dz0 = cross_entropy_grad(z0, m0, s0, ..)
//   W  dw += matmul(dz, x)                         F  dx0 = matmul(dz0, w);  dx = put_rows(dx0)
//                                                  F  dw += matmul(dz0, x0)
//
// Rows are cut, not the vocabulary: a row of logits is complete in its chunk, so that one pass over it is enough and no
// product is computed twice. A chunk is made of ordinary ops on smaller values; all rows of a rank count, whichever
// sequence they are of, so a chunk is a part of the memory of x. Copies in and out are 4 dim of some 6 vocab elements
// that a row of logits costs to read and write. The first chunk makes the gradient dw, and the others add to it. What
// reduces dx and dw follows them to forward; under that of dx is the last chunk's matmul for dw.
#include <algorithm>
#include <map>

#include "espalier/graph/local_range.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Logits of one rank's chunk, where the number of chunks is automatic: few against the memory of a GPU.
constexpr int64_t kMaxBytes = int64_t{512} << 20;
/// Rows of a chunk then: 16 tiles of 128, so that the products of a chunk are as fast as that of the whole.
constexpr int64_t kMinRows = 2048;

class LossChunker {
 public:
  /// The loss of these logits in `chunks` of the rows of each rank; 0: automatic.
  LossChunker(Graph& graph, const Mesh& mesh, int64_t chunks, int logits)
      : graph_(graph), mesh_(mesh), repeated_(graph.ops.size()), head_(FindHead(logits)) {
    MarkRepeated();
    logits = graph.op(head_).outputs[0];
    sequences_ = RanksOf(graph.value(logits).type, 0);
    tokens_ = RanksOf(graph.value(logits).type, 1);
    rows_ = graph.value(logits).type.shape[0] / sequences_ * (graph.value(logits).type.shape[1] / tokens_);
    chunks_ = chunks == 0 ? Automatic() : chunks;
  }

  void Run() {
    if (chunks_ <= 1) return;
    const Rewriter old(graph_);
    old_ = &old.ops;
    for (size_t i = 0; i < old.ops.size(); ++i) {
      if (static_cast<int>(i) == head_) graph_.ops.push_back({});  // the place of all chunks
      if (!repeated_[i] && !Follows(old.ops[i])) graph_.ops.push_back(old.ops[i]);
    }
    const auto place = std::ranges::find(graph_.ops, OpKind::kNone, &Op::kind);
    const std::vector<Op> chunks = Chunks();
    graph_.ops.insert(graph_.ops.erase(place), chunks.begin(), chunks.end());
    DropUnread();
  }

 private:
  const Op& OldOp(size_t i) const { return (*old_)[i]; }
  const Op& Head() const { return (*old_)[static_cast<size_t>(head_)]; }

  /// The op that makes the logits. They may be gathered before anything reads them.
  int FindHead(int logits) const {
    int op = graph_.value(logits).producer;
    while (IsReshard(graph_.op(op).kind)) op = graph_.value(graph_.op(op).inputs[0]).producer;
    CHECK(graph_.op(op).kind == OpKind::kMatmul, "{} makes the logits", graph_.op(op).kind);
    return op;
  }

  static bool MakesWeightGradient(const Op& op) { return op.kind == OpKind::kMatmul && op.role == Role::kW; }
  static bool MakesInputGradient(const Op& op) { return op.kind == OpKind::kMatmul && op.role == Role::kB; }
  /// For scoring: the numbers of each token, which chunks write to their places.
  bool IsResult(int value) const { return std::ranges::count(graph_.results, value) > 0 && !IsScalar(value); }
  bool IsScalar(int value) const { return graph_.value(value).type.shape.empty(); }
  /// Each chunk adds its part.
  static bool Sums(const Op& op) { return op.kind == OpKind::kTokenLoss || MakesWeightGradient(op); }

  /// The head and what depends on the logits, up to the loss and to both gradients of the head.
  void MarkRepeated() {
    std::vector<bool> of_logits(graph_.values.size());
    for (size_t i = static_cast<size_t>(head_); i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      repeated_[i] = static_cast<int>(i) == head_ ||
                     (op.frequency() == Frequency::kMicrobatch &&
                      std::ranges::any_of(op.inputs, [&](int v) { return of_logits[static_cast<size_t>(v)]; }));
      if (repeated_[i] && !Sums(op) && !MakesInputGradient(op))
        for (int v : op.outputs) of_logits[static_cast<size_t>(v)] = true;
    }
  }

  int64_t RanksOf(const Type& type, size_t dim) const {
    const int64_t ranks = ShardsOf(type, dim, mesh_);
    CHECK(type.shape[dim] % ranks == 0, "{} rows of {} are not equally many on all ranks", type.shape[dim], ranks);
    return ranks;
  }

  int64_t Automatic() const {
    int64_t bytes = 0;
    for (size_t i = 0; i < repeated_.size(); ++i)
      if (repeated_[i] && !Sums(graph_.ops[i]) && !MakesInputGradient(graph_.ops[i])) {
        const Type& type = graph_.value(graph_.ops[i].outputs[0]).type;
        bytes = std::max(bytes, LocalVolume(type, mesh_, {}) * SizeOf(type.dtype));
      }
    const int64_t wanted = (bytes + kMaxBytes - 1) / kMaxBytes;
    return std::clamp<int64_t>(rows_ / kMinRows, 1, std::max<int64_t>(wanted, 1));
  }

  // --- one chunk after the other

  std::vector<Op> Chunks() {
    const int64_t size = (rows_ + chunks_ - 1) / chunks_;
    std::vector<Op> last_weights;
    for (first_ = 0; first_ < rows_; first_ += extent_) {
      extent_ = std::min(size, rows_ - first_);
      chunk_of_.clear();
      for (size_t i = 0; i < old_->size(); ++i) {
        if (!repeated_[i]) continue;
        Op op = InChunk(OldOp(i));
        const bool last = first_ + extent_ == rows_ && MakesWeightGradient(OldOp(i));
        (last ? last_weights : made_).push_back(std::move(op));
        for (int output : OldOp(i).outputs)
          if (MakesInputGradient(OldOp(i)) || IsResult(output)) Put(output);
      }
    }
    for (const std::vector<Op>* ops : {&after_input_, &last_weights, &after_weight_})
      made_.insert(made_.end(), ops->begin(), ops->end());
    return std::move(made_);
  }

  Op InChunk(Op op) {
    const Op whole = op;
    for (int& input : op.inputs) input = InputInChunk(whole, input);
    op.role = Role::kF;
    if (Sums(whole)) {
      if (first_ > 0) op.attributes.numbers["adds"] = 1;
      return op;
    }
    for (int& output : op.outputs) output = ChunkOf(output);
    return op;
  }

  /// Rows of this chunk. Matmuls of the gradients read what the head read: w, and rows of x.
  int InputInChunk(const Op& op, int input) {
    if (const auto it = chunk_of_.find(input); it != chunk_of_.end()) return it->second;
    const int x = Head().inputs[0], w = Head().inputs[1];
    if (MakesInputGradient(op)) return Same(w, input);
    if (MakesWeightGradient(op)) return chunk_of_.at(Same(x, input));
    return op.kind == OpKind::kMatmul && input == w ? w : Take(input);
  }
  int Same(int of_head, int of_gradient) const {
    const Value &a = graph_.value(of_head), &b = graph_.value(of_gradient);
    CHECK(a.type == b.type, "the head reads {}, its gradient {} as {}", ToString(a.type), b.name, ToString(b.type));
    return of_head;
  }

  int ChunkOf(int value) {
    Value chunk = graph_.value(value);
    chunk.name = graph_.Unique(fmt::format("{}.rows{}", chunk.name, first_));
    chunk.layout.clear();
    chunk.kind = ValueKind::kActivation;  // the targets are an input
    chunk.type.shape[0] = sequences_;
    chunk.type.shape[1] = tokens_ * extent_;
    return chunk_of_[value] = graph_.AddValue(std::move(chunk));
  }
  int Take(int value) {
    const int chunk = ChunkOf(value);
    made_.push_back(Move(OpKind::kTakeRows, value, chunk, graph_.value(chunk).type.shape));
    return chunk;
  }
  void Put(int value) {
    made_.push_back(Move(OpKind::kPutRows, chunk_of_.at(value), value, graph_.value(value).type.shape));
  }
  /// Rows from first_ on, to or from the whole. The attributes state the result's extents over all ranks.
  Op Move(OpKind kind, int from, int to, const Shape& result) const {
    const Attributes rows{{{"first", double(first_)}, {"sequences", double(result[0])}, {"tokens", double(result[1])}},
                          {}};
    return {kind, {from}, {to}, rows, Role::kF, Head().layer, Head().chunk};
  }

  // --- what follows dx and dw

  /// Takes reshards, casts and sums of the head's gradients along to forward.
  bool Follows(const Op& op) {
    const bool may = IsReshard(op.kind) || op.kind == OpKind::kCast || op.kind == OpKind::kAccumulate;
    if (!may || (op.role != Role::kB && op.role != Role::kW)) return false;
    if (origin_.empty()) NoteGradients();
    const auto from = origin_.find(op.inputs[0]);
    if (from == origin_.end()) return false;
    const bool weight = from->second;
    for (int output : op.outputs) origin_[output] = weight;
    (weight ? after_weight_ : after_input_).push_back(op);
    (weight ? after_weight_ : after_input_).back().role = Role::kF;
    return true;
  }
  void NoteGradients() {
    for (size_t i = 0; i < old_->size(); ++i)
      if (repeated_[i] && (MakesInputGradient(OldOp(i)) || MakesWeightGradient(OldOp(i))))
        origin_[OldOp(i).outputs[0]] = MakesWeightGradient(OldOp(i));
  }

  /// Gathers of w and x for backward, which nothing reads any more.
  void DropUnread() {
    std::vector<bool> read(graph_.values.size());
    for (int v : graph_.results) read[static_cast<size_t>(v)] = true;
    for (size_t i = graph_.ops.size(); i-- > 0;) {
      Op& op = graph_.ops[i];
      const auto is_read = [&](int v) {
        return graph_.value(v).kind != ValueKind::kActivation || read[static_cast<size_t>(v)];
      };
      if (IsReshard(op.kind) && op.layer == Head().layer && std::ranges::none_of(op.outputs, is_read))
        op = {};
      else
        for (int v : op.inputs) read[static_cast<size_t>(v)] = true;
    }
  }

  Graph& graph_;
  const Mesh& mesh_;
  std::vector<bool> repeated_;  // by op
  int head_;
  int64_t sequences_ = 1, tokens_ = 1;  // ranks that share out the sequences, and the tokens of each
  int64_t rows_ = 0, chunks_ = 1;       // of each rank
  const std::vector<Op>* old_ = nullptr;
  int64_t first_ = 0, extent_ = 0;  // rows of the current chunk
  std::map<int, int> chunk_of_;     // by value: its rows in the current chunk
  std::vector<Op> made_;
  std::map<int, bool> origin_;  // by value made of the head's gradients: true if of dw
  std::vector<Op> after_input_, after_weight_;
};

}  // namespace

void ChunkLoss(Graph& graph, const PassContext& context) {
  if (context.purpose == Purpose::kSample) return;
  std::vector<int> logits;  // of each loss
  for (const Op& op : graph.ops)
    if (op.kind == OpKind::kLogitsMax) logits.push_back(op.inputs[0]);
  for (const int of_loss : logits) LossChunker(graph, context.mesh, context.deck.loss.chunks, of_loss).Run();
}

}  // namespace espalier
