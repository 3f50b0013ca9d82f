// Planning is linear in the number of layers, by a count that is the same on every machine: the bytes requested from
// operator new. A pass that copies all layers for each layer is found; one that only reads them is not.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "espalier/program/plan.hpp"
#include "espalier/train/states.hpp"
#include "test_decks.hpp"

namespace {

std::atomic<int64_t> asked = 0;

void* Take(std::size_t bytes) {
  asked += static_cast<int64_t>(bytes);
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return Take(bytes); }
void* operator new[](std::size_t bytes) { return Take(bytes); }
// Replaces these operators too, with which std::stable_sort allocates its buffer: sanitizers have their own.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  asked += static_cast<int64_t>(bytes);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t& tag) noexcept { return operator new(bytes, tag); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace espalier {
namespace {

using Overrides = std::vector<std::string>;

class Planning : public testing::TestWithParam<Overrides> {};

int64_t BytesToPlan(Overrides overrides, int layers) {
  overrides.push_back(fmt::format("model.layers={}", layers));
  const Deck deck = SmallDeck(overrides);
  const int64_t before = asked;
  const WorldPlan plan = PlanWorld(deck, SmallestRanks(deck));
  StateTensors(plan.training);
  return asked - before;
}

TEST_P(Planning, FourTimesTheLayersAskForFourTimesTheMemory) {
  const int64_t few = BytesToPlan(GetParam(), 64), many = BytesToPlan(GetParam(), 256);
  EXPECT_LT(double(many), 4.1 * double(few)) << few << " bytes for 64 layers, " << many << " for 256";
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Planning,
    testing::Values(Overrides{}, Overrides{"parallel.dp_shard=4", "parallel.zero=3"},
                    Overrides{"parallel.tp=2", "batch.micro=2", "overlap.tensor_strips=2"},
                    Overrides{"parallel.pp=2", "pipeline.schedule=interleaved", "pipeline.chunks=2"},
                    Overrides{"precision.compute=bf16", "precision.moments=bf16", "parallel.dp_shard=2"}));

}  // namespace
}  // namespace espalier
