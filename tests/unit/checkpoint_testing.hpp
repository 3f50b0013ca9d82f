// Ranks as threads of one process, states of a small model with odd sizes, and files, for the tests of checkpoints.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// State that the threads of one world share.
struct ThreadMeeting {
  explicit ThreadMeeting(int size)
      : barrier(size),
        texts(static_cast<size_t>(size)),
        numbers(static_cast<size_t>(size)),
        sent(static_cast<size_t>(size)) {}
  std::barrier<> barrier;
  std::vector<std::string> texts;
  std::vector<int64_t> numbers;
  std::vector<std::vector<Parcel>> sent;
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(ThreadMeeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int Rank() const override { return rank_; }
  int Size() const override { return static_cast<int>(meeting_.texts.size()); }
  void Barrier() override { meeting_.barrier.arrive_and_wait(); }
  std::vector<std::string> Gather(const std::string& bytes) override {
    meeting_.texts[static_cast<size_t>(rank_)] = bytes;
    Barrier();
    std::vector<std::string> all = rank_ == 0 ? meeting_.texts : std::vector<std::string>{};
    Barrier();
    return all;
  }
  std::string Broadcast(const std::string& bytes) override {
    if (rank_ == 0) meeting_.texts[0] = bytes;
    Barrier();
    std::string text = meeting_.texts[0];
    Barrier();
    return text;
  }
  int64_t Max(int64_t value) override {
    meeting_.numbers[static_cast<size_t>(rank_)] = value;
    Barrier();
    const int64_t most = *std::max_element(meeting_.numbers.begin(), meeting_.numbers.end());
    Barrier();
    return most;
  }
  uint64_t Or(uint64_t bits) override {
    meeting_.numbers[static_cast<size_t>(rank_)] = static_cast<int64_t>(bits);
    Barrier();
    uint64_t all = 0;
    for (int64_t number : meeting_.numbers) all |= static_cast<uint64_t>(number);
    Barrier();
    return all;
  }
  void Exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) override {
    meeting_.sent[static_cast<size_t>(rank_)] = {sends.begin(), sends.end()};
    Barrier();
    std::map<int, size_t> next;  // by sender: its next message to this rank
    for (const Parcel& parcel : receives) {
      const std::vector<Parcel>& list = meeting_.sent[static_cast<size_t>(parcel.rank)];
      size_t& at = next[parcel.rank];
      while (list.at(at).rank != rank_) ++at;
      CHECK(list[at].bytes == parcel.bytes, "{} bytes were sent, {} expected", list[at].bytes, parcel.bytes);
      std::memcpy(parcel.data, list[at++].data, static_cast<size_t>(parcel.bytes));
    }
    Barrier();
  }

 private:
  ThreadMeeting& meeting_;
  int rank_;
};

