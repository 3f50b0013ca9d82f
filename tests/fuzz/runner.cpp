// Drives a fuzz target without libFuzzer: replays a corpus, then mutates it COUNT times from a seed.
//   NAME_fuzz CORPUS COUNT [SEED]        CORPUS: a directory, or one input to be tried alone (COUNT 0)
// An input that crashes, breaks a promise or takes more than 1 s of processor time is kept as crash-NAME-SEED in the
// working directory.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "fuzz.hpp"
#include "mutate.hpp"

namespace {

namespace fs = std::filesystem;
using espalier::fuzz::Mutator;
using espalier::fuzz::tally;

constexpr int kMaxSeconds = 1;

std::string input, kept_as;

constexpr std::array kSignals = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGPROF};
std::array<struct sigaction, kSignals.size()> before;

/// Keeps the input and passes the signal on to the previous handler: a sanitizer, which reports, or the system.
extern "C" void Keep(int signal) {
  const int file = ::open(kept_as.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (file >= 0 && ::write(file, input.data(), input.size()) >= 0) {
    for (const char* text : {"fuzz: the input is kept as ", kept_as.c_str(), "\n"})
      if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
  }
  for (size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] == signal) ::sigaction(signal, &before[i], nullptr);
  // Signals of a bad instruction occur again by themselves.
  if (signal == SIGPROF) ::raise(signal);
}

/// On a separate stack: the usual one may have overflowed.
void KeepOnSignals() {
  static std::array<char, 1 << 16> stack;
  const stack_t own{stack.data(), 0, stack.size()};
  ::sigaltstack(&own, nullptr);
  struct sigaction action {};
  action.sa_handler = Keep;
  action.sa_flags = SA_ONSTACK;
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &before[i]);
}

/// SIGPROF after this much processor time: a hang, however busy the machine is.
void SetClock(int seconds) {
  const itimerval timer{{0, 0}, {seconds, 0}};
  ::setitimer(ITIMER_PROF, &timer, nullptr);
}

double ProcessorMs() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

std::string ReadBytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> ReadCorpus(const fs::path& path) {
  if (!fs::is_directory(path)) return {ReadBytes(path)};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> corpus;
  for (const fs::path& file : files) corpus.push_back(ReadBytes(file));
  return corpus;
}

/// Whole words of texts: the grammar of a format.
std::vector<std::string> WordsOf(const std::vector<std::string>& corpus) {
  std::vector<std::string> words;
  for (const std::string& text : corpus)
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find_first_of(" \n=", at), text.size() - 1) + 1;
      if (end - at >= 2 && end - at <= 32) words.push_back(text.substr(at, end - at));
      at = end;
    }
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return words;
}

double slowest = 0;

void Try(std::string bytes) {
  input = std::move(bytes);
  SetClock(kMaxSeconds);
  const double start = ProcessorMs();
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  slowest = std::max(slowest, ProcessorMs() - start);
  SetClock(0);
}

/// Tries each input. Returns the inputs that are worth changing: all of them, and the good ones often enough to be half
/// of the list, since broken inputs seldom get far.
std::vector<std::string> Replay(const std::vector<std::string>& corpus) {
  std::vector<std::string> good, all = corpus;
  for (const std::string& text : corpus) {
    const int64_t accepted = tally.accepted;
    Try(text);
    if (tally.accepted > accepted) good.push_back(text);
  }
  const size_t broken = corpus.size() - good.size();
  for (size_t i = good.size(); i < broken && !good.empty(); ++i) all.push_back(good[i % good.size()]);
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s CORPUS COUNT [SEED]\n", argv[0]);
    return 2;
  }
  const std::string name = fs::path(argv[0]).filename().string();
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  kept_as = "crash-" + name + "-" + std::to_string(seed);
  KeepOnSignals();
  const std::vector<std::string> corpus = ReadCorpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no corpus in %s\n", name.c_str(), argv[1]);
    return 2;
  }
  const std::vector<std::string> mutated = Replay(corpus);
  const int64_t count = std::atoll(argv[2]), accepted = tally.accepted;
  Mutator mutator(mutated, WordsOf(corpus), seed);
  const double start = ProcessorMs();
  for (int64_t i = 0; i < count; ++i) Try(mutator.Next());
  // run.sh reads this line.
  std::printf(
      "%s seed=%llu corpus=%zu corpus_accepted=%lld mutated=%lld accepted=%lld seconds=%.1f slowest_ms=%.1f "
      "heap=%lld\n",
      name.c_str(), static_cast<unsigned long long>(seed), corpus.size(), static_cast<long long>(accepted),
      static_cast<long long>(count), static_cast<long long>(tally.accepted - accepted), (ProcessorMs() - start) * 1e-3,
      slowest, static_cast<long long>(tally.peak));
  return 0;
}
