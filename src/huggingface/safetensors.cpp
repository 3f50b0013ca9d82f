#include "espalier/huggingface/safetensors.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "espalier/util/error.hpp"
#include "espalier/util/json.hpp"

namespace espalier {
namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr size_t kMaxDims = 8;
constexpr int64_t kChunk = 1 << 16;  // elements
constexpr std::string_view kMetadata = "__metadata__";

struct SizeOfName {
  std::string_view name;
  int64_t bits;
};
/// All element types of the format.
constexpr SizeOfName kSizes[] = {{"F64", 64},        {"F32", 32},       {"F16", 16},    {"BF16", 16},   {"I64", 64},
                                 {"I32", 32},        {"I16", 16},       {"I8", 8},      {"U64", 64},    {"U32", 32},
                                 {"U16", 16},        {"U8", 8},         {"BOOL", 8},    {"F8_E5M2", 8}, {"C64", 64},
                                 {"F4", 4},          {"F6_E2M3", 6},    {"F6_E3M2", 6}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
                                 {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};

std::optional<SafeDtype> FindDtype(std::string_view name) {
  for (SafeDtype dtype : {SafeDtype::kF64, SafeDtype::kF32, SafeDtype::kF16, SafeDtype::kBf16})
    if (Name(dtype) == name) return dtype;
  return std::nullopt;
}

/// Bytes of a tensor; nothing if they are no whole number, or too many to count.
std::optional<int64_t> BytesOf(int64_t bits, const Shape& shape) {
  int64_t product = bits;
  for (int64_t extent : shape)
    if (__builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  return product % 8 == 0 ? std::optional(product / 8) : std::nullopt;
}

/// Exact: fp32 has every fp16.
float FromF16(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(h & 1023), -24)
                          : exponent == 31 ? std::bit_cast<float>(0x7f800000u | static_cast<uint32_t>(h & 1023) << 13)
                                           : std::ldexp(static_cast<float>((h & 1023) | 1024), exponent - 25);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | static_cast<uint32_t>(h & 0x8000) << 16);
}

/// Elements of type T, converted one by one.
template <typename T, typename Convert>
void ConvertAll(const char* from, int64_t count, float* to, Convert convert) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * int64_t{sizeof(T)}, sizeof(T));
    to[i] = convert(value);
  }
}

void ToFloats(SafeDtype dtype, const char* from, int64_t count, float* to) {
  switch (dtype) {
    case SafeDtype::kF64:
      return ConvertAll<double>(from, count, to, [](double x) { return static_cast<float>(x); });
    case SafeDtype::kF32:
      return ConvertAll<float>(from, count, to, [](float x) { return x; });
    case SafeDtype::kF16:
      return ConvertAll<uint16_t>(from, count, to, FromF16);
    case SafeDtype::kBf16:
      return ConvertAll<uint16_t>(from, count, to, [](uint16_t x) { return ToFloat(Bf16{x}); });
  }
}

int64_t NonNegative(const json& value, const char* what) {
  if (!value.is_number_integer() || value < 0 || value > json(INT64_MAX))
    throw std::invalid_argument(fmt::format("{} must be whole numbers from 0 to 2^63 - 1", what));
  return value.get<int64_t>();
}

/// Throws std::invalid_argument.
SafeTensor ParseTensor(const std::string& name, const json& entry) {
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets"))
    throw std::invalid_argument("an object of dtype, shape and data_offsets is expected");
  SafeTensor tensor{.name = name, .dtype = {}, .shape = {}};
  const auto size = std::ranges::find_if(kSizes, [&](const SizeOfName& s) { return entry["dtype"] == s.name; });
  if (size == std::end(kSizes)) throw std::invalid_argument("dtype is no type of the format");
  tensor.dtype = size->name;
  if (!entry["shape"].is_array() || entry["shape"].size() > kMaxDims)
    throw std::invalid_argument(fmt::format("shape must be a list of at most {} extents", kMaxDims));
  for (const json& extent : entry["shape"]) tensor.shape.push_back(NonNegative(extent, "extents"));
  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) throw std::invalid_argument("data_offsets must be [begin, end]");
  tensor.begin = NonNegative(offsets[0], "data_offsets");
  const int64_t end = NonNegative(offsets[1], "data_offsets");
  const std::optional<int64_t> bytes = BytesOf(size->bits, tensor.shape);
  if (end < tensor.begin || bytes != end - tensor.begin)
    throw std::invalid_argument(fmt::format("data_offsets [{}, {}] do not hold a {}{}", tensor.begin, end, tensor.dtype,
                                            ToString(tensor.shape)));
  tensor.bytes = *bytes;
  return tensor;
}

}  // namespace

std::string_view Name(SafeDtype dtype) {
  constexpr std::string_view kNames[] = {"F64", "F32", "F16", "BF16"};
  return kNames[static_cast<size_t>(dtype)];
}

int64_t SizeOf(SafeDtype dtype) {
  constexpr int64_t kBytes[] = {8, 4, 2, 2};
  return kBytes[static_cast<size_t>(dtype)];
}

SafetensorsFile::SafetensorsFile(std::string path) : file_(std::move(path)) { ReadHeader(); }

void SafetensorsFile::Refuse(const std::string& what) const {
  throw UserError(ExitStatus::kData, fmt::format("{}: {}", path(), what));
}

