#include "train/startup/measurements.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "espalier/util/error.hpp"
#include "espalier/util/write_whole.hpp"

namespace espalier {

namespace fs = std::filesystem;

std::string FileOfMeasurements(std::string_view kind, std::string_view gpu, std::string_view library) {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  fs::path folder;
  if (cache != nullptr && *cache != '\0')
    folder = cache;
  else if (home != nullptr && *home != '\0')
    folder = fs::path(home) / ".cache";
  else
    return "";
  std::string name = fmt::format("{}-{}-{}", kind, gpu, library);
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '.'; }, '-');
  return (folder / "espalier" / (name + ".json")).string();
}

void ReadMeasurements(const std::string& path, std::string_view setting, const std::function<void()>& read) {
  if (path.empty() || !fs::exists(path)) return;
  try {
    read();
  } catch (const UserError& error) {
    if (!setting.empty()) spdlog::warn("{}: {}; everything is measured", setting, error.what());
  }
}

void WriteMeasurements(const std::string& path, std::string_view setting, const std::string& text) {
  if (path.empty())
    return spdlog::warn("{}: neither XDG_CACHE_HOME nor HOME is set: no start remembers what this one measured",
                        setting);
  try {
    fs::create_directories(fs::path(path).parent_path());
    WriteWhole(path, text);
  } catch (const std::exception& error) {
    spdlog::warn("{}: no start remembers what this one measured: {}", setting, error.what());
  }
}

}  // namespace espalier
