#include "espalier/graph/op_kind.hpp"

#include <fmt/format.h>

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

fmt::format_context::iterator fmt::formatter<espalier::OpKind>::format(espalier::OpKind kind,
                                                                       format_context& context) const {
  return fmt::formatter<std::string_view>::format(espalier::Name(kind), context);
}
