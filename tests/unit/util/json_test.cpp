// JSON from others: texts that the rules refuse, and a parsed document equals the result of nlohmann's parser.
#include "espalier/util/json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace espalier {
namespace {

using nlohmann::json;

TEST(ParseJson, MakesTheDocumentOfTheLibrary) {
  for (const char* text : {R"({"a":[1,-2,3.5,1e300,[],{}],"b":{"c":null,"d":[true,false]},"é":"\u00e9\n"})", "[]", "7",
                           "\"x\"", R"({"a":1,"a":{"b":2}})", "18446744073709551615"}) {
    EXPECT_EQ(ParseJson(text, {}), json::parse(text)) << text;
  }
}

TEST(ParseJson, RefusesWhatIsNoJson) {
  for (const char* text : {"", "{", "[1,", R"({"a" 1})", "[1]2", "nul", "1e999", "\"\xff\""})
    EXPECT_THROW(ParseJson(text, {}), json::exception) << text;
}

TEST(ParseJson, HoldsToItsRules) {
  EXPECT_NO_THROW(ParseJson(std::string(100, '[') + std::string(100, ']'), {}));
  EXPECT_THROW(ParseJson(std::string(101, '[') + std::string(101, ']'), {}), std::invalid_argument);
  EXPECT_THROW(ParseJson(std::string(5'000'000, '['), {}), std::invalid_argument) << "before the end is read";
  EXPECT_THROW(ParseJson(R"({"a":1,"b":{"c":1,"c":2}})", {.unique_keys = true}), std::invalid_argument);
  EXPECT_NO_THROW(ParseJson(R"({"a":1,"b":{"a":1}})", {.unique_keys = true}));
}

TEST(ParseJson, AsksWhichObjectsToKeep) {
  std::vector<int> depths;
  const auto keep = [&](int depth, const json& object) {
    depths.push_back(depth);
    return !object.contains("drop");
  };
  EXPECT_EQ(ParseJson(R"({"list":[{"drop":1},{"x":{"drop":2}},3]})", {.keep = keep}),
            json::parse(R"({"list":[{},3]})"));
  EXPECT_THAT(depths, testing::ElementsAre(2, 3, 2, 0));
}

/// A callback of nlohmann's parser would visit all members again after each of them: 1e11 visits here.
TEST(ParseJson, TakesLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 500'003; ++i) text += (i == 0 ? "" : ",") + ("\"" + std::to_string(i) + "\":{}");
  EXPECT_EQ(ParseJson(text + "}", {.unique_keys = true}).size(), 500'003U);
}

}  // namespace
}  // namespace espalier
