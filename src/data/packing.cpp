#include "data/packing.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {

std::span<const int64_t> PackedDocuments::Of(int64_t sample) const {
  const auto begin = static_cast<size_t>(begins[static_cast<size_t>(sample)]);
  const auto end = static_cast<size_t>(begins[static_cast<size_t>(sample) + 1]);
  return std::span(documents).subspan(begin, end - begin);
}

PackedDocuments PackDocuments(std::span<const int64_t> lengths, int64_t capacity) {
  PackedDocuments packed;
  std::vector<int64_t> waiting;
  int64_t next = 0;
  const auto count = static_cast<int64_t>(lengths.size());
  while (next < count || !waiting.empty()) {
    for (; next < count && waiting.size() < kPackingAhead; ++next) waiting.push_back(next);
    packed.begins.push_back(std::ssize(packed.documents));
    int64_t room = capacity;
    std::erase_if(waiting, [&](int64_t document) {
      const int64_t length = lengths[static_cast<size_t>(document)];
      CHECK(0 < length && length <= capacity, "document {} has {} tokens, a sample {}", document, length, capacity);
      if (length > room) return false;
      room -= length;
      packed.documents.push_back(document);
      return true;
    });
  }
  packed.begins.push_back(std::ssize(packed.documents));
  return packed;
}

}  // namespace espalier
