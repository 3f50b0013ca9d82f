// The weights of a Hugging Face folder: model.safetensors, or several files that model.safetensors.index.json lists.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "espalier/huggingface/expert_tensors.hpp"
#include "espalier/huggingface/safetensors.hpp"

namespace espalier {

/// Says that a layer for further tokens has another embedding or head than the model.
inline std::string OtherCopy(const std::string& name) {
  return name + ": other elements than those of the model, which all layers share";
}

class FolderOfWeights {
 public:
  /// Opens all files. UserError (kData) if there are none, or if the index does not fit them.
  explicit FolderOfWeights(std::string dir);

  const std::string& dir() const { return dir_; }
  /// Finds the weights of a model, and checks names and shapes: throws UserError (kData) with all tensors that are
  /// missing, unknown or of another shape; for the experts of a layer, the first of them. Returns the names of tensors
  /// that no model needs (buffers, the head of a model whose head is tied).
  /// `further_layers`: as many layers after those of the model are not needed either (ModelConfig).
  std::vector<std::string> RequireFit(const std::vector<SafetensorsWriter::Tensor>& wanted, int64_t further_layers = 0);
  /// How many of the `most` layers after the first `layers` the files have: those that predict further tokens.
  int64_t FurtherLayers(int64_t layers, int64_t most) const;
  /// Layers for further tokens share the embedding and the head. Released files repeat these in such layers, under
  /// names of their own: those whose elements are others than the shared ones. Reads both.
  std::vector<std::string> DifferingCopies() const;
  /// Elements [first, first + count) as fp32 of a weight that RequireFit has found. Not for several threads at once:
  /// of a matrix whose elements do not follow one another all are kept until another one is read.
  void Read(const std::string& name, int64_t first, int64_t count, float* out) const;
  /// Some weights that RequireFit has found are in blocks of MXFP4.
  bool HasMxfp4() const;
  /// Names of the element types of all weights, each once.
  std::vector<std::string> Dtypes() const;

 private:
  struct Place {
    const SafetensorsFile* file;
    const SafeTensor* tensor;
  };
  /// `count` elements of a tensor, from `first` on, at `places`.
  struct Piece {
    const Place* place;
    int64_t first, count;
    MatrixPlaces places;
    const Place* scales;  ///< of blocks of MXFP4; else nullptr
  };
  void Add(const std::string& name);
  void CheckIndex(const std::map<std::string, std::string>& index) const;
  /// Names of weights in a model without its head lack the model's prefix.
  const Place* Find(const std::string& name) const;
  /// The parts of a weight, in the first way in which the files have any of them; none if there is no such way.
  std::vector<FilePart> WayOf(const SafetensorsWriter::Tensor& weight,
                              const std::map<std::string, Shape>& shape_of) const;
  void Locate(const SafetensorsWriter::Tensor& weight, const std::map<std::string, Shape>& shape_of,
              std::vector<std::string>& messages);
  /// Elements [first, first + count) of the tensor of a piece.
  static void ReadTensor(const Piece& piece, int64_t first, int64_t count, float* out);
  /// All elements of the tensor from the piece's first to its last.
  const std::vector<float>& SpanOf(const Piece& piece) const;

  std::string dir_;
  ExpertLayout layout_ = ExpertLayout::kUsual;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place> places_;               ///< by name in the files
  std::map<std::string, std::vector<Piece>> pieces_;  ///< by name of the weight; they follow one another in it
  mutable const Piece* spanned_ = nullptr;            ///< whose span is at hand
  mutable std::vector<float> span_;
};

}  // namespace espalier
