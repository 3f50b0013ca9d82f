// Structs as bytes, for World::Gather and World::Broadcast between ranks of one job. All ranks run the same build, so
// the bytes have no version.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/util/error.hpp"

namespace espalier {

/// A struct can be packed if it has `auto Fields() { return std::tie(member, ...); }`.
template <typename T>
concept HasFields = requires(T& value) {
  value.Fields();
};

namespace pack_detail {

template <typename T>
void Append(std::string& bytes, const T& value);

template <typename T>
void AppendPlain(std::string& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
inline void AppendOne(std::string& bytes, const std::string& text) {
  AppendPlain(bytes, text.size());
  bytes += text;
}
template <typename A, typename B>
void AppendOne(std::string& bytes, const std::pair<A, B>& pair) {
  Append(bytes, pair.first);
  Append(bytes, pair.second);
}
template <typename T>
void AppendOne(std::string& bytes, const std::vector<T>& values) {
  AppendPlain(bytes, values.size());
  for (const T& value : values) Append(bytes, value);
}
template <typename T>
void AppendOne(std::string& bytes, const T& value) {
  if constexpr (HasFields<T>)
    std::apply([&](const auto&... fields) { (Append(bytes, fields), ...); }, const_cast<T&>(value).Fields());
  else
    AppendPlain(bytes, value);
}
template <typename T>
void Append(std::string& bytes, const T& value) {
  AppendOne(bytes, value);
}

/// Reads values from the front of `rest`, and CHECKs that they are there.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  void Read(T& value) {
    if constexpr (HasFields<T>)
      std::apply([&](auto&... fields) { (Read(fields), ...); }, value.Fields());
    else
      std::memcpy(&value, Take(sizeof value).data(), sizeof value);
  }
  void Read(std::string& text) { text = Take(ReadSize()); }
  template <typename A, typename B>
  void Read(std::pair<A, B>& pair) {
    Read(pair.first);
    Read(pair.second);
  }
  template <typename T>
  void Read(std::vector<T>& values) {
    for (size_t left = ReadSize(); left > 0; --left) Read(values.emplace_back());
  }

  bool AtEnd() const { return rest_.empty(); }

 private:
  size_t ReadSize() {
    size_t size = 0;
    Read(size);
    return size;
  }
  std::string_view Take(size_t bytes) {
    CHECK(bytes <= rest_.size(), "packed bytes end too early");
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
};

}  // namespace pack_detail

/// Numbers, enums, strings, pairs, vectors, and structs with Fields(), nested in any way.
template <typename T>
std::string Pack(const T& value) {
  std::string bytes;
  pack_detail::Append(bytes, value);
  return bytes;
}

/// The value that Pack made the bytes from; CHECKs that they are complete.
template <typename T>
T Unpack(std::string_view bytes) {
  T value{};
  pack_detail::Reader reader(bytes);
  reader.Read(value);
  CHECK(reader.AtEnd(), "packed bytes have an unknown end");
  return value;
}

}  // namespace espalier
