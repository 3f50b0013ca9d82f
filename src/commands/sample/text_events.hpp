// The event file of `sample --tensorboard`.
#pragma once

#include <string>
#include <vector>

#include "commands/commands.hpp"

namespace espalier {

/// Makes and returns the folder for the texts of a checkpoint: the one from the command line, or tensorboard/samples of
/// the checkpoint's run. Throws UserError (kDeck) if that fails, or if the checkpoint is in no run.
std::string FolderOfTexts(const SampleOptions& options, const std::string& checkpoint);

/// Writes the texts, one per prompt, at the step of the checkpoint. Throws UserError (kFault) if that fails.
void WriteTexts(const std::string& folder, const SampleOptions& options, const std::string& checkpoint,
                const std::vector<std::string>& texts);

}  // namespace espalier
