// The ranks of a job as a whole, for everything outside the step: agreement, small gathers, orderly exits. Blocking.
// Modules that need no more than this (checkpoint, report) take a World&, so that their tests run in one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "espalier/util/error.hpp"

namespace espalier {

/// A message of Exchange: sent to `rank` from `data`, or received from it there.
struct Parcel {
  int rank = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

class World {
 public:
  virtual ~World() = default;
  virtual int Rank() const = 0;
  virtual int Size() const = 0;
  virtual void Barrier() = 0;
  /// The bytes of all ranks, by rank, on rank 0; empty on others.
  virtual std::vector<std::string> Gather(const std::string& bytes) = 0;
  /// The bytes of rank 0, on all ranks.
  virtual std::string Broadcast(const std::string& bytes) = 0;
  /// The maximum over all ranks, on all ranks.
  virtual int64_t Max(int64_t value) = 0;
  /// The bitwise OR over all ranks, on all ranks.
  virtual uint64_t Or(uint64_t bits) = 0;
  /// Sends and receives messages of any size between single ranks. Both sides of two ranks list the messages between
  /// them in the same order. Every rank that sends or receives calls it.
  virtual void Exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) = 0;
  /// Ends all ranks with `status`, since this one cannot continue and the others would wait for it. Prints "espalier:
  /// rank R: message". Any thread may call it.
  [[noreturn]] virtual void Fail(const std::string& message, ExitStatus status = ExitStatus::kFault) {
    std::fprintf(stderr, "espalier: rank %d: %s\n", Rank(), message.c_str());
    std::_Exit(static_cast<int>(status));
  }
};

/// The world of one process.
class SelfWorld final : public World {
 public:
  int Rank() const override { return 0; }
  int Size() const override { return 1; }
  void Barrier() override {}
  std::vector<std::string> Gather(const std::string& bytes) override { return {bytes}; }
  std::string Broadcast(const std::string& bytes) override { return bytes; }
  int64_t Max(int64_t value) override { return value; }
  uint64_t Or(uint64_t bits) override { return bits; }
  void Exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) override {
    CHECK(sends.empty() && receives.empty(), "messages in a world of one process");
  }
};

}  // namespace espalier
