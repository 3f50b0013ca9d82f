// Files of Hugging Face's safetensors format: 8 bytes with the length of a JSON header, the header with element type,
// shape and place of each tensor, then the tensors, little-endian and row-major, without gaps.
// https://github.com/huggingface/safetensors#format
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/util/input_file.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// Limit of the bytes of a header, and of an index of several files, as in the safetensors library.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

/// Element types that weights may have.
enum class SafeDtype : uint8_t { kF64, kF32, kF16, kBf16 };
/// "F64", "F32", "F16", "BF16".
std::string_view Name(SafeDtype dtype);
int64_t SizeOf(SafeDtype dtype);

struct SafeTensor {
  std::string name;
  std::string dtype;  ///< as in the header; weights of other types than SafeDtype can be listed, not read
  Shape shape;
  int64_t begin = 0;  ///< bytes from the start of the file
  int64_t bytes = 0;
};

/// An open file. Every error in it is a UserError (kData) with path and cause. Headers are not trusted: they are
/// checked against the length of the file, and no tensor is read outside of its place.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path);

  const std::string& path() const { return file_.path(); }
  /// In the order of their places.
  const std::vector<SafeTensor>& tensors() const { return tensors_; }
  /// nullptr if there is none.
  const SafeTensor* Find(std::string_view name) const;
  /// Elements [first, first + count) as fp32: F64 is rounded to nearest, the others are exact.
  void Read(const SafeTensor& tensor, int64_t first, int64_t count, float* out) const;
  /// Bytes [first, first + count) of a tensor of any type.
  void ReadBytes(const SafeTensor& tensor, int64_t first, int64_t count, void* out) const;

 private:
  void ReadHeader();
  [[noreturn]] void Refuse(const std::string& what) const;

  InputFile file_;
  std::vector<SafeTensor> tensors_;
};

/// The element type with this name; UserError (kData) that names `tensor` if weights cannot have it.
SafeDtype ReadableDtype(const SafetensorsFile& file, const SafeTensor& tensor);

/// Writes a file, tensor by tensor in the given order, so that no tensor needs to be in memory as a whole. Errors of
/// the disk are a UserError (kFault).
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    Shape shape;
  };

  /// Creates the file, which must not exist, with tensors of one element type: kF32 or kBf16.
  SafetensorsWriter(std::string path, SafeDtype dtype, const std::vector<Tensor>& tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The next elements, rounded to the element type.
  void Append(const float* values, int64_t count);
  /// After the last element: waits until everything is on disk.
  void Close();

 private:
  void Write(const void* data, int64_t bytes);
  [[noreturn]] void Fail(const char* what) const;

  std::string path_;
  SafeDtype dtype_;
  int file_ = -1;
  int64_t left_ = 0;  ///< elements to come
};

}  // namespace espalier
