// One data file, whatever its format, as a sequence of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/open_files.hpp"
#include "espalier/data/token_source.hpp"

namespace espalier {

/// The part of a sample that a file fills: tokens [begin, begin + count) of the sample.
struct SamplePart {
  Sample& sample;
  int64_t begin = 0;
  int64_t count = 0;

  std::span<int32_t> Tokens() const {
    return std::span(sample.tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  }
  /// A document begins at token `index` of the part.
  void BeginDocument(int64_t index) const { sample.documents.push_back(begin + index); }
};

/// Keeps no file open: readers of one source share its open files.
class FileReader {
 public:
  virtual ~FileReader() = default;
  virtual int64_t tokens() const = 0;
  /// The file, and its companion files.
  virtual std::vector<std::string> Paths() const = 0;
  /// Whether the file begins and ends documents.
  virtual bool IsOfDocuments() const { return false; }
  /// Whether a zero follows if the file is not the last one.
  virtual bool EndsWithZero() const { return false; }
  /// Fills `part` with the tokens from `first` on; also documents that begin at one of them, in rising order (the one
  /// of the first token may be left out), and the tokens that do not count. Throws UserError (kData) with file and
  /// place.
  virtual void Read(OpenFiles& open, int64_t first, const SamplePart& part) = 0;
};

/// Throws UserError (kData): "path: message".
[[noreturn]] void RefuseData(const std::string& path, const std::string& what);

/// Refuses a vocabulary larger than model.vocab; `place` is its place in the file, such as " (byte 16)".
void CheckVocabulary(const std::string& path, int64_t vocab, const std::string& place, const DataSettings& settings);

// The formats. Each function opens a file and throws UserError (kData) that describes damage.

std::unique_ptr<FileReader> OpenText(const std::string& path, OpenFiles& open, const DataSettings& settings);
std::unique_ptr<FileReader> OpenTokens(const std::string& path, OpenFiles& open, const DataSettings& settings);
std::unique_ptr<FileReader> OpenLlmc(const std::string& path, OpenFiles& open, const DataSettings& settings);
std::unique_ptr<FileReader> OpenLlmq(const std::string& path, OpenFiles& open, const DataSettings& settings);
std::unique_ptr<FileReader> OpenFlat16(const std::string& path, OpenFiles& open, const DataSettings& settings);
std::unique_ptr<FileReader> OpenFlat32(const std::string& path, OpenFiles& open, const DataSettings& settings);
/// `path` is the .bin.
std::unique_ptr<FileReader> OpenMegatron(const std::string& path, OpenFiles& open, const DataSettings& settings);
/// A JSON object per line.
std::unique_ptr<FileReader> OpenJsonl(const std::string& path, OpenFiles& open, const DataSettings& settings);
/// Text for settings.tokenizer.
std::unique_ptr<FileReader> OpenTokenizedText(const std::string& path, OpenFiles& open, const DataSettings& settings);
std::unique_ptr<FileReader> OpenHdf5(const std::string& path, OpenFiles& open, const DataSettings& settings);

/// The format of a file: the one in the settings; for kAuto, found by its first bytes, else by its name. Checks that
/// text fits the vocabulary.
DataFormat FormatOf(const std::string& path, OpenFiles& open, const DataSettings& settings);
/// Whether files of a format do not state their number of tokens.
bool IsCounted(DataFormat format, const DataSettings& settings);
/// Opens a file in its format.
std::unique_ptr<FileReader> OpenReader(const std::string& path, OpenFiles& open, const DataSettings& settings);

/// The files that `paths` name (ExpandPaths), each once. With megatron and auto, a .idx and the common prefix of .bin
/// and .idx name the .bin.
std::vector<std::string> DataPaths(DataFormat format, const std::vector<std::string>& paths,
                                   const BeforeFile& before_file);

}  // namespace espalier
