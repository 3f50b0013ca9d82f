// How files of Hugging Face hold the experts of a layer: we have one tensor of all, [experts, out, in]; files have a
// tensor for each expert, or one in which gate and up follow one another.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/huggingface/safetensors.hpp"

namespace espalier {

/// The places of a matrix of the model in a file: element (i, j) is at i row + j column, from the first on. No columns:
/// the elements follow one another.
struct MatrixPlaces {
  int64_t columns = 0, row = 0, column = 0;

  /// The place of the element with this number in the matrix.
  int64_t Of(int64_t element) const {
    return columns == 0 ? element : element / columns * row + element % columns * column;
  }
};

/// `count` elements of a tensor in a file, from `first` on.
struct FilePart {
  SafetensorsWriter::Tensor tensor;
  int64_t first, count;
  MatrixPlaces places = {};
  std::string scales =
      {};  ///< the tensor has blocks of MXFP4 (mxfp4.hpp), and this one their scales; empty: it has not
};

/// Whether files hold experts as gpt-oss does: transposed, with gate and up in alternating columns.
enum class ExpertLayout : uint8_t { kUsual, kGptOss };

/// The ways in which files may hold a weight of the model; each lists parts whose elements follow one another in the
/// weight. A weight that belongs to no expert has one way: its name and shape.
std::vector<std::vector<FilePart>> WaysOf(const SafetensorsWriter::Tensor& weight, ExpertLayout layout);

/// The part of a tensor that holds a weight with others of its layer: Phi-3's qkv_proj has the rows of q_proj, k_proj
/// and v_proj, its gate_up_proj those of gate_proj and up_proj. None for other weights. `shape_of` has the shapes of
/// all weights of the model by name.
std::vector<FilePart> JoinedPart(const std::string& weight, const std::map<std::string, Shape>& shape_of);

/// The tensors that an export makes of some weights.
struct ExportUnit {
  std::vector<size_t> weights;                     ///< by their numbers
  std::vector<SafetensorsWriter::Tensor> tensors;  ///< that hold their elements
  /// By weight: the parts of the only tensor that hold its elements, each within an equal share of the tensor. Empty:
  /// the tensors have the elements of the only weight, in order.
  std::vector<std::vector<FilePart>> parts = {};
};

/// All weights of a model of this architecture, in the order in which an export writes them.
std::vector<ExportUnit> ExportUnits(const std::vector<SafetensorsWriter::Tensor>& weights,
                                    std::string_view architecture);

/// "model.layers.0.mlp.experts.*.up_proj.weight" for the tensor of one expert: equal for all experts of a layer. Other
/// names stay.
std::string WithoutExpertNumber(const std::string& name);

}  // namespace espalier
