#include "report/event_file.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "espalier/report/text_events.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "records are little-endian");

/// A message of Protocol Buffers, built field by field (https://protobuf.dev/programming-guides/encoding).
class Message {
 public:
  Message& Integer(int field, int64_t value) {
    Tag(field, 0);
    Varint(static_cast<uint64_t>(value));
    return *this;
  }
  Message& Double(int field, double value) { return Fixed(field, 1, value); }
  Message& Float(int field, float value) { return Fixed(field, 5, value); }
  Message& Bytes(int field, std::string_view bytes) {
    Tag(field, 2);
    Varint(bytes.size());
    text_ += bytes;
    return *this;
  }
  Message& Nested(int field, const Message& message) { return Bytes(field, message.text_); }
  const std::string& text() const { return text_; }

 private:
  void Tag(int field, unsigned wire_type) { Varint(static_cast<uint64_t>(field) << 3 | wire_type); }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  template <typename T>
  Message& Fixed(int field, unsigned wire_type, T value) {
    Tag(field, wire_type);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }

  std::string text_;
};

// Fields of event.proto, summary.proto, tensor.proto and tensor_shape.proto.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr int kValue = 1;
constexpr int kValueTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
constexpr int kPluginData = 1, kPluginName = 1;
constexpr int kDtype = 1, kShape = 2, kStringValue = 8, kDim = 2, kDimSize = 1, kDtypeString = 7;
constexpr int kSessionStatus = 1, kSessionStart = 1;

Message EventAt(int64_t step, double time) {
  Message event;
  event.Double(kWallTime, time);
  if (step != 0) event.Integer(kStep, step);
  return event;
}

/// The first event of every file.
Message Version(double time) { return EventAt(0, time).Bytes(kFileVersion, "brain.Event:2"); }

void AddScalar(Message& summary, std::string_view tag, double value) {
  summary.Nested(kValue, Message().Bytes(kValueTag, tag).Float(kSimpleValue, static_cast<float>(value)));
}

void AddText(Message& summary, std::string_view tag, std::string_view text) {
  const Message plugin = Message().Bytes(kPluginName, "text");
  const Message shape = Message().Nested(kDim, Message().Integer(kDimSize, 1));
  const Message tensor = Message().Integer(kDtype, kDtypeString).Nested(kShape, shape).Bytes(kStringValue, text);
  summary.Nested(
      kValue,
      Message().Bytes(kValueTag, tag).Nested(kTensor, tensor).Nested(kMetadata, Message().Nested(kPluginData, plugin)));
}

uint32_t Masked(const void* data, size_t bytes) {
  const uint32_t crc = Crc32c(data, bytes);
  return std::rotr(crc, 15) + 0xa282ead8u;
}

std::string Record(const std::string& event) {
  const uint64_t length = event.size();
  const uint32_t crc_of_length = Masked(&length, sizeof length), crc = Masked(event.data(), event.size());
  std::string record(reinterpret_cast<const char*>(&length), sizeof length);
  record.append(reinterpret_cast<const char*>(&crc_of_length), sizeof crc_of_length);
  record += event;
  return record.append(reinterpret_cast<const char*>(&crc), sizeof crc);
}

/// TensorBoard reads files whose names contain "tfevents", in the order of their names. Each name is unique.
std::string NewName(double time) {
  static std::atomic<int> number = 0;
  return fmt::format("events.out.tfevents.{:010d}.{}.{}.{}", static_cast<int64_t>(time), HostName(), getpid(),
                     number++);
}

/// Replaces bytes that are not UTF-8 by the replacement character.
std::string ValidUtf8(const std::string& text) {
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

/// The fields of an event as a table of Markdown.
std::string Table(const json& line) {
  std::string rows = "| | |\n|---|---|\n";
  for (const auto& [name, value] : line.items())
    if (name != "event" && name != "time")
      rows += fmt::format("| {} | {} |\n", name, value.is_string() ? value.get<std::string>() : value.dump());
  return rows;
}

}  // namespace

void WriteTextEvents(const std::string& folder, int64_t step, double time, const std::vector<TextEvent>& texts) {
  std::string records = Record(Version(time).text());
  for (const TextEvent& text : texts) {
    Message summary;
    AddText(summary, text.name, ValidUtf8(text.text));
    records += Record(EventAt(step, time).Nested(kSummary, summary).text());
  }
  const std::string path = folder + "/" + NewName(time);
  std::ofstream file(path, std::ios::binary);
  file << records;
  file.close();
  if (!file) throw UserError(ExitStatus::kFault, fmt::format("{}: cannot write: {}", path, std::strerror(errno)));
}

EventFile::EventFile(const std::string& folder, int64_t first_step, double time) : step_(first_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  path_ = folder + "/" + NewName(time);
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file_ < 0)
    complaint_ = fmt::format("{}: cannot write: {}; TensorBoard will miss this run", path_, std::strerror(errno));
  Write(Version(time).text());
  BeginSession(first_step, time);
}

EventFile::~EventFile() {
  if (file_ >= 0) close(file_);
}

void EventFile::Add(std::string_view line, double time) {
  const json fields = json::parse(line);
  step_ = fields.value("step", step_);
  if (fields.contains("to")) BeginSession(fields["to"].get<int64_t>() + 1, time);  // a rollback
  Message summary;
  if (fields.contains("event")) {
    AddText(summary, fields["event"].get<std::string>(), Table(fields));
  } else {
    for (const auto& [name, value] : fields.items()) {
      if (name == "step" || name == "time") continue;
      if (value.is_number()) AddScalar(summary, name, value.get<double>());
      if (!value.is_object()) continue;
      for (const auto& [member, number] : value.items()) AddScalar(summary, name + "/" + member, number.get<double>());
    }
  }
  Write(EventAt(step_, time).Nested(kSummary, summary).text());
}

std::string EventFile::TakeComplaint() { return std::exchange(complaint_, {}); }

void EventFile::BeginSession(int64_t step, double time) {
  Write(EventAt(step, time).Nested(kSessionLog, Message().Integer(kSessionStatus, kSessionStart)).text());
}

void EventFile::Write(const std::string& event) {
  if (file_ < 0) return;
  const std::string record = Record(event);
  if (write(file_, record.data(), record.size()) == std::ssize(record)) return;
  complaint_ =
      fmt::format("{}: cannot write: {}; TensorBoard will miss the rest of this run", path_, std::strerror(errno));
  close(file_);
  file_ = -1;
}

}  // namespace espalier
