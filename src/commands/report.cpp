// espalier report: one page about one or several runs.
#include <fmt/core.h>

#include <filesystem>

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/report/gather.hpp"
#include "espalier/costs/cluster.hpp"
#include "espalier/report/text.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// Makes the folder for pictures if it is not there. Throws UserError (kDeck).
void MakeFolder(const std::string& folder) {
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (!folder.empty() && !fs::is_directory(folder))
    throw UserError(ExitStatus::kDeck, fmt::format("command line: --svg {}: is no folder, and cannot be made one{}",
                                                   folder, error ? ": " + error.message() : ""));
}

std::string File(const std::string& folder, const NamedDrawing& picture) {
  return (fs::path(folder) / (picture.name + ".svg")).string();
}

}  // namespace

int ReportCommand(const ReportCommandOptions& options) {
  const std::string output =
      options.output.empty() ? (fs::path(options.runs.front()) / "report.html").string() : options.output;
  if (!options.cluster.empty()) LoadCluster(options.cluster);
  std::vector<RunOnPage> runs;
  for (const std::string& folder : options.runs) runs.push_back(Gather(folder, options.cluster));
  CheckWritable("--output", output);
  MakeFolder(options.svg);
  const Page page = MakePage(runs);
  WriteOutput(output, page.html);
  fmt::print("{}: {}\n", output, HumanBytes(std::ssize(page.html)));
  if (options.svg.empty()) return static_cast<int>(ExitStatus::kDone);
  for (const NamedDrawing& picture : page.drawings) {
    CheckWritable("--svg", File(options.svg, picture));
    WriteOutput(File(options.svg, picture), SvgFile(picture.drawing));
  }
  fmt::print("{}: {} pictures\n", options.svg, page.drawings.size());
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
