// Text of SVG, and round numbers of axes.
#include "espalier/svg/svg.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/svg/ticks.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(Svg, WritesShortNumbersAndSafeText) {
  EXPECT_EQ(Pixels(12.34), "12.3");
  EXPECT_EQ(Pixels(12), "12");
  EXPECT_EQ(Pixels(-0.46), "-0.5");
  EXPECT_EQ(Pixels(-0.01), "0");
  EXPECT_EQ(Escaped("a<b>&\"\n"), "a&lt;b&gt;&amp;&quot; ");
}

TEST(Svg, IsAFileOrAnElement) {
  const Drawing drawing{300, 72.5, "a <b>", "kind", ".kind text{fill:#333}", "<path d=\"M1 2\"/>\n"};
  EXPECT_EQ(SvgFile(drawing),
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"kind\" width=\"300\" height=\"72.5\" viewBox=\"0 0 300 "
            "72.5\">\n<title>a &lt;b&gt;</title>\n<style>.kind text{fill:#333}</style>\n<path d=\"M1 2\"/>\n</svg>\n");
  EXPECT_THAT(SvgElement(drawing), HasSubstr("aria-label=\"a &lt;b&gt;\""));
  EXPECT_THAT(SvgElement(drawing), Not(HasSubstr("style")));
}

TEST(Ticks, AreRoundMultiples) {
  EXPECT_THAT(RoundValues(0, 47, 6), ElementsAre(0, 10, 20, 30, 40));
  EXPECT_THAT(RoundValues(-3, 3, 3), ElementsAre(-2, 0, 2));
  EXPECT_THAT(RoundValues(7, 7, 5), ElementsAre());
  EXPECT_EQ(RoundStep(0.021), 0.05);
  EXPECT_EQ(RoundStep(50), 50);
}

TEST(Ticks, OfLogarithmsArePowersOfTen) {
  EXPECT_THAT(RoundPowers(0.9, 12, 6), ElementsAre(1, 2, 5, 10));
  EXPECT_THAT(RoundPowers(0.5, 2e3, 6), ElementsAre(1, 10, 100, 1000));
  EXPECT_LE(RoundPowers(1e-30, 1e30, 6).size(), 6U);
}

}  // namespace
}  // namespace espalier
