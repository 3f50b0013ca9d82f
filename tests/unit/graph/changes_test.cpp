// The counts of `plan --passes`.
#include "espalier/graph/changes.hpp"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(Changes, OfNothingAreNone) { EXPECT_EQ(Compare("a = f(x)\nb = g(a)\n", "a = f(x)\nb = g(a)\n"), Changes{}); }

TEST(Changes, AnotherOpThatMakesTheSameValueIsAChange) {
  EXPECT_EQ(Compare("a = f(x)\nb = g(a)\n", "a = f(x)\nb = h(a)\n"), (Changes{.changed = 1}));
  EXPECT_EQ(Compare("value w : f32[4]\n", "value w : bf16[4]\n"), (Changes{.changed = 1}));
}

TEST(Changes, AFusedOpIsAChangeAndARemoval) {
  EXPECT_EQ(Compare("h = add(x, y)\nn = norm(h)\n", "n, h = norm(x, y)\n"), (Changes{.added = 1, .removed = 2}));
  EXPECT_EQ(Compare("d = grad(x)\ns = add(d, r)\n", "s = grad(x, r)\n"), (Changes{.removed = 1, .changed = 1}));
}

TEST(Changes, OneOpThatMovesIsOneMove) {
  EXPECT_EQ(Compare("a\nb\nc\nd\n", "d\na\nb\nc\n"), (Changes{.moved = 1}));
  EXPECT_EQ(Compare("a\nb\nc\nd\n", "b\na\nd\nc\n"), (Changes{.moved = 2}));
}

TEST(Changes, EqualLinesCountOnceEach) {
  EXPECT_EQ(Compare("send(x)\nsend(x)\n", "send(x)\nsend(x)\nsend(x)\n"), (Changes{.added = 1}));
  EXPECT_EQ(Compare("w = f(a)\nw = f(b)\n", "w = f(a)\n"), (Changes{.removed = 1}));
}

}  // namespace
}  // namespace espalier
