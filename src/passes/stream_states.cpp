// States on the host pass through the device when they are updated, in chunks of at most offload.chunk_bytes. While one
// chunk is updated, the next comes in and the one before goes out:
//
//   U  p, m, v = adamw(.., p, m, v, g)          U  p.0, m.0, v.0 = copy_in(p, m, v)
//                                               U  p.1, m.1, v.1 = copy_in(p, m, v)
//                                               U  p.0, m.0, v.0 = adamw(.., p.0, m.0, v.0, g)
//                                     ->        U  p.2, m.2, v.2 = copy_in(p, m, v)          issued before the memory
//                                     of
//                                               U  p, m, v = copy_out(p.0, m.0, v.0)         chunk 0 is free: three
//                                               U  p.1, m.1, v.1 = adamw(.., p.1, m.1, v.1, g)    chunks at a time
//                                               ...
//
// A chunk is a piece of a tensor (ops/strip.hpp), a tensor, or several small ones that one AdamW updates (pass
// `merge_updates`). Each element is computed as before, so no bit changes. A copy of a master that is on the host, too,
// leaves with it. The program that makes these copies streams likewise.
#include <algorithm>
#include <map>

#include "espalier/graph/local_range.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr size_t kAhead = 2;  // chunks that are brought in before one is updated

class Streamer {
 public:
  Streamer(Graph& graph, const PassContext& context) : graph_(graph), context_(context) {}

  void Run() {
    Rewriter old(graph_);
    for (const Op& op : old.ops)
      if (UsesHost(op)) AddItems(op);
    for (Op& op : old.ops) {
      const auto items = items_of_.find(&op);
      if (items == items_of_.end())
        graph_.ops.push_back(std::move(op));
      else
        for (size_t i = 0; i < items->second.count; ++i) Emit(StageOf(op), items->second.first + i);
    }
  }

 private:
  /// An op, or a piece of one.
  struct Item {
    const Op* op;
    Piece piece;
  };
  /// The items of a stage, in order, and how many of them have been brought in.
  struct Stream {
    std::vector<Item> items;
    size_t brought = 0;
  };
  struct Items {
    size_t first, count;  ///< in the stream of the stage
  };

  bool IsOnHost(int value) const { return graph_.value(value).space == Space::kHost; }
  bool UsesHost(const Op& op) const { return !IsHostCopy(op.kind) && !HostOperands(graph_, op).empty(); }
  int StageOf(const Op& op) const { return context_.stage_of_chunk.at(static_cast<size_t>(op.chunk)); }

  void AddItems(const Op& op) {
    CHECK(op.frequency() == Frequency::kStep, "{} uses {}, which is on the host", op.kind,
          graph_.value(HostOperands(graph_, op)[0]).name);
    Stream& stream = streams_[StageOf(op)];
    Piece piece = FirstPiece(op);
    items_of_[&op] = {stream.items.size(), static_cast<size_t>(piece.count)};
    for (; piece.index < piece.count; ++piece.index) stream.items.push_back({&op, piece});
  }

  /// As many pieces as bring each to at most a chunk, along the first dim of which a rank has several indices. Ops of
  /// several tensors are not divided: they are made to fit.
  Piece FirstPiece(const Op& op) const {
    const std::vector<int> states = HostOperands(graph_, op);
    const Type& type = graph_.value(states[0]).type;
    const bool alike = std::ranges::all_of(
        states, [&](int v) { return ParameterOf(graph_.value(v)) == ParameterOf(graph_.value(states[0])); });
    if (!alike) return {};
    const Shape local = LocalShape(type, context_.mesh, {});
    size_t dim = 0;
    while (dim < local.size() && local[dim] == 1) ++dim;
    if (dim == local.size()) return {};
    int64_t bytes = 0;
    for (int v : states) bytes += Volume(local) * SizeOf(graph_.value(v).type.dtype);
    const int64_t chunk = context_.deck.offload.chunk_bytes;
    return {0, static_cast<int>(std::clamp<int64_t>((bytes + chunk - 1) / chunk, 1, local[dim])), dim};
  }

  void Emit(int stage, size_t item) {
    Stream& stream = streams_.at(stage);
    BringUpTo(stream, item + kAhead);
    Op op = *stream.items[item].op;
    const Piece piece = stream.items[item].piece;
    const std::vector<int> outputs = op.outputs;
    for (std::vector<int>* operands : {&op.inputs, &op.outputs})
      for (int& v : *operands)
        if (IsOnHost(v)) v = Staged(v, piece);
    Push(std::move(op), piece);
    BringUpTo(stream, item + kAhead + 1);
    Op copy = CopyOf(*stream.items[item].op, OpKind::kCopyOut);
    for (int v : outputs)
      if (IsOnHost(v)) {
        copy.inputs.push_back(Staged(v, piece));
        copy.outputs.push_back(v);
      }
    if (!copy.inputs.empty()) Push(std::move(copy), piece);
  }

  void BringUpTo(Stream& stream, size_t end) {
    for (; stream.brought < std::min(end, stream.items.size()); ++stream.brought) {
      const auto& [op, piece] = stream.items[stream.brought];
      Op copy = CopyOf(*op, OpKind::kCopyIn);
      for (int v : op->inputs)
        if (IsOnHost(v)) {
          copy.inputs.push_back(v);
          copy.outputs.push_back(Staged(v, piece));
        }
      if (!copy.inputs.empty()) Push(std::move(copy), piece);
    }
  }

  static Op CopyOf(const Op& op, OpKind kind) { return {kind, {}, {}, {}, op.role, op.layer, op.chunk}; }

  void Push(Op op, const Piece& piece) {
    if (piece.count > 1) SetStrip(op, {.index = piece.index, .count = piece.count, .dim = piece.dim, .axes = {}});
    graph_.ops.push_back(std::move(op));
  }

  int Staged(int state, const Piece& piece) {
    const Value& v = graph_.value(state);
    const std::string name = StagedName(v.name, piece);
    if (const int known = graph_.FindOrNone(name); known >= 0) return known;
    Value staged{name, v.type, ValueKind::kActivation, Frequency::kStep, v.chunk, -1, ""};
    staged.piece = piece;
    return graph_.AddValue(std::move(staged));
  }

  Graph& graph_;
  const PassContext& context_;
  std::map<int, Stream> streams_;  // by stage
  std::map<const Op*, Items> items_of_;
};

}  // namespace

void StreamStates(Graph& graph, const PassContext& context) {
  if (std::ranges::any_of(graph.values, [](const Value& v) { return v.space == Space::kHost; }))
    Streamer(graph, context).Run();
}

}  // namespace espalier
