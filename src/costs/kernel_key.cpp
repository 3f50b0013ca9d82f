// Keys of kernels. The sizes of a kernel are the extents of its einsum dims; neighbouring dims that all of its tensors
// have together are one, since kernels walk over their product: "bsk,nk->bsn" has m = b s, k and n.
#include "kernel_key.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "espalier/ops/matmul_spec.hpp"

namespace espalier {
namespace {

constexpr std::string_view kAccumulate = "accumulate";

bool Moves(OpKind kind) {
  return kind == OpKind::kSlice || kind == OpKind::kPad || kind == OpKind::kTakeRows || kind == OpKind::kPutRows;
}

/// The dims of one tensor of an op, or of all its tensors if it is not a multi-tensor op.
Einsum DimsOf(const Op& op, const std::vector<Shape>& inputs) {
  const OpDefinition& definition = Define(op.kind);
  const size_t one = definition.per_tensor.shared + definition.per_tensor.inputs;
  OpContext context{op, {}};
  for (size_t i = 0; i < (one > 0 ? one : inputs.size()); ++i)
    context.inputs.push_back(MakeType(Dtype::kF32, inputs.at(i)));
  return definition.einsum(context);
}

std::vector<std::string> AllDims(const Einsum& einsum) {
  std::vector<std::string> dims = einsum.inputs;
  dims.insert(dims.end(), einsum.outputs.begin(), einsum.outputs.end());
  return dims;
}

bool Has(const std::string& dims, const std::string& group) { return dims.find(group) != dims.npos; }

/// Every tensor that has one of the groups has both, one after the other.
bool AreOne(const std::vector<std::string>& tensors, const std::string& a, const std::string& b) {
  return std::ranges::all_of(
      tensors, [&](const std::string& dims) { return (!Has(dims, a) && !Has(dims, b)) || Has(dims, a + b); });
}

/// The dims in the order in which they first occur; those that are one are in one group. Attention treats each dim by
/// itself.
std::vector<std::string> GroupsOf(const Op& op, const Einsum& einsum) {
  const std::vector<std::string> tensors = AllDims(einsum);
  std::vector<std::string> groups;
  for (const std::string& dims : tensors)
    for (char dim : dims)
      if (std::ranges::find(groups, std::string(1, dim)) == groups.end()) groups.emplace_back(1, dim);
  const bool apart = op.kind == OpKind::kAttention || op.kind == OpKind::kAttentionGrad;
  for (size_t i = 0; i + 1 < groups.size();) {
    if (apart || !AreOne(tensors, groups[i], groups[i + 1])) {
      ++i;
      continue;
    }
    groups[i] += groups[i + 1];
    groups.erase(groups.begin() + static_cast<ptrdiff_t>(i) + 1);
    i = 0;
  }
  return groups;
}

/// The extent of a dim in the tensor that has most of it: heads with their features, not their number.
int64_t ExtentOf(char dim, const Einsum& einsum, const LocalOp& op) {
  const auto find = [&](const std::vector<std::string>& dims, const std::vector<Shape>& shapes) {
    int64_t extent = -1;
    for (size_t i = 0; i < dims.size() && i < shapes.size(); ++i)
      if (const size_t at = dims[i].find(dim); at != dims[i].npos) extent = std::max(extent, shapes[i].at(at));
    return extent;
  };
  return std::max(find(einsum.inputs, op.inputs), find(einsum.outputs, op.outputs));
}

std::vector<int64_t> SizesOf(const LocalOp& op, const Einsum& einsum) {
  if (Moves(op.op.kind)) return {Volume(op.inputs.at(0)), Volume(op.outputs.at(0))};
  if (const OpDefinition::PerTensor per = Define(op.op.kind).per_tensor; per.inputs > 0) {
    int64_t elements = 0, tensors = 0;
    for (size_t i = per.shared; i < op.inputs.size(); i += per.inputs, ++tensors) elements += Volume(op.inputs[i]);
    return {tensors, elements};
  }
  std::vector<int64_t> sizes;
  for (const std::string& group : GroupsOf(op.op, einsum)) {
    int64_t size = 1;
    for (char dim : group) size *= ExtentOf(dim, einsum, op);
    sizes.push_back(size);
  }
  if (sizes.empty()) sizes.push_back(std::ssize(op.inputs));  // scalars only
  return sizes;
}

/// "f32,f32->f32": of one tensor of a multi-tensor op; of scalars only once.
std::string DtypesOf(const LocalOp& op, const Einsum& einsum) {
  const bool scalars =
      !Moves(op.op.kind) && Define(op.op.kind).per_tensor.inputs == 0 && GroupsOf(op.op, einsum).empty();
  const auto names = [&](size_t count, const std::vector<Dtype>& dtypes) {
    std::vector<std::string_view> list;
    for (size_t i = 0; i < (scalars ? 1 : count); ++i) list.push_back(Name(i < dtypes.size() ? dtypes[i] : op.dtype));
    return fmt::format("{}", fmt::join(list, ","));
  };
  return names(einsum.inputs.size(), op.input_dtypes) + "->" + names(einsum.outputs.size(), op.output_dtypes);
}

/// Features of a head of attention_merge: the ratio of its dims. 0: no heads.
int64_t HeadDimOfMerge(const LocalOp& op) {
  const int64_t heads = op.inputs.at(1).at(1);
  return heads > 0 ? op.inputs.at(0).at(2) / heads : 0;
}

constexpr int64_t kWhole = 100;  // `load` of a full pool of rows

/// A number as the key has it; none where it makes no difference.
std::optional<int64_t> NumberOf(const LocalOp& op, std::string_view name) {
  const Attributes& attributes = op.op.attributes;
  const bool merged = op.op.kind == OpKind::kAttentionMerge;
  const int64_t number = merged ? HeadDimOfMerge(op) : attributes.IntegerOr(name, -1);
  // All blocks of a ring but a rank's own have equal work, unless a window hides some.
  if (name == "hop" && number >= 0)
    return attributes.IntegerOr("window", 0) > 0 ? number : std::min<int64_t>(number, 1);
  // Passes without rows are equal.
  if (name == "pass" && number > 0)
    return std::min(number, (attributes.IntegerOr("load", kWhole) + kWhole - 1) / kWhole);
  return number > 0 ? std::optional(number) : std::nullopt;
}

std::string VariantOf(const LocalOp& op, bool accumulate, const Einsum& einsum) {
  std::string text = DtypesOf(op, einsum);
  const KeyAttributes& key = Define(op.op.kind).kernel.key;
  for (std::string_view name : key.texts)
    if (const auto found = op.op.attributes.texts.find(name); found != op.op.attributes.texts.end())
      text += fmt::format(" {}={}", name, found->second);
  for (std::string_view name : key.numbers)
    if (const auto number = NumberOf(op, name)) text += fmt::format(" {}={}", name, *number);
  return accumulate ? fmt::format("{} {}", text, kAccumulate) : text;
}

std::optional<std::vector<Dtype>> ParseDtypes(const std::string& text) {
  std::vector<Dtype> dtypes;
  std::istringstream stream(text);
  for (std::string name; std::getline(stream, name, ',');) {
    const auto is = [&](Dtype dtype) { return name == Name(dtype); };
    const auto found = std::ranges::find_if(kDtypes, is);
    if (found == kDtypes.end()) return std::nullopt;
    dtypes.push_back(*found);
  }
  return dtypes;
}

bool IsOneOf(const std::vector<std::string_view>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// One word of a variant after the element types; false if it has no meaning.
bool ReadWord(const std::string& word, RebuiltOp& rebuilt) {
  if (word == kAccumulate) return rebuilt.accumulate = true;
  const size_t equals = word.find('=');
  if (equals == word.npos) return false;
  const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
  const KeyAttributes& key = Define(rebuilt.op.kind).kernel.key;
  if (IsOneOf(key.texts, name)) return rebuilt.op.attributes.texts[name] = value, true;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (!IsOneOf(key.numbers, name) || error != std::errc{} || *end != '\0' || number < 0) return false;
  rebuilt.op.attributes.numbers[name] = static_cast<double>(number);
  return true;
}

/// Element types and attributes of a variant.
bool ReadVariant(const std::string& variant, RebuiltOp& rebuilt) {
  std::istringstream words(variant);
  std::string word;
  words >> word;
  const size_t arrow = word.find("->");
  if (arrow == word.npos) return false;
  const auto inputs = ParseDtypes(word.substr(0, arrow)), outputs = ParseDtypes(word.substr(arrow + 2));
  if (!inputs || !outputs || inputs->empty()) return false;
  rebuilt.input_dtypes = *inputs;
  rebuilt.output_dtypes = *outputs;
  while (words >> word)
    if (!ReadWord(word, rebuilt)) return false;
  return true;
}

/// A text attribute; "" if there is none.
std::string_view TextOf(const RebuiltOp& rebuilt, std::string_view name) {
  const auto found = rebuilt.op.attributes.texts.find(name);
  return found == rebuilt.op.attributes.texts.end() ? "" : std::string_view(found->second);
}

/// Operands in fp8 have scales, no others do.
bool HasScales(const RebuiltOp& rebuilt) {
  const auto fp8 = std::ranges::count_if(rebuilt.input_dtypes, IsFp8);
  return fp8 == 0 ? TextOf(rebuilt, "scales").empty()
                  : fp8 == 2 && IsFp8(rebuilt.input_dtypes[0]) &&
                        IsOneOf({"tensor", "row", "mx"}, TextOf(rebuilt, "scales"));
}

/// The spec of a matmul or a quantize op is one that kernels have.
bool HasSpec(const RebuiltOp& rebuilt) {
  if (rebuilt.op.kind == OpKind::kMatmul) return IsMatmulSpec(TextOf(rebuilt, "spec")) && HasScales(rebuilt);
  if (rebuilt.op.kind == OpKind::kGroupedMatmul) return IsGroupedSpec(TextOf(rebuilt, "spec")) && HasScales(rebuilt);
  if (rebuilt.op.kind != OpKind::kQuantize) return true;
  return IsQuantizeSpec(TextOf(rebuilt, "spec")) && rebuilt.output_dtypes.size() == 2 &&
         TextOf(rebuilt, "to") == Name(rebuilt.output_dtypes[0]);
}

/// Tensors whose heads have no features, inputs and then outputs: the log of the softmax denominators ("bhs"), and the
/// sums of squares of heads.
bool HasBareHeads(OpKind kind, size_t tensor, const std::string& dims) {
  switch (kind) {
    case OpKind::kAttentionSink:
    case OpKind::kAttentionSinkGrad:
      return dims != "bsh";
    case OpKind::kRowSquares:
      return tensor == 1;
    case OpKind::kRowSquaresGrad:
      return tensor == 0;
    case OpKind::kRowNorm:
    case OpKind::kRowNormGrad:
    case OpKind::kRowNormWeightGrad:
      return tensor == 2;
    case OpKind::kRowNormSquaresGrad:
      return tensor >= 3;
    default:
      return dims == "bhs";
  }
}

/// Features of a head in each tensor, inputs and then outputs. A key has the extent of the widest.
std::vector<int64_t> WidthsOfHeads(const Op& op, const Einsum& einsum, int64_t rope) {
  const int64_t e = std::max<int64_t>(1, op.attributes.IntegerOr("head_dim", 1)),
                d = op.attributes.IntegerOr("value_dim", e), nope = op.attributes.IntegerOr("nope_dim", 0);
  if (op.kind == OpKind::kLatentKeys) return {nope + d, 1, nope + rope, d};
  if (op.kind == OpKind::kLatentKeysGrad) return {nope + rope, d, nope + d, 1};
  if (op.kind == OpKind::kLatentAttention) return {nope + rope, nope + d, 1, 1, 1, d, 1};
  std::vector<int64_t> widths;
  for (const std::string& dims : AllDims(einsum)) widths.push_back(HasBareHeads(op.kind, widths.size(), dims) ? 1 : e);
  const size_t outputs = einsum.inputs.size();
  if (d != e && op.kind == OpKind::kAttention) widths.at(2) = widths.at(outputs) = d;
  if (d != e && op.kind == OpKind::kAttentionGrad)
    widths.at(2) = widths.at(3) = widths.at(5) = widths.at(outputs + 2) = d;
  return widths;
}

void SetShapes(const KernelKey& key, const Einsum& einsum, RebuiltOp& rebuilt) {
  std::map<char, int64_t> extents;
  const std::vector<std::string> groups = GroupsOf(rebuilt.op, einsum);
  for (size_t i = 0; i < groups.size(); ++i)
    for (char dim : groups[i]) extents[dim] = dim == groups[i].back() ? key.sizes[i] : 1;
  const std::vector<int64_t> widths = WidthsOfHeads(rebuilt.op, einsum, extents.contains('e') ? extents['e'] : 0);
  const int64_t widest = std::max<int64_t>(1, std::ranges::max(widths));
  const auto shape_of = [&](const std::string& dims, int64_t width) {
    Shape shape;
    for (char dim : dims) {
      const bool narrower = (dim == 'h' || dim == 'H') && width != widest;
      shape.push_back(narrower ? extents.at(dim) / widest * width : extents.at(dim));
    }
    return shape;
  };
  for (const std::string& dims : einsum.inputs)
    rebuilt.inputs.push_back(shape_of(dims, widths.at(rebuilt.inputs.size())));
  for (const std::string& dims : einsum.outputs)
    rebuilt.outputs.push_back(shape_of(dims, widths.at(einsum.inputs.size() + rebuilt.outputs.size())));
  // Zigzag order is over the whole sequence: the keys or, in a ring, the keys of all ranks.
  if (const auto cp = rebuilt.op.attributes.numbers.find("cp"); cp != rebuilt.op.attributes.numbers.end()) {
    const auto keys = static_cast<double>(rebuilt.inputs.at(1).at(1));
    rebuilt.op.attributes.numbers["length"] = rebuilt.op.attributes.numbers.contains("hop") ? keys * cp->second : keys;
  }
}

/// `tensors` of a multi-tensor op, the elements in the first; the others are empty.
void SetTensors(const KernelKey& key, RebuiltOp& rebuilt) {
  const OpDefinition::PerTensor per = PerTensorOf(rebuilt.op);
  std::vector<Dtype> inputs = rebuilt.input_dtypes, outputs = rebuilt.output_dtypes;
  rebuilt.inputs.assign(per.shared, {});
  rebuilt.input_dtypes.resize(per.shared);
  rebuilt.output_dtypes.clear();
  for (int64_t tensor = 0; tensor < key.sizes[0]; ++tensor) {
    const Shape shape = {tensor == 0 ? key.sizes[1] : 0};
    rebuilt.inputs.insert(rebuilt.inputs.end(), per.inputs, shape);
    rebuilt.outputs.insert(rebuilt.outputs.end(), per.outputs, shape);
    rebuilt.input_dtypes.insert(rebuilt.input_dtypes.end(), inputs.begin() + static_cast<ptrdiff_t>(per.shared),
                                inputs.end());
    rebuilt.output_dtypes.insert(rebuilt.output_dtypes.end(), outputs.begin(), outputs.end());
  }
}

/// Fills the shapes; false if the numbers of types or sizes do not fit the op.
bool Fill(const KernelKey& key, RebuiltOp& rebuilt) {
  constexpr int64_t kMaxTensors = 1 << 20;
  const OpDefinition::PerTensor per = PerTensorOf(rebuilt.op);
  if (per.inputs > 0) {
    if (rebuilt.input_dtypes.size() != per.shared + per.inputs || rebuilt.output_dtypes.size() != per.outputs ||
        key.sizes.size() != 2 || key.sizes[0] > kMaxTensors)
      return false;
    return SetTensors(key, rebuilt), true;
  }
  if (Moves(key.kind)) {
    if (key.sizes.size() != 2 || rebuilt.input_dtypes.size() != 1 || rebuilt.output_dtypes.size() != 1) return false;
    rebuilt.inputs = {{key.sizes[0]}};
    rebuilt.outputs = {{key.sizes[1]}};
    return true;
  }
  const Einsum einsum = DimsOf(rebuilt.op, std::vector<Shape>(rebuilt.input_dtypes.size(), Shape{1}));
  if (GroupsOf(rebuilt.op, einsum).empty()) {
    if (key.sizes.size() != 1 || key.sizes[0] < 1 || key.sizes[0] > kMaxTensors) return false;
    rebuilt.inputs.assign(static_cast<size_t>(key.sizes[0]), {});
    rebuilt.input_dtypes.resize(static_cast<size_t>(key.sizes[0]), rebuilt.input_dtypes[0]);
    rebuilt.outputs.assign(einsum.outputs.size(), {});
    rebuilt.output_dtypes.resize(einsum.outputs.size(), rebuilt.output_dtypes.at(0));
    return true;
  }
  if (einsum.inputs.size() != rebuilt.input_dtypes.size() || einsum.outputs.size() != rebuilt.output_dtypes.size() ||
      key.sizes.size() != GroupsOf(rebuilt.op, einsum).size())
    return false;
  return SetShapes(key, einsum, rebuilt), true;
}

}  // namespace

KernelKey KeyOf(const LocalOp& op, bool accumulate) {
  const Einsum einsum = DimsOf(op.op, op.inputs);
  return {op.op.kind, VariantOf(op, accumulate, einsum), SizesOf(op, einsum)};
}

std::optional<RebuiltOp> Rebuild(const KernelKey& key) {
  if (key.kind == OpKind::kNone || IsCommunication(key.kind) || IsHostCopy(key.kind) || key.kind == OpKind::kReshard)
    return std::nullopt;
  if (std::ranges::any_of(key.sizes, [](int64_t size) { return size < 0; })) return std::nullopt;
  RebuiltOp rebuilt;
  rebuilt.op.kind = key.kind;
  if (!ReadVariant(key.variant, rebuilt) || !HasSpec(rebuilt) || !Fill(key, rebuilt)) return std::nullopt;
  if (KeyOf(rebuilt.Local(), rebuilt.accumulate) != key) return std::nullopt;
  return rebuilt;
}

}  // namespace espalier
