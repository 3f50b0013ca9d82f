// The format of a file, and the files that paths name.
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include "data/formats/file_reader.hpp"
#include "data/formats/magic.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

using Open = std::unique_ptr<FileReader> (*)(const std::string&, OpenFiles&, const DataSettings&);

std::unique_ptr<FileReader> OpenAnyText(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  return settings.tokenizer == nullptr ? OpenText(path, open, settings) : OpenTokenizedText(path, open, settings);
}

struct Format {
  DataFormat format;
  Open open;
  std::string_view magic;                 ///< first bytes of every file; empty: none
  std::vector<std::string_view> endings;  ///< endings of names, for files without a magic
};

const std::vector<Format>& Formats() {
  static const std::vector<Format> formats = {
      {DataFormat::kTokens, OpenTokens, kTokensMagic.substr(0, 6), {}},
      {DataFormat::kLlmq, OpenLlmq, kLlmqMagic, {}},
      {DataFormat::kHdf5, OpenHdf5, kHdf5Magic, {}},
      {DataFormat::kLlmc, OpenLlmc, {}, {}},
      {DataFormat::kMegatron, OpenMegatron, {}, {}},
      {DataFormat::kFlat16, OpenFlat16, {}, {".u16", ".uint16"}},
      {DataFormat::kFlat32, OpenFlat32, {}, {".u32", ".uint32"}},
      {DataFormat::kJsonl, OpenJsonl, {}, {".jsonl", ".ndjson"}},
      {DataFormat::kText, OpenAnyText, {}, {".txt", ".text", ".md"}},
  };
  return formats;
}

std::string WithEnding(const std::string& path, std::string_view ending) {
  return path.substr(0, path.size() - 4) + std::string(ending);
}

bool HasIndex(const std::string& path, OpenFiles& open) {
  if (!path.ends_with(".bin") || !fs::is_regular_file(WithEnding(path, ".idx"))) return false;
  const InputFile& index = open.Get(WithEnding(path, ".idx"));
  std::array<char, kMegatronMagic.size()> first{};
  if (index.bytes() < std::ssize(first)) return false;
  index.ReadAt(0, first.data(), std::ssize(first));
  return std::string_view(first.data(), first.size()) == kMegatronMagic;
}

using FirstBytes = std::array<char, 8>;
FirstBytes FirstBytesOf(const std::string& path, OpenFiles& open) {
  const InputFile& file = open.Get(path);
  FirstBytes first{};
  file.ReadAt(0, first.data(), std::min(file.bytes(), std::ssize(first)));
  return first;
}

/// The format whose files all begin with these bytes.
std::optional<DataFormat> FormatOfMagic(const FirstBytes& first) {
  const std::string_view begin(first.data(), first.size());
  for (const Format& format : Formats())
    if (!format.magic.empty() && begin.starts_with(format.magic)) return format.format;
  return std::nullopt;
}

/// The format of a file, for kAuto: by its first bytes, then by its index, then by its name.
DataFormat GuessFormat(const std::string& path, OpenFiles& open) {
  const FirstBytes first = FirstBytesOf(path, open);
  if (const auto format = FormatOfMagic(first)) return *format;
  int32_t number;
  std::memcpy(&number, first.data(), sizeof number);
  if (number == kLlmcGpt2 || number == kLlmcLlama3) return DataFormat::kLlmc;
  if (HasIndex(path, open)) return DataFormat::kMegatron;
  std::string endings;
  for (const Format& format : Formats())
    for (const std::string_view ending : format.endings) {
      if (path.ends_with(ending)) return format.format;
      endings += fmt::format("{}{} = {}", endings.empty() ? "" : ", ", ending, DeckName(format.format));
    }
  RefuseData(path, fmt::format("neither its first bytes nor its name say what it holds: set data.format, or rename it "
                               "({})",
                               endings));
}

bool IsPattern(const std::string& path) { return path.find_first_of("*?[") != std::string::npos; }

}  // namespace

void RefuseData(const std::string& path, const std::string& what) {
  throw UserError(ExitStatus::kData, fmt::format("{}: {}", path, what));
}

void CheckVocabulary(const std::string& path, int64_t vocab, const std::string& place, const DataSettings& settings) {
  if (vocab <= settings.vocab) return;
  RefuseData(path, fmt::format("its vocabulary is {}{}, larger than model.vocab = {}: raise model.vocab, or write the "
                               "file with the vocabulary of its ids",
                               vocab, place, settings.vocab));
}

DataFormat FormatOf(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  const bool guessed = settings.format == DataFormat::kAuto;
  const DataFormat format = guessed ? GuessFormat(path, open) : settings.format;
  if (settings.tokenizer == nullptr && IsText(format) && settings.vocab < 256)
    RefuseData(path, fmt::format("text needs model.vocab >= 256 (a token is a byte); it is {}", settings.vocab));
  if (!guessed && IsText(format))
    if (const auto other = FormatOfMagic(FirstBytesOf(path, open)))
      RefuseData(path, fmt::format("begins like a file of data.format = \"{}\", not \"{}\": set data.format=auto",
                                   DeckName(*other), DeckName(format)));
  if (settings.tokenizer != nullptr && IsText(format))
    CheckVocabulary("data.tokenizer", settings.tokenizer->vocab(), "", settings);
  return format;
}

bool IsCounted(DataFormat format, const DataSettings& settings) {
  return format == DataFormat::kJsonl || format == DataFormat::kChat ||
         (format == DataFormat::kText && settings.tokenizer != nullptr);
}

std::unique_ptr<FileReader> OpenReader(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  const DataFormat format = FormatOf(path, open, settings);
  const auto found = std::ranges::find(Formats(), format, &Format::format);
  CHECK(found != Formats().end(), "no reader for data.format = {}", DeckName(format));
  return found->open(path, open, settings);
}

std::vector<std::string> DataPaths(DataFormat format, const std::vector<std::string>& paths,
                                   const BeforeFile& before_file) {
  if (format != DataFormat::kMegatron && format != DataFormat::kAuto) return ExpandPaths(paths, before_file);
  std::vector<std::string> named = paths;
  for (std::string& path : named)
    if (!IsPattern(path) && !fs::exists(path) && fs::is_regular_file(path + ".bin")) path += ".bin";
  std::vector<std::string> files = ExpandPaths(named, before_file);
  for (std::string& path : files)
    if (path.ends_with(".idx") && fs::is_regular_file(WithEnding(path, ".bin"))) path = WithEnding(path, ".bin");
  std::ranges::sort(files);
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

}  // namespace espalier
