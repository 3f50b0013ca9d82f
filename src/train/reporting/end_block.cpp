#include "train/reporting/end_block.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/deck/epochs.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// A word of a shell's command line.
std::string Quoted(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string Latest(const Deck& deck) {
  try {
    return FindLatest(CheckpointFolder(deck)).value_or("");
  } catch (const UserError&) {
    return "";  // the launcher's command cannot be determined
  }
}

std::string ResultsText(const Run& run) {
  const std::string latest = run.device.Computes() ? Latest(run.deck()) : "";
  return run.deck().run.dir + "/metrics.jsonl" + (latest.empty() ? "" : ", " + latest);
}

std::string AllDone(int64_t steps) {
  return steps == 1 ? "the one step is done" : fmt::format("all {} steps are done", steps);
}

std::string ContinueText(const Run& run, const Outcome& outcome) {
  const int64_t steps = run.deck().run.steps;
  if (!run.device.Computes())
    return outcome.stopped
               ? fmt::format(
                     "stopped after step {} of {}: a run that waits has no state, so that it begins at step 1 "
                     "when it is started again",
                     outcome.last_step, steps)
               : AllDone(steps) + "; nothing was trained";
  if (outcome.stopped)
    return fmt::format("stopped after step {} of {}: {} goes on", outcome.last_step, steps, SameCommand(run));
  return fmt::format("{}; for more: {} and {}", AllDone(steps), SameCommand(run), LongerRun(run.start.loaded, steps));
}

/// No finite step has followed the newest checkpoint, so its weights may be unusable although they are finite.
std::string CheckpointBefore(const Run& run, const std::vector<std::string>& line) {
  const bool named = !run.options.restart.empty();
  if (line.size() < 2)
    return fmt::format(
        "no finite step has followed {}, the only checkpoint: {} goes on from it; if that ends here again, its weights "
        "are ruined, and the same command with another run.dir{} begins anew",
        line.front(), SameCommand(run), named ? " and without -r" : "");
  const std::string& before = line[1];
  return fmt::format(
      "no finite step has followed {}, so its weights may be ruined: the same command with -r {}{}{} begins at the "
      "checkpoint before it",
      line.front(), Quoted(before), named ? " in place of its own -r" : "",
      HasBegunAt(run.deck(), before) ? " and another run.dir" : "");
}

/// Without a tokenizer, token ids cannot be written as text.
std::string SampleText(const Deck& deck) {
  const std::string command = "espalier sample " + Quoted(deck.run.dir);
  if (!deck.data.tokenizer.empty()) return command + " --prompt TEXT";
  return IsText(deck.data.format) ? command : command + " --ids \"1 2 3\"";
}

}  // namespace

std::string SameCommand(const Run& run) {
  const bool anew = run.deck().checkpoint.restart == Restart::kNever && run.options.restart.empty();
  return anew ? "the same command with -r latest" : "the same command";
}

std::string LastGoodCheckpoint(const Run& run, int64_t proven) {
  const std::vector<std::string> line = run.checkpoints.Line();
  if (line.empty()) return "there is no checkpoint to go on from";
  if (run.checkpoints.newest_step() > proven) return CheckpointBefore(run, line);
  return fmt::format("the last good checkpoint is {}: {} goes on from it", line.front(), SameCommand(run));
}

BlockLines EndBlock(const Run& run, const Outcome& outcome, ExitStatus status) {
  const Deck& deck = run.deck();
  BlockLines lines = {{"results", ResultsText(run), Worth::kResult}};
  if (status != ExitStatus::kDone && status != ExitStatus::kStopped) return lines;
  lines.push_back({"continue", ContinueText(run, outcome), Worth::kResult});
  if (run.device.Computes() && !Latest(deck).empty()) {
    lines.push_back({"sample", SampleText(deck)});
    lines.push_back({"export", fmt::format("espalier export {} HF_DIR", Quoted(deck.run.dir))});
  }
  lines.push_back({"report", "espalier report " + Quoted(deck.run.dir)});
  return lines;
}

}  // namespace espalier
