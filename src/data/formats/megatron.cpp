// Megatron-LM's data sets: flat ids in PREFIX.bin, and PREFIX.idx with the lengths and places of its sequences, each of
// which is a document. Source: megatron/core/datasets/indexed_dataset.py of github.com/NVIDIA/Megatron-LM.
//
//   byte        0  "MMIDIDX", 0, 0        34         i32[S] tokens of each sequence
//               9  u64 version 1          34 +  4 S  i64[S] first byte of each sequence in .bin
//              17  u8  type of an id      34 + 12 S  i64[D] documents, not used here
//              18  u64 S sequences
//              26  u64 D documents + 1
//
// The sequences of a sample are found in the index by bisection, so nothing of it stays in memory.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "data/formats/flat_ids.hpp"
#include "data/formats/magic.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int64_t kMegatronHeaderBytes = 34;

std::string IndexOf(const std::string& bin) { return bin.substr(0, bin.size() - 4) + ".idx"; }

template <typename T>
T ReadOne(const InputFile& file, int64_t offset) {
  T value;
  file.ReadAt(offset, &value, sizeof value);
  return value;
}

IdType TypeOf(const InputFile& index) {
  const auto code = ReadOne<uint8_t>(index, 17);
  switch (code) {
    case 1:
      return IdType::kU8;
    case 2:
      return IdType::kI8;
    case 3:
      return IdType::kI16;
    case 4:
      return IdType::kI32;
    case 5:
      return IdType::kI64;
    case 8:
      return IdType::kU16;
    case 6:
    case 7:
      RefuseData(index.path(), fmt::format("its type {} is float{}, which holds no ids", code, code == 6 ? 64 : 32));
    default:
      RefuseData(index.path(), fmt::format("type {} of ids; known: 1 to 5 and 8", code));
  }
}

/// The number of sequences. Checks the header and the size of the index.
int64_t CountSequences(const InputFile& index) {
  if (index.bytes() < kMegatronHeaderBytes)
    RefuseData(index.path(), fmt::format("{} bytes are too few for the header of Megatron's index ({})", index.bytes(),
                                         kMegatronHeaderBytes));
  std::array<char, kMegatronMagic.size()> magic{};
  index.ReadAt(0, magic.data(), std::ssize(magic));
  if (std::string_view(magic.data(), magic.size()) != kMegatronMagic)
    RefuseData(index.path(), "is not an index of Megatron (its first bytes are not \"MMIDIDX\")");
  if (const auto version = ReadOne<uint64_t>(index, 9); version != 1)
    RefuseData(index.path(), fmt::format("version {} of Megatron's index; known: 1", version));
  const auto sequences = ReadOne<uint64_t>(index, 18), documents = ReadOne<uint64_t>(index, 26);
  const auto room = static_cast<uint64_t>(index.bytes() - kMegatronHeaderBytes);
  if (sequences > room / 12 || documents > (room - 12 * sequences) / 8)
    RefuseData(index.path(),
               fmt::format("has {} bytes, too few for the {} sequences and {} document ends of its header",
                           index.bytes(), sequences, documents));
  return static_cast<int64_t>(sequences);
}

class MegatronReader final : public FlatReader {
 public:
  MegatronReader(FlatIds ids, std::string index, int64_t sequences)
      : FlatReader(std::move(ids)), index_(std::move(index)), sequences_(sequences) {}

  std::vector<std::string> Paths() const override { return {ids().path, index_}; }
  bool IsOfDocuments() const override { return true; }

  void Read(OpenFiles& open, int64_t first, const SamplePart& part) override {
    FlatReader::Read(open, first, part);
    const InputFile& index = open.Get(index_);
    for (int64_t k = Holding(index, first), at = BeginOf(index, k); at < first + part.count; ++k) {
      if (at >= first) part.BeginDocument(at - first);
      at += LengthOf(index, k);
      if (k + 1 < sequences_ ? BeginOf(index, k + 1) != at : at != tokens()) RefuseGap(k, at);
      if (k + 1 == sequences_) break;
    }
  }

  /// The first sequence begins at 0 and the last one ends with the file.
  void CheckEnds(OpenFiles& open) const {
    const InputFile& index = open.Get(index_);
    if (sequences_ == 0 && tokens() == 0) return;
    if (sequences_ == 0 || BeginOf(index, 0) != 0) RefuseGap(-1, 0);
    const int64_t end = BeginOf(index, sequences_ - 1) + LengthOf(index, sequences_ - 1);
    if (end != tokens())
      RefuseData(ids().path,
                 fmt::format("has {} tokens; its index says {} (a file that is not whole?)", tokens(), end));
  }

 private:
  /// The first token of a sequence.
  int64_t BeginOf(const InputFile& index, int64_t k) const {
    const auto byte = ReadOne<int64_t>(index, kMegatronHeaderBytes + 4 * sequences_ + 8 * k);
    if (byte < 0 || byte % Width(ids().type) != 0)
      RefuseData(index_,
                 fmt::format("sequence {} begins at byte {}, which is no multiple of {}", k, byte, Width(ids().type)));
    return byte / Width(ids().type);
  }

  int64_t LengthOf(const InputFile& index, int64_t k) const {
    const auto length = ReadOne<int32_t>(index, kMegatronHeaderBytes + 4 * k);
    if (length < 0) RefuseData(index_, fmt::format("sequence {} has {} tokens", k, length));
    return length;
  }

  /// The last sequence that begins at or before `token`.
  int64_t Holding(const InputFile& index, int64_t token) const {
    int64_t low = 0, high = sequences_;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (BeginOf(index, middle) <= token ? low : high) = middle;
    }
    return low;
  }

  [[noreturn]] void RefuseGap(int64_t k, int64_t at) const {
    RefuseData(index_, fmt::format("sequence {} does not begin at token {}, where the one before ends: the sequences "
                                   "of the .bin must follow one another without gaps",
                                   k + 1, at));
  }

  std::string index_;
  int64_t sequences_;
};

}  // namespace

std::unique_ptr<FileReader> OpenMegatron(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  if (!path.ends_with(".bin"))
    RefuseData(path, "names no Megatron data: allowed are PREFIX.bin, PREFIX.idx and PREFIX");
  const std::string index = IndexOf(path);
  const int64_t sequences = CountSequences(open.Get(index));
  const IdType type = TypeOf(open.Get(index));
  const int64_t tokens = CountIds(open.Get(path), 0, type);
  auto reader = std::make_unique<MegatronReader>(FlatIds{path, type, 0, tokens, settings.vocab}, index, sequences);
  reader->CheckEnds(open);
  return reader;
}

}  // namespace espalier
