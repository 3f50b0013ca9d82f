// A model is a message of protobuf (sentencepiece_model.proto): field 3 is its normalizer, field 5 its denormalizer,
// and field 2 of either is a table: the size of a trie in bytes as u32, the trie, and texts that each end with a zero.
// The trie is a double array of u32 units (darts-clone): a unit with bit 31 is a value, the offset of a text; from any
// other unit at p a byte c leads to unit (p ^ offset) ^ c.
#include "text/charsmap.hpp"

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr uint64_t kNormalizer = 3, kDenormalizer = 5, kTable = 2;

[[noreturn]] void RefuseMap(const std::string& name, const std::string& what) {
  throw UserError(ExitStatus::kData,
                  fmt::format("{}: is neither a tokenizer.json nor a whole SentencePiece model: {}", name, what));
}

/// Walks over the fields of a message.
class Message {
 public:
  Message(const std::string& name, std::string_view bytes) : name_(name), rest_(bytes) {}

  /// The contents of all fields `number` that have bytes.
  std::vector<std::string_view> Find(uint64_t number) {
    std::vector<std::string_view> found;
    while (!rest_.empty()) {
      const uint64_t tag = Varint();
      if (const auto bytes = Contents(tag & 7); bytes && tag >> 3 == number) found.push_back(*bytes);
    }
    return found;
  }

 private:
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(Take(1)[0]);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    RefuseMap(name_, "a number of more than ten bytes");
  }

  std::string_view Take(uint64_t bytes) {
    if (bytes > rest_.size()) RefuseMap(name_, fmt::format("{} bytes are missing at its end", bytes - rest_.size()));
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  /// The content of a field of this wire type, if it is bytes.
  std::optional<std::string_view> Contents(uint64_t type) {
    if (type == 2) return Take(Varint());
    if (type == 0) {
      Varint();
    } else if (type == 1 || type == 5) {
      Take(type == 1 ? 8 : 4);
    } else {
      RefuseMap(name_, fmt::format("a field of wire type {}", type));
    }
    return std::nullopt;
  }

  const std::string& name_;
  std::string_view rest_;
};

uint32_t UnitAt(std::string_view bytes, size_t unit) {
  uint32_t value;
  std::memcpy(&value, bytes.data() + 4 * unit, sizeof value);
  return value;
}

void CheckTable(const std::string& name, std::string_view table) {
  if (table.empty()) return;
  const uint64_t bytes = table.size() < 4 ? 0 : UnitAt(table, 0);
  if (bytes == 0 || bytes % 4 != 0 || bytes >= table.size() - 4 || table.back() != '\0')
    RefuseMap(name, "its table of characters has a wrong size");
  const std::string_view trie = table.substr(4, bytes);
  const uint64_t units = bytes / 4, texts = table.size() - 4 - bytes;
  for (uint64_t at = 0; at < units; ++at) {
    const uint32_t unit = UnitAt(trie, at), offset = (unit >> 10) << ((unit & (1u << 9)) >> 6);
    const bool inside = unit >> 31 != 0 ? (unit & 0x7fffffffu) < texts : ((at ^ offset) | 0xff) < units;
    if (!inside) RefuseMap(name, fmt::format("unit {} of its table of characters leads out of it", at));
  }
}

}  // namespace

void CheckCharsmaps(const std::string& name, std::string_view model) {
  for (const uint64_t number : {kNormalizer, kDenormalizer})
    for (const std::string_view normalizer : Message(name, model).Find(number))
      for (const std::string_view table : Message(name, normalizer).Find(kTable)) CheckTable(name, table);
}

}  // namespace espalier
