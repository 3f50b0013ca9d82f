// The files without an index, one after the other, are cut into cells of kBlockBytes. Ranks take equal numbers of
// cells, independent of file boundaries, so many small files and one huge one take the same time.
#include <algorithm>
#include <optional>

#include "data/file_errors.hpp"
#include "data/formats/document_blocks.hpp"
#include "data/formats/document_index.hpp"
#include "data/formats/file_reader.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/data/token_source.hpp"

namespace espalier {
namespace {

/// Cells that ranks count before rank 0 takes the counts: 128 GiB of data, 64 MiB of counts.
constexpr int64_t kMaxCells = int64_t{1} << 22;

DocumentCoder CoderOf(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  return DocumentCoder(settings, FormatOf(path, open, settings));
}

/// A file without an index.
struct Uncounted {
  std::string path;
  int64_t bytes = 0;

  int64_t Cells() const { return (bytes + kBlockBytes - 1) / kBlockBytes; }
  auto Fields() { return std::tie(path, bytes); }
};

/// The uncounted files among this rank's files.
std::vector<Uncounted> FindMine(const DataSettings& settings, const World& world, const BeforeFile& before_part) {
  const std::vector<std::string> paths = DataPaths(settings.format, settings.paths, before_part);
  OpenFiles open;
  FileErrors errors;
  std::vector<Uncounted> mine;
  for (auto i = static_cast<size_t>(world.Rank()); i < paths.size(); i += static_cast<size_t>(world.Size())) {
    if (before_part) before_part();
    errors.Collect([&] {
      if (!IsCounted(FormatOf(paths[i], open, settings), settings)) return;
      const IndexedFile file(paths[i], open, settings, CoderOf(paths[i], open, settings));
      if (!DocumentIndex::Exists(file)) mine.push_back({paths[i], file.bytes});
    });
  }
  errors.ThrowAny();
  return mine;
}

/// The uncounted files of all ranks, on every rank, in byte order of their paths.
std::vector<Uncounted> FindAll(const DataSettings& settings, World& world, const BeforeFile& before_part) {
  std::vector<Uncounted> mine;
  OnAllRanks(world, [&] { mine = FindMine(settings, world, before_part); });
  std::vector<Uncounted> all = OfAllRanks(world, mine);
  std::ranges::sort(all, {}, &Uncounted::path);
  return all;
}

/// Counted blocks of one file.
struct CountedPart {
  int64_t file = 0;  ///< number among all files without an index
  std::vector<CountedBlock> blocks;

  auto Fields() { return std::tie(file, blocks); }
};

/// Counts the blocks that begin in cells [begin, end) of all files.
std::vector<CountedPart> Count(const std::vector<Uncounted>& files, const DataSettings& settings, int64_t begin,
                               int64_t end, const BeforeFile& before_part) {
  OpenFiles open;
  FileErrors errors;
  std::vector<CountedPart> parts;
  int64_t cells = 0;  // number of cells before the file
  for (size_t k = 0; k < files.size(); cells += files[k++].Cells()) {
    const int64_t from = std::max(begin - cells, int64_t{0}), to = std::min(end - cells, files[k].Cells());
    if (from >= to) continue;
    errors.Collect([&] {
      const DocumentCoder coder = CoderOf(files[k].path, open, settings);
      parts.push_back({static_cast<int64_t>(k), CountBlocks(open.Get(files[k].path), coder, from * kBlockBytes,
                                                            std::min(to * kBlockBytes, files[k].bytes), before_part)});
    });
  }
  errors.ThrowAny();
  return parts;
}

/// Writes the indices, one after the other, as their blocks come.
class IndicesWriter {
 public:
  IndicesWriter(const std::vector<Uncounted>& files, const DataSettings& settings)
      : files_(files), settings_(settings) {}

  void Add(const CountedPart& part) {
    MoveTo(part.file);
    for (const CountedBlock& block : part.blocks) writer_->Add(block);
  }
  void Finish() { MoveTo(std::ssize(files_)); }

 private:
  /// Also skips files without a block.
  void MoveTo(int64_t file) {
    while (file_ < file) {
      if (writer_) writer_->Commit();
      writer_.reset();
      if (++file_ == std::ssize(files_)) return;
      const std::string& path = files_[static_cast<size_t>(file_)].path;
      writer_.emplace(IndexedFile(path, open_, settings_, CoderOf(path, open_, settings_)));
    }
  }

  const std::vector<Uncounted>& files_;
  const DataSettings& settings_;
  OpenFiles open_;
  int64_t file_ = -1;
  std::optional<IndexWriter> writer_;
};

bool MayNeedIndices(const DataSettings& settings) {
  return settings.format == DataFormat::kAuto || IsCounted(settings.format, settings);
}

}  // namespace

bool NeedIndices(const DataSettings& settings) {
  return MayNeedIndices(settings) && !FindMine(settings, SelfWorld(), {}).empty();
}

int64_t MakeIndices(const DataSettings& settings, World& world, const BeforeFile& before_part) {
  if (!MayNeedIndices(settings)) return 0;
  const std::vector<Uncounted> files = FindAll(settings, world, before_part);
  int64_t cells = 0;
  for (const Uncounted& file : files) cells += file.Cells();
  IndicesWriter indices(files, settings);  // used on rank 0
  for (int64_t begin = 0; begin < cells; begin += kMaxCells) {
    const int64_t count = std::min(kMaxCells, cells - begin);
    const auto share = [&](int rank) { return begin + count * rank / world.Size(); };
    std::vector<CountedPart> mine;
    OnAllRanks(world,
               [&] { mine = Count(files, settings, share(world.Rank()), share(world.Rank() + 1), before_part); });
    const std::vector<std::vector<CountedPart>> all = Gathered(world, mine);
    OnAllRanks(world, [&] {
      for (const std::vector<CountedPart>& parts : all)
        for (const CountedPart& part : parts) indices.Add(part);
    });
  }
  OnAllRanks(world, [&] {
    if (world.Rank() == 0) indices.Finish();
  });
  return std::ssize(files);
}

}  // namespace espalier
