// Every rank runs every test; rank 0 reports, the others only report failures.
#include <gtest/gtest.h>

#include <optional>

#include "harness.hpp"

namespace espalier::test {
namespace {

std::optional<MpiWorld> world;

class FailuresOnly : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    fmt::print(stderr, "rank {}: {}:{}: {}\n", world->Rank(), result.file_name() == nullptr ? "" : result.file_name(),
               result.line_number(), result.summary());
  }
};

}  // namespace

MpiWorld& TheWorld() { return *world; }

}  // namespace espalier::test

int main(int argc, char** argv) {
  using espalier::test::world;
  ::testing::InitGoogleTest(&argc, argv);
  world.emplace();
  if (world->Rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new espalier::test::FailuresOnly);
  }
  const int status = RUN_ALL_TESTS();
  const auto worst = static_cast<int>(world->Max(status));
  world.reset();
  return worst;
}