void SafetensorsFile::ReadHeader() {
  const int64_t bytes = file_.bytes();
  if (bytes < kLengthBytes) Refuse(fmt::format("has {} bytes: no safetensors file", bytes));
  uint64_t length = 0;
  file_.ReadAt(0, &length, kLengthBytes);
  const int64_t most = std::min(kMaxHeaderBytes, bytes - kLengthBytes);
  if (length > static_cast<uint64_t>(most))
    Refuse(fmt::format("a header of {} bytes in a file of {} (allowed: up to {}): no safetensors file, or cut short",
                       length, bytes, most));
  std::string text(length, '\0');
  file_.ReadAt(kLengthBytes, text.data(), static_cast<int64_t>(length));
  std::string at = "header";
  try {
    const json header = ParseJson(text, {.unique_keys = true});
    if (!header.is_object()) throw std::invalid_argument("an object is expected");
    for (const auto& [name, entry] : header.items()) {
      at = fmt::format("header: {}", name);
      if (name != kMetadata) tensors_.push_back(ParseTensor(name, entry));
    }
  } catch (const json::exception& error) {
    Refuse(fmt::format("{}: {}", at, error.what()));
  } catch (const std::invalid_argument& error) {
    Refuse(fmt::format("{}: {}", at, error.what()));
  }
  std::ranges::stable_sort(tensors_, {}, [](const SafeTensor& t) { return std::pair(t.begin, t.bytes); });
  const int64_t data = kLengthBytes + static_cast<int64_t>(length);
  int64_t end = 0;
  for (SafeTensor& tensor : tensors_) {
    if (tensor.begin != end)
      Refuse(fmt::format("header: {} begins at byte {} of the data, the tensor before it ends at {}", tensor.name,
                         tensor.begin, end));
    if (tensor.bytes > bytes - data - end)
      Refuse(fmt::format("{} ends beyond the file's {} bytes: cut short", tensor.name, bytes));
    end += tensor.bytes;
    tensor.begin += data;
  }
  if (data + end != bytes) Refuse(fmt::format("has {} bytes, its header tells of {}", bytes, data + end));
}

const SafeTensor* SafetensorsFile::Find(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &SafeTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

void SafetensorsFile::Read(const SafeTensor& tensor, int64_t first, int64_t count, float* out) const {
  const SafeDtype dtype = ReadableDtype(*this, tensor);
  const int64_t size = SizeOf(dtype);
  CHECK(first >= 0 && count >= 0 && first + count <= tensor.bytes / size, "{}: elements {} to {} of {}", tensor.name,
        first, first + count, tensor.bytes / size);
  std::vector<char> buffer(static_cast<size_t>(std::min(kChunk, count) * size));
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t some = std::min(kChunk, count - done);
    file_.ReadAt(tensor.begin + (first + done) * size, buffer.data(), some * size);
    ToFloats(dtype, buffer.data(), some, out + done);
  }
}

void SafetensorsFile::ReadBytes(const SafeTensor& tensor, int64_t first, int64_t count, void* out) const {
  CHECK(first >= 0 && count >= 0 && first + count <= tensor.bytes, "{}: bytes {} to {} of {}", tensor.name, first,
        first + count, tensor.bytes);
  file_.ReadAt(tensor.begin + first, out, count);
}

SafeDtype ReadableDtype(const SafetensorsFile& file, const SafeTensor& tensor) {
  const std::optional<SafeDtype> dtype = FindDtype(tensor.dtype);
  if (!dtype)
    throw UserError(ExitStatus::kData, fmt::format("{}: {} has element type {} (allowed: F64, F32, F16, BF16)",
                                                   file.path(), tensor.name, tensor.dtype));
  return *dtype;
}

SafetensorsWriter::SafetensorsWriter(std::string path, SafeDtype dtype, const std::vector<Tensor>& tensors)
    : path_(std::move(path)), dtype_(dtype) {
  CHECK(dtype == SafeDtype::kF32 || dtype == SafeDtype::kBf16, "weights are not written as {}", Name(dtype));
  // As the safetensors library writes it; readers of other libraries ask for "format".
  nlohmann::ordered_json header = {{kMetadata, {{"format", "pt"}}}};
  int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t bytes = Volume(tensor.shape) * SizeOf(dtype);
    header[tensor.name] = {{"dtype", Name(dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
    left_ += Volume(tensor.shape);
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data are aligned
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file_ < 0) Fail("cannot write");
  const auto length = static_cast<uint64_t>(text.size());
  Write(&length, kLengthBytes);
  Write(text.data(), std::ssize(text));
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ >= 0) close(file_);
}

void SafetensorsWriter::Append(const float* values, int64_t count) {
  CHECK(count <= left_, "{}: {} elements more than its header has", path_, count - left_);
  left_ -= count;
  if (dtype_ == SafeDtype::kF32) return Write(values, count * 4);
  std::vector<Bf16> rounded(static_cast<size_t>(std::min(kChunk, count)));
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t some = std::min(kChunk, count - done);
    for (int64_t i = 0; i < some; ++i) rounded[static_cast<size_t>(i)] = ToBf16(values[done + i]);
    Write(rounded.data(), some * 2);
  }
}

void SafetensorsWriter::Close() {
  CHECK(left_ == 0, "{}: {} elements are missing", path_, left_);
  if (fsync(file_) != 0) Fail("cannot write");
  close(std::exchange(file_, -1));
}

void SafetensorsWriter::Write(const void* data, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t written = write(file_, static_cast<const char*>(data) + done, static_cast<size_t>(bytes - done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) Fail("cannot write");
    done += written;
  }
}

void SafetensorsWriter::Fail(const char* what) const {
  throw UserError(ExitStatus::kFault, fmt::format("{}: {}: {}", path_, what, std::strerror(errno)));
}

}  // namespace espalier
