#include "data/formats/flat_ids.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

template <typename T>
void Widen(const std::vector<char>& bytes, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T id;
    std::memcpy(&id, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int64_t>(id);
  }
}

void Widen(IdType type, const std::vector<char>& bytes, std::span<int64_t> out) {
  switch (type) {
    case IdType::kU8:
      return Widen<uint8_t>(bytes, out);
    case IdType::kI8:
      return Widen<int8_t>(bytes, out);
    case IdType::kU16:
      return Widen<uint16_t>(bytes, out);
    case IdType::kI16:
      return Widen<int16_t>(bytes, out);
    case IdType::kU32:
      return Widen<uint32_t>(bytes, out);
    case IdType::kI32:
      return Widen<int32_t>(bytes, out);
    case IdType::kI64:
      return Widen<int64_t>(bytes, out);
  }
}

std::unique_ptr<FileReader> OpenFlat(const std::string& path, OpenFiles& open, const DataSettings& settings,
                                     IdType type) {
  return std::make_unique<FlatReader>(FlatIds{path, type, 0, CountIds(open.Get(path), 0, type), settings.vocab});
}

/// Bytes.
class TextReader final : public FlatReader {
 public:
  using FlatReader::FlatReader;
  bool IsOfDocuments() const override { return true; }
  bool EndsWithZero() const override { return true; }
};

}  // namespace

int64_t Width(IdType type) {
  constexpr std::array<int64_t, 7> kWidths = {1, 1, 2, 2, 4, 4, 8};
  return kWidths.at(static_cast<size_t>(type));
}

void CheckIds(const FlatIds& ids, int64_t first, std::span<const int64_t> raw, std::span<int32_t> out) {
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] >= 0 && raw[i] < ids.limit) {
      out[i] = static_cast<int32_t>(raw[i]);
      continue;
    }
    const int64_t index = first + static_cast<int64_t>(i);
    const std::string place = ids.offset < 0 ? "" : fmt::format(" (byte {})", ids.offset + index * Width(ids.type));
    RefuseData(ids.path, fmt::format("token {}{} is {}; allowed: 0 to {}", index, place, raw[i], ids.limit - 1));
  }
}

void ReadIds(const FlatIds& ids, OpenFiles& open, int64_t first, std::span<int32_t> out) {
  std::vector<char> bytes(out.size() * static_cast<size_t>(Width(ids.type)));
  open.Get(ids.path).ReadAt(ids.offset + first * Width(ids.type), bytes.data(), std::ssize(bytes));
  std::vector<int64_t> raw(out.size());
  Widen(ids.type, bytes, raw);
  CheckIds(ids, first, raw, out);
}

int64_t CountIds(const InputFile& file, int64_t offset, IdType type) {
  const int64_t bytes = file.bytes() - offset;
  if (bytes % Width(type) != 0)
    RefuseData(file.path(), fmt::format("has {} bytes of ids, which is no multiple of {}", bytes, Width(type)));
  return bytes / Width(type);
}

std::unique_ptr<FileReader> OpenText(const std::string& path, OpenFiles& open, const DataSettings&) {
  return std::make_unique<TextReader>(FlatIds{path, IdType::kU8, 0, open.Get(path).bytes(), 256});
}

std::unique_ptr<FileReader> OpenFlat16(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  return OpenFlat(path, open, settings, IdType::kU16);
}

std::unique_ptr<FileReader> OpenFlat32(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  return OpenFlat(path, open, settings, IdType::kU32);
}

}  // namespace espalier
