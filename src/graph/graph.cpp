#include "espalier/graph/graph.hpp"

#include <algorithm>

#include "espalier/util/enum_array.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

std::string_view Name(Role role) {
  constexpr EnumArray<Role, std::string_view, 7> kNames = {"P", "F", "B", "W", "S", "U", "?"};
  return kNames[role];
}

std::string_view Name(ValueKind kind) {
  constexpr EnumArray<ValueKind, std::string_view, 5> kNames = {"activation", "input", "state", "accumulator", "cache"};
  return kNames[kind];
}

std::string_view Name(Space space) {
  constexpr BySpace<std::string_view> kNames = {"device", "host"};
  return kNames[space];
}

Piece PieceOf(const Op& op) {
  const Attributes& a = op.attributes;
  if (!a.numbers.contains("strip")) return {};
  return {static_cast<int>(a.Integer("strip")), static_cast<int>(a.Integer("strips")),
          static_cast<size_t>(a.Integer("strip_dim"))};
}

int Graph::AddValue(Value value) {
  CHECK(FindOrNone(value.name) < 0, "value {} is defined twice", value.name);
  ids_.emplace(value.name, static_cast<int>(values.size()));
  values.push_back(std::move(value));
  return static_cast<int>(values.size()) - 1;
}

int Graph::AddOp(Op op) {
  const int id = static_cast<int>(ops.size());
  for (int output : op.outputs)
    if (values[output].kind == ValueKind::kActivation) values[output].producer = id;
  ops.push_back(std::move(op));
  return id;
}

int Graph::FindOrNone(std::string_view name) const {
  const auto it = ids_.find(name);
  return it == ids_.end() ? -1 : it->second;
}

int Graph::Find(std::string_view name) const {
  const int id = FindOrNone(name);
  CHECK(id >= 0, "the graph has no value {}", name);
  return id;
}

std::string Graph::Unique(const std::string& base) const {
  if (FindOrNone(base) < 0) return base;
  for (int i = 2;; ++i) {
    std::string name = base + "." + std::to_string(i);
    if (FindOrNone(name) < 0) return name;
  }
}

void Graph::Renumber() {
  std::erase_if(ops, [](const Op& op) { return op.kind == OpKind::kNone; });
  for (Value& value : values) value.producer = -1;
  for (size_t i = 0; i < ops.size(); ++i)
    for (int output : ops[i].outputs)
      if (values[output].kind == ValueKind::kActivation) values[output].producer = static_cast<int>(i);
}

}  // namespace espalier
