#include "data/samples_of_files.hpp"

#include <algorithm>
#include <cstdint>

#include "espalier/util/crc32c.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {
namespace {

constexpr int64_t kBlocks = 64;
constexpr int64_t kSampleBytes = int64_t{1} << 16;
constexpr int64_t kEndsBytes = int64_t{1} << 22;  // limit for both ends, over all files
constexpr int64_t kMinEndBytes = 256;

class Sampler {
 public:
  Sampler(std::vector<DataFile>& files, OpenFiles& open, const std::function<void()>& before_file)
      : files_(files), open_(open), before_file_(before_file) {
    const int64_t share = kEndsBytes / 2 / std::max<int64_t>(1, std::ssize(files));
    end_bytes_ = std::clamp(share, kMinEndBytes, kSampleBytes);
  }

  void Run() {
    for (DataFile& file : files_) {
      if (before_file_) before_file_();
      Ends(file);
      total_ += file.bytes;
    }
    const int64_t stride = std::max(kSampleBytes, total_ / kBlocks);
    for (int64_t k = 0; k < kBlocks && k * stride < total_; ++k) Block(k * stride, k * stride + kSampleBytes);
  }

 private:
  void Ends(DataFile& file) {
    file.sample = Fold(0, static_cast<uint64_t>(file.bytes));
    Take(file, 0, std::min(end_bytes_, file.bytes));
    Take(file, std::max(end_bytes_, file.bytes - end_bytes_), file.bytes);
  }

  /// Bytes [begin, end) of all files, one after the other. Blocks come in rising order.
  void Block(int64_t begin, int64_t end) {
    for (; at_ < files_.size(); first_ += files_[at_++].bytes) {
      DataFile& file = files_[at_];
      Take(file, std::max<int64_t>(0, begin - first_), std::min(file.bytes, end - first_));
      if (first_ + file.bytes >= end) return;
    }
  }

  void Take(DataFile& file, int64_t begin, int64_t end) {
    if (begin >= end) return;
    buffer_.resize(static_cast<size_t>(end - begin));
    open_.Get(file.path).ReadAt(begin, buffer_.data(), end - begin);
    file.sample = Fold(file.sample, Crc32c(buffer_.data(), buffer_.size()));
  }

  std::vector<DataFile>& files_;
  OpenFiles& open_;
  const std::function<void()>& before_file_;
  int64_t end_bytes_ = 0, total_ = 0;
  size_t at_ = 0;      ///< the file of the current block
  int64_t first_ = 0;  ///< bytes of all files before the current one
  std::vector<char> buffer_;
};

}  // namespace

void SampleFiles(std::vector<DataFile>& files, OpenFiles& open, const std::function<void()>& before_file) {
  Sampler(files, open, before_file).Run();
}

uint64_t TokenSource::Fingerprint() const {
  uint64_t hash = Fold(0, static_cast<uint64_t>(tokens()));
  for (const DataFile& file : files()) hash = Fold(hash, file.sample);
  return hash;
}

}  // namespace espalier
