// A checkpoint of a few small tensors in two shards, whose files are replaced by inputs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "checkpoint_testing.hpp"
#include "espalier/util/crc32c.hpp"
#include "fuzz.hpp"

namespace espalier::fuzz {

/// Parsed texts take a few hundred bytes per byte.
inline int64_t Allowance(size_t bytes) { return (int64_t{1} << 18) + 512 * static_cast<int64_t>(bytes); }

/// Besides its state a load needs the MANIFEST and a buffer of 4 MiB.
inline int64_t LoadAllowance(size_t manifest_bytes) { return (int64_t{4} << 20) + Allowance(manifest_bytes); }

class SmallCheckpoint {
 public:
  SmallCheckpoint() {
    const Degrees two = {1, 1, 2, 1, 1};
    const Mesh mesh(two);
    const std::vector<StateTensor> sharded = Small(two);
    const auto errors = OnRanks(2, [&](World& world) {
      RankState state(sharded, mesh, world.Rank());
      state.Fill(1);
      Metadata metadata = TestMetadata(20);
      metadata.proof = Proof{2.5f, "fp32", 1};
      Save(home_.path(), metadata, sharded, state.Local(), mesh, world, 1);
    });
    for (const std::string& error : errors) Require(error.empty(), error);
    dir_ = home_.path() + "/" + StepName(20);
    manifest_ = Read("MANIFEST");
  }

  const std::string& dir() const { return dir_; }
  const std::string& manifest() const { return manifest_; }

  std::string Read(const std::string& name) const {
    std::ifstream in(dir_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// Written in place: a file that is truncated first waits for the disk when it is closed.
  void Write(const std::string& name, const std::string& bytes) const {
    const std::string path = dir_ + "/" + name;
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    std::filesystem::resize_file(path, bytes.size());
  }

  /// True if a restart would accept it. The bytes of its tensors are then in `state`.
  bool Loads() {
    return !IsRefused(ExitStatus::kData, [&] { Load(dir_, tensors_, local_, Mesh(), world_); });
  }
  bool Verifies() const {
    bool whole = false;
    return !IsRefused(ExitStatus::kData, [&] { whole = VerifyCheckpoint(dir_).damage.empty(); }) && whole;
  }
  /// The tensors that Loads() has filled, in order.
  const std::vector<LocalTensor>& local() const { return local_; }

 private:
  static std::vector<StateTensor> Small(const Degrees& degrees) {
    std::vector<StateTensor> tensors = TestTensors(degrees);
    std::erase_if(tensors, [](const StateTensor& t) {
      return !t.name.starts_with("parameters/") || t.name.ends_with("lm_head.weight");
    });
    return tensors;
  }

  TemporaryDirectory home_;
  std::string dir_, manifest_;
  std::vector<StateTensor> tensors_ = Small({1, 1, 1, 1, 1});
  RankState state_{tensors_, Mesh(), 0};
  std::vector<LocalTensor> local_ = state_.Local();
  SelfWorld world_;
};

inline uint32_t ChecksumOf(std::string_view bytes) { return Crc32c(bytes.data(), bytes.size()); }

}  // namespace espalier::fuzz
