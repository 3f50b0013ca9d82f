// A small deck as text, its errors with overrides, and a folder of deck files.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "espalier/deck/deck.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

constexpr const char* kSmall = R"(
[run]
steps = 20
[model]
family = "llama"
layers = 5
dim = 48
heads = 6
kv_heads = 2
ffn_dim = 88
vocab = 260
seq_len = 24
[batch]
global = 12
micro = 3
[optimizer]
lr = 1e-3
[data]
paths = ["/tmp/a.txt"]
)";

inline Strings ErrorsOf(const std::function<void()>& act) {
  try {
    act();
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kDeck);
    return error.messages();
  }
  return {};
}

/// Errors of the small deck with overrides.
inline Strings Errors(const Strings& overrides) {
  return ErrorsOf([&] { ParseDeck(kSmall, "small", overrides); });
}

inline Deck Small(const Strings& overrides = {}) { return ParseDeck(kSmall, "small", overrides).deck; }

inline Strings ErrorsOfText(const std::string& text) {
  return ErrorsOf([&] { ParseDeck(text, "small"); });
}

/// A folder of its own for each test.
class DeckFiles : public testing::Test {
 protected:
  DeckFiles() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / fmt::format("espalier_deck_{}_{}", info->name(), ::getpid());
    fs::create_directories(folder_ / "sub");
  }
  ~DeckFiles() override { fs::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  fs::path folder_;
};

inline std::string ReadFile(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline Strings Idle(const Strings& overrides) { return SettingsWithoutEffect(ParseDeck(kSmall, "small", overrides)); }

inline LoadedDeck Loaded(const Strings& overrides) { return ParseDeck(kSmall, "small", overrides); }

inline void ExpectEqualDecks(const Deck& a, const Deck& b) {
  for (const DeckKey& key : DeckSchema())
    EXPECT_EQ(Get(a, key), Get(b, key)) << key.FullName() << ": " << ToToml(Get(a, key)) << " and "
                                        << ToToml(Get(b, key));
}

}  // namespace espalier
