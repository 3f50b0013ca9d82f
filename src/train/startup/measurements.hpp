// Starts measure on a kind of GPU with a version of a library, and keep the results in files for later starts.
#pragma once

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "espalier/kernels/measurements.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// $XDG_CACHE_HOME/espalier/KIND-GPU-LIBRARY.json, or below $HOME/.cache; "" without both variables.
std::string FileOfMeasurements(std::string_view kind, const Platform& platform);

/// The measurements of the file, if it is there. A file that cannot be used, or was made on another platform, is a
/// warning in the name of `setting`; without a name nothing is said.
template <typename Entry>
Measurements<Entry> ReadMeasurements(const std::string& path, const Platform& platform, std::string_view setting) {
  try {
    if (!path.empty() && std::filesystem::exists(path)) {
      auto read = Measurements<Entry>::Read(path);
      read.CheckMadeOn(platform, path);
      return read;
    }
  } catch (const UserError& error) {
    if (!setting.empty()) spdlog::warn("{}: {}; everything is measured", setting, error.what());
  }
  return {platform, {}};
}

/// Writes the file. If it cannot be written, or has no place, a warning in the name of `setting` says so.
void WriteMeasurements(const std::string& path, std::string_view setting, const std::string& text);

/// Adds to the file: another run may have written since. Equal entries are replaced.
template <typename Entry>
void AddMeasurements(const std::string& path, std::string_view setting, Measurements<Entry> measured) {
  for (Entry& known : ReadMeasurements<Entry>(path, measured.platform, "").entries)
    if (measured.Find(known) == nullptr) measured.entries.push_back(std::move(known));
  WriteMeasurements(path, setting, measured.Text());
}

}  // namespace espalier
