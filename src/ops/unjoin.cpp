#include "espalier/ops/unjoin.hpp"

#include "espalier/graph/columns.hpp"

namespace espalier {
namespace {

/// Replaces the first shape, which is a joined value's, by the shapes of its parts.
void SplitInput(const Attributes& attributes, std::vector<Shape>& shapes, std::vector<Dtype>& dtypes) {
  const std::vector<int64_t> widths = LocalColumns(attributes, shapes.at(0).back());
  shapes.insert(shapes.begin(), widths.size() - 1, shapes[0]);
  dtypes.insert(dtypes.begin(), widths.size() - 1, dtypes.at(0));
  for (size_t i = 0; i < widths.size(); ++i) shapes[i].back() = widths[i];
}

/// Replaces neighbours by one tensor with the rows of all of them.
void Merge(const Neighbours::Operands& some, std::vector<Shape>& shapes, std::vector<Dtype>& dtypes) {
  if (some.count == 0) return;
  const auto first = static_cast<ptrdiff_t>(some.first), end = first + static_cast<ptrdiff_t>(some.count);
  for (ptrdiff_t i = first + 1; i < end; ++i) shapes[some.first][0] += shapes[static_cast<size_t>(i)][0];
  shapes.erase(shapes.begin() + first + 1, shapes.begin() + end);
  dtypes.erase(dtypes.begin() + first + 1, dtypes.begin() + end);
}

}  // namespace

void Unjoin(LocalOp& local) {
  const OpDefinition& definition = Define(local.op.kind);
  if (!local.op.attributes.texts.contains(kColumns)) return;
  if (definition.joinable.inputs > 0) SplitInput(local.op.attributes, local.inputs, local.input_dtypes);
  if (definition.joinable.outputs > 0) SplitInput(local.op.attributes, local.outputs, local.output_dtypes);
  if (definition.neighbours != nullptr) {
    const Neighbours neighbours = definition.neighbours(local.op);
    Merge(neighbours.inputs, local.inputs, local.input_dtypes);
    Merge(neighbours.outputs, local.outputs, local.output_dtypes);
  }
  local.op.attributes.texts.erase(std::string(kColumns));
}

}  // namespace espalier
