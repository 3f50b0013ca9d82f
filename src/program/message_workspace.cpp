// The workspace of a message, from the types alone: exactly what the lowerings of src/comm take. Boxes are packed
// unless a message is one contiguous box.
#include <algorithm>

#include "espalier/graph/local_range.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/program/compile.hpp"

namespace espalier {
namespace {

/// The part of a tensor that a member has: its shard, or the rows of the op's strip if they are one box of the shard.
struct Held {
  Box box;
  int64_t element_bytes = 0;

  int64_t Bytes() const { return Volume(ExtentsOf(box)) * element_bytes; }
};

/// Bytes of the messages to or from one member. Large boxes are messages of their own; the others make one.
class MessageBytes {
 public:
  void AddBox(int64_t bytes, bool contiguous) {
    all_ += bytes;
    if (!IsOwnMessage(bytes)) {
      small_ += bytes;
      small_in_place_ = ++small_boxes_ == 1 && contiguous;
      return;
    }
    large_ += Aligned(bytes);
    if (!contiguous) large_packed_ += Aligned(bytes);
  }

  int64_t All() const { return all_; }
  /// If nothing is in place.
  int64_t AllAligned() const { return large_ + Aligned(small_); }
  int64_t Packed() const { return large_packed_ + (small_in_place_ ? 0 : Aligned(small_)); }

 private:
  int64_t all_ = 0, small_ = 0, large_ = 0, large_packed_ = 0;
  int small_boxes_ = 0;
  bool small_in_place_ = false;
};

/// The boxes of these messages.
struct MessageBoxes {
  std::vector<int> tensors;   ///< by box
  std::vector<Range> ranges;  ///< of all boxes, one after another
  MessageBytes bytes;
  int64_t first_byte = 0;   ///< of the last box, in its tensor
  bool contiguous = false;  ///< the last box, in its tensor

  bool IsOneInPlace() const { return tensors.size() == 1 && contiguous; }
  bool HasTheBoxesOf(const MessageBoxes& other) const { return tensors == other.tensors && ranges == other.ranges; }
  void Clear() {
    tensors.clear();
    ranges.clear();
    bytes = {};
  }
};

class MessageWorkspace {
 public:
  MessageWorkspace(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate)
      : graph_(graph),
        op_(op),
        mesh_(mesh),
        coordinate_(coordinate),
        group_(IsBetweenStages(op.kind) ? AxisSet{} : op.Axes()),
        members_(mesh.GroupSize(group_)),
        self_(mesh.IndexInGroup(group_, coordinate)),
        strip_(StripOf(op)),
        inputs_(HeldOf(op.inputs)),
        outputs_(HeldOf(op.outputs)) {}

  int64_t Bytes() const {
    switch (op_.kind) {
      case OpKind::kSend:
        return BytesOf(inputs_).Packed();
      case OpKind::kRecv:
        return BytesOf(outputs_).Packed();
      case OpKind::kGatherStages:  // scalars of every stage, and those that this stage sends
        return (members_ + 1) * Aligned(std::ssize(outputs_) * 4);
      case OpKind::kAllReduce:
        return OfAllReduce();
      case OpKind::kRingShift:  // whole shards to the next member, and shards of the same shapes from the one before
        return members_ == 1 ? 0 : 2 * BytesOf(inputs_).Packed();
      default:
        return OfGroup();
    }
  }

 private:
  std::vector<Held> HeldOf(const std::vector<int>& values) const {
    std::vector<Held> held;
    for (int v : values) {
      const Type& type = graph_.value(v).type;
      Box& box = held.emplace_back(LocalBox(type, mesh_, coordinate_), SizeOf(type.dtype)).box;
      if (!strip_) continue;
      const std::vector<Box> rows = StripBoxes(type, *strip_, mesh_, coordinate_);
      if (rows.size() == 1) box = rows[0];
      if (rows.empty()) box[0].end = box[0].begin;
    }
    return held;
  }

  static bool AreOne(const std::vector<Held>& tensors) {
    return std::ranges::count_if(tensors, [](const Held& held) { return held.Bytes() > 0; }) == 1;
  }
  static MessageBytes BytesOf(const std::vector<Held>& tensors) {
    MessageBytes bytes;
    for (const Held& held : tensors)
      if (held.Bytes() > 0) bytes.AddBox(held.Bytes(), true);
    return bytes;
  }

  /// The tensors as one flat tensor, and a shard of it from each other member: the first member's, which is the
  /// largest, since members of equal shards share a program. Two members exchange everything.
  int64_t OfAllReduce() const {
    const int64_t size = inputs_.at(0).element_bytes, bytes = BytesOf(inputs_).All();
    const Range flat{0, bytes / size}, shard = members_ == 2 ? flat : ShardOf(flat, members_, 0);
    return (AreOne(inputs_) ? 0 : Aligned(bytes)) + (members_ - 1) * Aligned(shard.Extent() * size);
  }

