// Keys or values x [b, s, n] of adjacent tokens, written into the rows of a cache [b, t, n] that their positions i32[s]
// name; all other rows stay. In sampling only.
#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Einsum WriteEinsum(const OpContext&) { return {{"btn", "bsn", "s"}, {"btn"}, "bn"}; }
std::vector<Type> WriteInfer(const OpContext& c) {
  CHECK(c.ElementType(0) == c.ElementType(1), "cache_write: the types of cache and rows differ");
  return {MakeType(c.ElementType(0), c.Extents(0))};
}

}  // namespace

OpDefinition CacheWrite() {
  return {.summary = "rows of a cache of keys or values",
          .einsum = WriteEinsum,
          .infer = WriteInfer,
          .kernel = {.rows = Rows::kTogether, .work = EachOperandOnce, .key = kNoAttributes}};
}

}  // namespace espalier
