#include "train/startup/measurements.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "espalier/util/write_whole.hpp"

namespace espalier {

namespace fs = std::filesystem;

std::string FileOfMeasurements(std::string_view kind, const Platform& platform) {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  fs::path folder;
  if (cache != nullptr && *cache != '\0')
    folder = cache;
  else if (home != nullptr && *home != '\0')
    folder = fs::path(home) / ".cache";
  else
    return "";
  std::string name = fmt::format("{}-{}-{}", kind, platform.gpu, platform.library);
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '.'; }, '-');
  return (folder / "espalier" / (name + ".json")).string();
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
