// How files of Hugging Face hold the experts of a layer: we have one tensor of all, [experts, out, in]; files have a
// tensor for each expert, or one in which gate and up follow one another.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/huggingface/safetensors.hpp"

namespace espalier {

/// Elements [first, first + count) of a tensor in a file.
struct FilePart {
  SafetensorsWriter::Tensor tensor;
  int64_t first, count;
};

/// The ways in which files may hold a weight of the model; each lists parts whose elements follow one another in the
/// weight. A weight that belongs to no expert has one way: its name and shape.
std::vector<std::vector<FilePart>> WaysOf(const SafetensorsWriter::Tensor& weight);

/// The tensors that an export of this architecture writes for a weight, in the order of its elements.
std::vector<SafetensorsWriter::Tensor> ExportedTensors(const SafetensorsWriter::Tensor& weight,
                                                       std::string_view architecture);

/// "model.layers.0.mlp.experts.*.up_proj.weight" for the tensor of one expert: equal for all experts of a layer. Other
/// names stay.
std::string WithoutExpertNumber(const std::string& name);

}  // namespace espalier
