// Text from files reaches a terminal without control characters.
#include "espalier/util/printable_lines.hpp"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(PrintableLines, NoCommandReachesATerminal) {
  EXPECT_EQ(PrintableLines("a\x1b]0;b\x07\x7f\r\n\tc\xc2\x9b"
                           "3\xc3\xa4\xc2\xa9"),
            "a?]0;b???\n\tc?3\xc3\xa4\xc2\xa9");
  EXPECT_EQ(PrintableLines("\xc2"), "\xc2");
}

}  // namespace
}  // namespace espalier
