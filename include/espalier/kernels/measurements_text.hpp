// The text of measurements. A source that defines to_json and from_json of an Entry instantiates Measurements<Entry>.
#pragma once

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "espalier/kernels/measurements.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {
namespace measurements_detail {

inline constexpr int kVersion = 1;
inline constexpr int64_t kMaxBytes = int64_t{16} << 20;

[[noreturn]] inline void Refuse(const MeasurementsFormat& format, const std::string& source, const std::string& what) {
  throw UserError(ExitStatus::kData, fmt::format("{}: {}; {}", source, what, format.remedy));
}

}  // namespace measurements_detail

template <typename Entry>
std::string Measurements<Entry>::Text() const {
  const nlohmann::ordered_json json = {{Entry::kFormat.name, measurements_detail::kVersion},
                                       {"gpu", platform.gpu},
                                       {"library", platform.library},
                                       {Entry::kFormat.entries, entries}};
  return json.dump(1) + "\n";
}

template <typename Entry>
Measurements<Entry> Measurements<Entry>::Parse(std::string_view text, const std::string& source) {
  using measurements_detail::kVersion, measurements_detail::Refuse;
  const MeasurementsFormat& format = Entry::kFormat;
  try {
    const auto json = nlohmann::ordered_json::parse(text);
    if (const int version = json.at(format.name); version != kVersion)
      Refuse(format, source, fmt::format("format {} is not {}", version, kVersion));
    return {{json.at("gpu"), json.at("library")}, json.at(format.entries)};
  } catch (const nlohmann::json::exception& error) {
    Refuse(format, source, fmt::format("not a {} ({})", format.what, error.what()));
  } catch (const std::invalid_argument& error) {
    Refuse(format, source, error.what());
  }
}

template <typename Entry>
Measurements<Entry> Measurements<Entry>::Read(const std::string& path) {
  return Parse(ReadFile(path, {Entry::kFormat.what, measurements_detail::kMaxBytes, Entry::kFormat.remedy}), path);
}

template <typename Entry>
void Measurements<Entry>::CheckMadeOn(const Platform& here, const std::string& source) const {
  using measurements_detail::Refuse;
  const auto& [gpu, library] = platform;
  if (gpu != here.gpu) Refuse(Entry::kFormat, source, fmt::format("made on {}, this is {}", gpu, here.gpu));
  if (library != here.library)
    Refuse(Entry::kFormat, source, fmt::format("made with {}, this is {}", library, here.library));
}

}  // namespace espalier