/// Runs `work` on every rank; returns each rank's error message, "" if it had none.
inline std::vector<std::string> OnRanks(int ranks, const std::function<void(World&)>& work) {
  ThreadMeeting meeting(ranks);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      ThreadWorld world(meeting, rank);
      try {
        work(world);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  threads.clear();
  return errors;
}

/// Degrees of pp, dp_replicate, dp_shard, cp, tp.
using Degrees = Coordinate;

/// Tensors of every kind of placement; sizes that no degree divides; parts of one stored tensor; one of more than 1
/// MiB; layer l on stage l % pp. Moments may have another type.
inline std::vector<StateTensor> TestTensors(const Degrees& degrees, Dtype moments = Dtype::kF32) {
  struct Sketch {
    const char* name;
    Shape shape;
    std::vector<std::vector<Axis>> dims;
    int layer;
    std::optional<StoredPart> part = std::nullopt;
  };
  const std::vector<Axis> none, tp = {Axis::kTp}, fsdp = {Axis::kDpShard, Axis::kCp},
                                all = {Axis::kTp, Axis::kDpShard, Axis::kCp};
  const std::vector<Sketch> sketches = {
      {"model.embed_tokens.weight", {37, 10}, {all, none}, 0},
      {"model.layers.0.self_attn.q_proj.weight", {13, 7}, {all, none}, 1},
      {"model.layers.0.self_attn.o_proj.weight", {7, 13}, {fsdp, tp}, 1},
      {"model.layers.1.mlp.cube", {3, 5, 7}, {none, tp, fsdp}, 2},
      {"model.layers.1.norm.weight", {3}, {all}, 2},
      {"model.norm.weight", {11}, {none}, 3},
      {"lm_head.weight", {701, 600}, {tp, fsdp}, 3},
      {"h.0.c_attn.weight[q]", {5, 7}, {fsdp, tp}, 1, StoredPart{"h.0.c_attn.weight", {5, 21}, {0, 0}}},
      {"h.0.c_attn.bias[q]", {7}, {all}, 1, StoredPart{"h.0.c_attn.bias", {14}, {0}}},
      {"h.0.c_attn.weight[k]", {5, 7}, {fsdp, tp}, 1, StoredPart{"h.0.c_attn.weight", {5, 21}, {0, 7}}},
      {"h.0.c_attn.bias[v]", {7}, {all}, 1, StoredPart{"h.0.c_attn.bias", {14}, {7}}},
      {"h.0.c_attn.weight[v]", {5, 7}, {fsdp, tp}, 1, StoredPart{"h.0.c_attn.weight", {5, 21}, {0, 14}}},
  };
  const Mesh mesh(degrees);
  std::vector<StateTensor> tensors;
  for (const char* prefix : {"parameters/", "optimizer/exp_avg/", "optimizer/exp_avg_sq/"})
    for (const Sketch& sketch : sketches) {
      Type type = MakeType(prefix[0] == 'p' ? Dtype::kF32 : moments, sketch.shape);
      for (size_t d = 0; d < sketch.dims.size(); ++d)
        for (Axis axis : sketch.dims[d])
          if (mesh.Degree(axis) > 1) type.placements.dims[d].push_back(axis);
      std::optional<StoredPart> part = sketch.part;
      if (part) part->name = prefix + part->name;
      tensors.push_back({std::string(prefix) + sketch.name, type, sketch.layer % degrees[0], part});
    }
  return tensors;
}

/// Any bits, including NaN patterns, which differ by tensor, element and salt.
inline uint32_t TestBits(const std::string& tensor, int64_t element, uint64_t salt) {
  uint64_t x = std::hash<std::string>{}(tensor) ^ (salt * 0x9e3779b97f4a7c15u) ^ static_cast<uint64_t>(element);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>(x >> 31);
}

/// One rank's memory of TestTensors.
class RankState {
 public:
  RankState(const std::vector<StateTensor>& tensors, const Mesh& mesh, int rank) {
    const Coordinate coordinate = mesh.CoordinateOf(rank);
    for (const StateTensor& tensor : tensors) {
      if (tensor.stage != coordinate[0]) continue;
      const Box box = LocalBox(tensor.type, mesh, coordinate);
      const auto bytes = static_cast<size_t>(Volume(ExtentsOf(box)) * SizeOf(tensor.type.dtype));
      pieces_.push_back({&tensor, box, std::vector<unsigned char>(bytes, 0xdb)});
    }
  }

  std::vector<LocalTensor> Local() {
    std::vector<LocalTensor> local;
    for (Piece& piece : pieces_) local.push_back({piece.tensor, piece.bytes.data()});
    return local;
  }

  void Fill(uint64_t salt) {
    for (Piece& piece : pieces_)
      ForEach(piece, [&](uint32_t, int64_t element) { return TestBits(piece.tensor->name, element, salt); });
  }

  int64_t Errors(uint64_t salt) {
    return Differences(
        [&](const StateTensor& tensor, int64_t element) { return TestBits(tensor.name, element, salt); });
  }
  /// Number of elements whose bits differ from the expected ones; a bf16 has the lower half of them.
  int64_t Differences(const std::function<uint32_t(const StateTensor& tensor, int64_t element)>& expected) {
    int64_t differences = 0;
    for (Piece& piece : pieces_)
      ForEach(piece, [&](uint32_t bits, int64_t element) {
        const uint32_t mask = piece.tensor->type.dtype == Dtype::kBf16 ? 0xffffu : 0xffffffffu;
        differences += bits != (expected(*piece.tensor, element) & mask);
        return bits;
      });
    return differences;
  }

 private:
  struct Piece {
    const StateTensor* tensor;
    Box box;
    std::vector<unsigned char> bytes;
  };

  /// Replaces the bits of each local element by visit(bits, index in the whole tensor).
  static void ForEach(Piece& piece, const std::function<uint32_t(uint32_t, int64_t)>& visit) {
    const Shape extents = ExtentsOf(piece.box);
    const auto size = static_cast<size_t>(SizeOf(piece.tensor->type.dtype));
    for (size_t i = 0; i < piece.bytes.size() / size; ++i) {
      int64_t rest = static_cast<int64_t>(i), element = 0, stride = 1;
      for (size_t d = extents.size(); d-- > 0;) {
        element += (piece.box[d].begin + rest % extents[d]) * stride;
        rest /= extents[d];
        stride *= piece.tensor->type.shape[d];
      }
      uint32_t bits = 0;  // little-endian
      std::memcpy(&bits, piece.bytes.data() + i * size, size);
      bits = visit(bits, element);
      std::memcpy(piece.bytes.data() + i * size, &bits, size);
    }
  }

  std::vector<Piece> pieces_;
};

/// Memory that the host may not access, like a device's: only Read and Write reach it.
class RemoteArena final : public Arena {
 public:
  explicit RemoteArena(int64_t bytes) : Arena(bytes), memory_(static_cast<size_t>(bytes)) {
    void* nowhere = mmap(nullptr, memory_.size() + 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    base_ = static_cast<std::byte*>(nowhere);
  }
  ~RemoteArena() override { munmap(base_, memory_.size() + 1); }

  bool OnHost() const override { return false; }
  void Read(const void* from, void* to, int64_t bytes) const override {
    std::copy_n(memory_.data() + Offset(from), bytes, static_cast<std::byte*>(to));
  }
  void Write(void* to, const void* from, int64_t bytes) override {
    std::copy_n(static_cast<const std::byte*>(from), bytes, memory_.data() + Offset(to));
  }

 private:
  std::ptrdiff_t Offset(const void* place) const { return static_cast<const std::byte*>(place) - base_; }
  std::vector<std::byte> memory_;
};

/// A rank's state on a device.
class RemoteState {
 public:
  RemoteState(RankState& state, const Mesh& mesh, int rank) : here_(state.Local()), arena_(BytesOf(here_, mesh, rank)) {
    int64_t offset = 0;
    for (const LocalTensor& tensor : here_) {
      bytes_.push_back(BytesOf({tensor}, mesh, rank));
      there_.push_back({tensor.tensor, arena_.At(offset, bytes_.back()), &arena_});
      offset += bytes_.back();
    }
  }
  const std::vector<LocalTensor>& Local() const { return there_; }
  void Upload() {
    for (size_t i = 0; i < here_.size(); ++i) arena_.Write(there_[i].data, here_[i].data, bytes_[i]);
  }
  void Download() {
    for (size_t i = 0; i < here_.size(); ++i) arena_.Read(there_[i].data, here_[i].data, bytes_[i]);
  }

 private:
  static int64_t BytesOf(const std::vector<LocalTensor>& tensors, const Mesh& mesh, int rank) {
    int64_t bytes = 0;
    for (const LocalTensor& t : tensors)
      bytes += Volume(LocalShape(t.tensor->type, mesh, mesh.CoordinateOf(rank))) * SizeOf(t.tensor->type.dtype);
    return bytes;
  }
  std::vector<LocalTensor> here_, there_;
  RemoteArena arena_;
  std::vector<int64_t> bytes_;
};

/// A directory that is removed at the end of the test.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "espalier-checkpoint-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string ReadBytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void WriteBytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// The message of the UserError that `work` throws; "" if it throws none.
inline std::string MessageOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// The same for data that must be refused.
inline std::string Refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kData);
    return error.what();
  }
  return "not refused";
}

