// Which files may be read, and how much of them.
#include "espalier/util/input_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class InputFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("input_file_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Make(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }
  static std::string Reason(const std::string& path, const FileKind& kind = {}) {
    try {
      ReadFile(path, kind);
    } catch (const UserError& error) {
      EXPECT_EQ(error.status(), ExitStatus::kData);
      EXPECT_TRUE(std::string(error.what()).starts_with(path + ": ")) << error.what();
      return std::string(error.what()).substr(path.size() + 2);
    }
    return "";
  }

  fs::path folder_;
};

/// The text of every line, with marks for special cases.
std::vector<std::string> LinesOf(const std::string& path, int64_t most) {
  std::vector<std::string> lines;
  InputLines file(path, {}, most);
  for (InputLines::Line line; file.Next(line);)
    lines.push_back(std::string(line.text) + (line.too_long ? "(too long)" : "") + (line.complete ? "" : "(open)"));
  return lines;
}

TEST_F(InputFiles, RefuseWhatIsNoFileWithoutWaiting) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(Reason(Path("pipe")), "is not a file but a pipe");
  fs::create_symlink(Path("pipe"), Path("link"));
  EXPECT_EQ(Reason(Path("link")), "is not a file but a pipe");
  EXPECT_EQ(Reason("/dev/zero"), "is not a file but a device");
  EXPECT_EQ(Reason(folder_.string(), {"deck"}), "is a folder, not a deck");
  EXPECT_EQ(Reason(Path("none")), "no such file");
  EXPECT_EQ(Reason(Path("none"), {.remedy = "name one"}), "no such file; name one");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = Path("socket");
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(Reason(path), HasSubstr("is not a file but a socket"));
  close(socket);
}

TEST_F(InputFiles, HaveALimitThatCountsWhatIsReadToo) {
  const FileKind kind = {"deck", 7};
  EXPECT_EQ(ReadFile(Make("seven", "1234567"), kind), "1234567");
  EXPECT_EQ(ReadFile(Make("empty", ""), kind), "");
  EXPECT_EQ(Reason(Make("eight", "12345678"), kind), "has 8 bytes, and a deck has at most 7");
  fs::resize_file(Make("sparse", ""), uintmax_t{1} << 40);
  EXPECT_EQ(Reason(Path("sparse"), {"deck", 1 << 20}), "has 1099511627776 bytes, and a deck has at most 1048576");
  // Files of /proc have no size before they are read.
  EXPECT_EQ(fs::file_size("/proc/self/status"), 0U);
  EXPECT_EQ(Reason("/proc/self/status", kind), "has 8 bytes, and a deck has at most 7");
  EXPECT_THAT(ReadSystemFile("/proc/self/status"), HasSubstr("VmHWM:"));
  EXPECT_EQ(ReadSystemFile(Path("none")), "");
}

TEST_F(InputFiles, AreWholeWhateverTheirSize) {
  for (const size_t bytes : {65535U, 65536U, 65537U, 300001U}) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 % 251);
    EXPECT_EQ(ReadFile(Make("file", text), {}), text) << bytes;
  }
}

TEST_F(InputFiles, FollowLinksUnlessToldNotTo) {
  fs::create_symlink(Make("file", "text"), Path("link"));
  EXPECT_EQ(ReadFile(Path("link"), {}), "text");
  EXPECT_EQ(Reason(Path("link"), {.symlinks = Symlinks::kRefuse}), "is a symbolic link, which is not followed here");
}

TEST_F(InputFiles, ReadAtSaysWhereAFileEndsEarly) {
  const InputFile file(Make("file", "12345"));
  char bytes[8] = {};
  EXPECT_EQ(file.ReadSome(3, bytes, 5), 2);
  EXPECT_EQ(std::string(bytes), "45");
  fs::resize_file(Path("file"), 4);
  try {
    file.ReadAt(2, bytes, 3);
    ADD_FAILURE() << "the file has only 4 bytes";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ends at byte 4; it had 5 bytes when it was opened"));
  }
}

TEST_F(InputFiles, LinesAreWholeOverBlocksAndLongOnesAreLeftOut) {
  EXPECT_THAT(LinesOf(Make("a", "one\n\nthree\nfo"), 5), ElementsAre("one", "", "three", "fo(open)"));
  EXPECT_THAT(LinesOf(Make("b", "123456\nab\n123456"), 5), ElementsAre("(too long)", "ab", "(too long)(open)"));
  EXPECT_THAT(LinesOf(Make("c", ""), 5), ElementsAre());
  const std::string most((1 << 20) - 3, 'x'), more((3 << 20) + 1, 'y');
  EXPECT_THAT(LinesOf(Make("d", most + "\nover the end of a block\n" + more + "\nlast\n"), 1 << 20),
              ElementsAre(most, "over the end of a block", "(too long)", "last"));
}

}  // namespace
}  // namespace espalier
