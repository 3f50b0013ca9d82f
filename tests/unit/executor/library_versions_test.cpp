// Compares versions of libraries with the versions of their headers.
#include "espalier/executor/library_versions.hpp"

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

}  // namespace
}  // namespace espalier