inline void FlipByte(const std::string& path, int64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(offset);
  file.put(byte);
}

/// The content of a directory, sorted.
inline std::vector<std::string> Names(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// The id of a killed save.
inline const std::string kDead = "0123456789abcdef0123456789abcdef";

inline Metadata TestMetadata(int64_t step) {
  return {step, step * 8, "0.1.0", "0123abcd", {3.25, 3.1, 2.875}, "[run]\nsteps = 20\n"};
}

/// Saves a test state; returns the ranks' errors.
inline std::vector<std::string> SaveState(const std::string& dir, const Degrees& degrees, int64_t step, uint64_t salt,
                                          int64_t keep = 3, Dtype moments = Dtype::kF32) {
  const Mesh mesh(degrees);
  const std::vector<StateTensor> tensors = TestTensors(degrees, moments);
  Metadata metadata = TestMetadata(step);
  if (moments != Dtype::kF32) metadata.lineage = Lineage{};  // in the format with bf16 moments
  return OnRanks(mesh.Ranks(), [&](World& world) {
    RankState state(tensors, mesh, world.Rank());
    state.Fill(salt);
    Save(dir, metadata, tensors, state.Local(), mesh, world, keep);
  });
}

/// Loads into a layout and compares every bit; returns the ranks' errors.
inline std::vector<std::string> LoadState(const std::string& dir, const Degrees& degrees, uint64_t salt,
                                          Dtype moments = Dtype::kF32) {
  const Mesh mesh(degrees);
  const std::vector<StateTensor> tensors = TestTensors(degrees, moments);
  return OnRanks(mesh.Ranks(), [&](World& world) {
    RankState state(tensors, mesh, world.Rank());
    Load(dir, tensors, state.Local(), mesh, world);
    if (const int64_t errors = state.Errors(salt); errors > 0)
      throw std::runtime_error(std::to_string(errors) + " elements differ");
  });
}

}  // namespace espalier
