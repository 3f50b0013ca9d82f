#include "espalier/graph/signature.hpp"

#include <bit>
#include <concepts>

namespace espalier {
namespace {

/// FNV-1a, a number at a time (Fowler, Noll and Vo 1991).
class Mixer {
 public:
  void Add(uint64_t number) { hash_ = (hash_ ^ number) * 0x100000001b3u; }
  size_t Hash() const { return hash_ ^ (hash_ >> 29); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

template <std::integral T>
void Append(std::string& key, T number) {
  key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// Texts with their lengths: no two lists of texts have one key.
void Append(std::string& key, std::string_view text) {
  Append(key, text.size());
  key.append(text);
}

}  // namespace

size_t HashOf(const Type& type) {
  Mixer mixer;
  mixer.Add(static_cast<uint64_t>(type.dtype));
  mixer.Add(static_cast<uint64_t>(type.placements.partial_sum.bits()) << 32 | type.placements.partial_max.bits());
  for (int64_t extent : type.shape) mixer.Add(static_cast<uint64_t>(extent));
  for (const std::vector<Axis>& dim : type.placements.dims) {
    mixer.Add(dim.size() + kAxisCount);
    for (Axis axis : dim) mixer.Add(static_cast<uint64_t>(axis));
  }
  return mixer.Hash();
}

void Signatures::Read(const Graph& graph) {
  graph_ = &graph;
  of_value_.assign(graph.values.size(), -1);
}

int Signatures::OfValue(int id) {
  int& number = of_value_[id];
  if (number < 0) number = types_.try_emplace(graph_->value(id).type, static_cast<int>(types_.size())).first->second;
  return number;
}

int Signatures::Of(const Op& op) {
  key_.clear();
  Append(key_, static_cast<uint64_t>(op.kind) | op.inputs.size() << 8 | op.outputs.size() << 32);
  for (const std::vector<int>* ids : {&op.inputs, &op.outputs})
    for (int id : *ids) Append(key_, OfValue(id));
  Append(key_, op.attributes.numbers.size());
  for (const auto& [name, number] : op.attributes.numbers) {
    Append(key_, name);
    Append(key_, std::bit_cast<uint64_t>(number));
  }
  for (const auto& [name, text] : op.attributes.texts) {
    Append(key_, name);
    Append(key_, text);
  }
  return ops_.try_emplace(key_, static_cast<int>(ops_.size())).first->second;
}

}  // namespace espalier
