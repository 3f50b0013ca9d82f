#include "espalier/graph/op_kind.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {

std::optional<OpKind> FindOpKind(std::string_view name) {
  const auto it = std::find(kOpNames.begin() + 1, kOpNames.end(), name);
  if (it == kOpNames.end()) return std::nullopt;
  return static_cast<OpKind>(it - kOpNames.begin());
}

OpKind OpKindOf(std::string_view name) {
  const std::optional<OpKind> kind = FindOpKind(name);
  CHECK(kind, "there is no op {}", name);
  return *kind;
}

}  // namespace espalier