  /// Messages to and from each other member, or a slot for each member's message if a collective of a library takes
  /// more: none if the messages are adjacent in memory. Members to which the same boxes go share a packed copy. Boxes
  /// that are added up come to memory of their own.
  int64_t OfGroup() const {
    const bool gathers = op_.kind == OpKind::kAllGather, adds = op_.kind == OpKind::kReduceScatter;
    bool adjacent = AreOne(gathers ? inputs_ : outputs_);
    int64_t exchange = 0;
    std::vector<int64_t> sizes;
    MessageBoxes sent, before, received;
    for (int peer = 0; peer < members_; ++peer) {
      const Coordinate there = mesh_.GroupMember(group_, coordinate_, peer);
      Fill(coordinate_, there, inputs_, sent);
      Fill(there, coordinate_, outputs_, received);
      const MessageBoxes& slot = gathers ? received : sent;
      sizes.push_back(slot.bytes.All());
      adjacent = adjacent && slot.IsOneInPlace() && sizes[peer] == sizes[0] && slot.first_byte == peer * sizes[0];
      if (peer == self_) continue;
      exchange += adds ? received.bytes.AllAligned() : received.bytes.Packed();
      if (sent.tensors.empty()) continue;
      if (!sent.HasTheBoxesOf(before)) exchange += sent.bytes.Packed();
      std::swap(sent, before);
    }
    const bool collective = (gathers || adds) && !adjacent;
    return std::max(exchange, collective ? members_ * SlotBytes(sizes) : 0);
  }

  /// The boxes that go from one member to another, in the tensors that this member has of them.
  void Fill(const Coordinate& from, const Coordinate& to, const std::vector<Held>& tensors,
            MessageBoxes& message) const {
    message.Clear();
    for (size_t t = 0; t < tensors.size(); ++t) {
      const Type &source = graph_.value(op_.inputs[t]).type, &target = graph_.value(op_.outputs[t]).type;
      const auto add = [&](const auto& range_of_source) {
        const size_t begin = message.ranges.size();
        for (size_t d = 0; d < source.shape.size(); ++d) {
          const Range mine = range_of_source(d), theirs = LocalRange(target, d, mesh_, to);
          message.ranges.push_back({std::max(mine.begin, theirs.begin), std::min(mine.end, theirs.end)});
        }
        if (Measure(tensors[t], begin, message))
          message.tensors.push_back(static_cast<int>(t));
        else
          message.ranges.resize(begin);
      };
      if (!strip_) add([&](size_t d) { return LocalRange(source, d, mesh_, from); });
      if (strip_)
        for (const Box& rows : StripBoxes(source, *strip_, mesh_, from)) add([&](size_t d) { return rows[d]; });
    }
  }
  /// Adds the bytes of the box whose ranges begin at `begin`, and finds its place in its tensor. False if it is empty.
  static bool Measure(const Held& held, size_t begin, MessageBoxes& message) {
    int64_t volume = 1, stride = 1, first = 0;
    bool contiguous = true;
    for (size_t d = held.box.size(); d-- > 0;) {
      const Range box = message.ranges[begin + d], whole = held.box[d];
      if (box.Extent() <= 0) return false;
      contiguous = contiguous && (box.Extent() == 1 || volume == stride);
      first += (box.begin - whole.begin) * stride;
      volume *= box.Extent();
      stride *= whole.Extent();
    }
    message.first_byte = first * held.element_bytes;
    message.contiguous = contiguous;
    message.bytes.AddBox(volume * held.element_bytes, contiguous);
    return true;
  }

  const Graph& graph_;
  const Op& op_;
  const Mesh& mesh_;
  const Coordinate& coordinate_;
  const AxisSet group_;  // none for a send and a receive
  const int members_, self_;
  const std::optional<Strip> strip_;
  const std::vector<Held> inputs_, outputs_;
};

}  // namespace

int64_t SlotBytes(const std::vector<int64_t>& sizes) {
  const int64_t slot = Aligned(*std::ranges::max_element(sizes));
  int64_t all = 0;
  for (int64_t bytes : sizes) all += Aligned(bytes);
  return std::ssize(sizes) * slot <= 2 * all ? slot : 0;
}

int64_t CommWorkspaceBytes(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  const auto of_rank = [&](const Coordinate& at) { return MessageWorkspace(graph, op, mesh, at).Bytes(); };
  if (op.kind != OpKind::kAllToAll) return of_rank(coordinate);
  // Where axes change their order on a dim, some ranks keep their shards and others send them: all have the same plan.
  int64_t most = 0;
  for (int member = 0; member < mesh.GroupSize(op.Axes()); ++member)
    most = std::max(most, of_rank(mesh.GroupMember(op.Axes(), coordinate, member)));
  return most;
}

}  // namespace espalier
