#include "commands/sample/text_events.hpp"

#include <fmt/core.h>

#include <chrono>
#include <filesystem>
#include <sstream>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/report/text_events.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// Formats a text as a code block, so that TensorBoard shows it unchanged.
std::string AsCode(const std::string& text) {
  std::string code;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) code += "    " + line + "\n";
  return code;
}

/// The settings with which the texts were drawn: equal settings give equal texts.
std::string Settings(const SampleOptions& options, const std::string& checkpoint) {
  return fmt::format("`{}`, temperature {:g}, top-k {}, top-p {:g}, seed {}", checkpoint, options.temperature,
                     options.top_k, options.top_p, options.seed);
}

}  // namespace

// A folder of its own: TensorBoard reads the files of a folder in the order of their names, one after the other, so it
// would never leave the event file of a run that is still being written.
std::string FolderOfTexts(const SampleOptions& options, const std::string& checkpoint) {
  std::string folder = options.tensorboard.value_or("");
  if (folder.empty()) {
    const fs::path checkpoints = fs::absolute(checkpoint).lexically_normal().parent_path();
    if (checkpoints.filename() != "checkpoints")
      throw UserError(ExitStatus::kDeck,
                      fmt::format("command line: --tensorboard: {} is in no run: name a folder", checkpoint));
    folder = checkpoints.parent_path() / "tensorboard" / "samples";
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw UserError(ExitStatus::kDeck, fmt::format("command line: --tensorboard {}: {}", folder, error.message()));
  return folder;
}

void WriteTexts(const std::string& folder, const SampleOptions& options, const std::string& checkpoint,
                const std::vector<std::string>& texts) {
  std::vector<TextEvent> events;
  for (const std::string& text : texts)
    events.push_back({fmt::format("sample {}", events.size() + 1),
                      fmt::format("{}\n\n{}", Settings(options, checkpoint), AsCode(text))});
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  WriteTextEvents(folder, ReadMetadata(checkpoint).step, now.count(), events);
}

}  // namespace espalier
