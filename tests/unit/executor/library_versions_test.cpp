// Compares versions of libraries with the versions of their headers, and GPUs with what kernels are built for.
#include "espalier/executor/library_versions.hpp"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Check(std::vector<LibraryVersion> libraries) { return CheckVersions(libraries); }

TEST(LibraryVersions, EqualAndNewerOnesOfOneMajorVersionAreFine) {
  EXPECT_THAT(Check({{"cuDNN", 9, 19, 9, 19}, {"NCCL", 2, 28, 2, 31}}), IsEmpty());
}

TEST(LibraryVersions, OlderOnesAreNamed) {
  EXPECT_THAT(Check({{"cuDNN", 9, 19, 9, 5}, {"NCCL", 2, 28, 2, 28}}),
              ElementsAre(HasSubstr("cuDNN 9.5 is loaded, and this program was built with the headers of 9.19")));
}

TEST(LibraryVersions, AnotherMajorVersionIsRefused) {
  for (const int major : {8, 10}) EXPECT_THROW(Check({{"cuDNN", 9, 19, major, 30}}), UserError);
  try {
    Check({{"NCCL", 2, 28, 2, 1}, {"cuBLASLt", 13, 1, 12, 9}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kFault);
    EXPECT_THAT(error.what(), HasSubstr("cuBLASLt 12.9"));
    EXPECT_THAT(error.what(), HasSubstr("LD_LIBRARY_PATH"));
  }
}

TEST(LibraryVersions, MachineCodeRunsWithinAMajorVersion) {
  const int built[] = {80, 90};
  for (const int capability : {80, 86, 89, 90}) EXPECT_EQ(CheckArchitecture(built, capability), "") << capability;
  for (const int capability : {100, 120})
    EXPECT_THAT(CheckArchitecture(built, capability),
                HasSubstr(fmt::format("compute capability {}.0, and this program is built for 80, 90: the driver "
                                      "compiles",
                                      capability / 10)));
  EXPECT_THROW(CheckArchitecture(built, 75), UserError);
  const int newer[] = {89, 120};
  for (const int capability : {80, 86, 90, 100}) EXPECT_THROW(CheckArchitecture(newer, capability), UserError);
  EXPECT_EQ(CheckArchitecture(newer, 121), "");
}

}  // namespace
}  // namespace espalier
