// Starts measure on a kind of GPU with a version of a library, and keep the results in files for later starts.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace espalier {

/// $XDG_CACHE_HOME/espalier/KIND-GPU-LIBRARY.json, or below $HOME/.cache; "" without both variables.
std::string FileOfMeasurements(std::string_view kind, std::string_view gpu, std::string_view library);

/// Runs `read` if the file is there. A file that cannot be used is a warning in the name of `setting`, if that is set.
void ReadMeasurements(const std::string& path, std::string_view setting, const std::function<void()>& read);

/// Writes the file. If it cannot be written, or has no place, a warning in the name of `setting` says so.
void WriteMeasurements(const std::string& path, std::string_view setting, const std::string& text);

}  // namespace espalier
