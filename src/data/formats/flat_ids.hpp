// Consecutive token ids in a file, little-endian: the content of most formats after their header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/formats/file_reader.hpp"

namespace espalier {

enum class IdType : uint8_t { kU8, kI8, kU16, kI16, kU32, kI32, kI64 };

/// Bytes of an id.
int64_t Width(IdType type);

struct FlatIds {
  std::string path;
  IdType type = IdType::kU16;
  int64_t offset = 0;  ///< bytes before the first id
  int64_t count = 0;
  int64_t limit = 0;  ///< ids are in [0, limit)
};

/// Checks raw ids and narrows them. `first` is the index of the first one in the file, for the error.
void CheckIds(const FlatIds& ids, int64_t first, std::span<const int64_t> raw, std::span<int32_t> out);

/// Ids [first, first + out.size()). Throws UserError (kData) on an id out of range.
void ReadIds(const FlatIds& ids, OpenFiles& open, int64_t first, std::span<int32_t> out);

/// Number of ids in the file after `offset`; refuses an incomplete id.
int64_t CountIds(const InputFile& file, int64_t offset, IdType type);

/// A file of flat ids without a header.
class FlatReader : public FileReader {
 public:
  explicit FlatReader(FlatIds ids) : ids_(std::move(ids)) {}
  int64_t tokens() const override { return ids_.count; }
  std::vector<std::string> Paths() const override { return {ids_.path}; }
  void Read(OpenFiles& open, int64_t first, const SamplePart& part) override {
    ReadIds(ids_, open, first, part.Tokens());
  }

 protected:
  const FlatIds& ids() const { return ids_; }

 private:
  FlatIds ids_;
};

}  // namespace espalier
