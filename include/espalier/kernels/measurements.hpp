// Measurements that hold on one kind of GPU with one version of a library. `espalier calibrate` or starts make them,
// and files keep them.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

struct Platform {
  std::string gpu;      ///< "NVIDIA H200"
  std::string library;  ///< "cuBLASLt 13.1.0"

  bool operator==(const Platform&) const = default;
};

/// How the file of one kind of measurements differs from others.
struct MeasurementsFormat {
  const char* name;         ///< key of the format's version
  const char* entries;      ///< key of the measurements
  std::string_view what;    ///< for messages: "file of GEMM plans"
  std::string_view remedy;  ///< ends every message
};

/// An Entry has kFormat, the function IsOf for what was measured, and to_json and from_json (measurements_text.hpp).
template <typename Entry>
struct Measurements {
  Platform platform;
  std::vector<Entry> entries;

  /// nullptr if it was not measured.
  const Entry* Find(const auto& sought) const {
    const auto it = std::ranges::find_if(entries, [&](const Entry& entry) { return entry.IsOf(sought); });
    return it == entries.end() ? nullptr : &*it;
  }

  /// JSON. The reader skips keys that it does not know, so the file may hold other measurements too.
  std::string Text() const;
  /// Throws UserError (kData) that names `source` and the error in it.
  static Measurements Parse(std::string_view text, const std::string& source);
  static Measurements Read(const std::string& path);
  /// Throws UserError (kData) with both values if the file was made on another GPU or with another library.
  void CheckMadeOn(const Platform& here, const std::string& source) const;
};

}  // namespace espalier
