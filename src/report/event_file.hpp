// Writes metrics.jsonl as an event file of TensorBoard: a sequence of records (TFRecord: length, its masked CRC-32C,
// bytes, their masked CRC-32C), each an Event of tensorflow/core/util/event.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

class EventFile {
 public:
  /// Creates a new file in `folder`. TensorBoard then drops the values of `first_step` and later steps in earlier
  /// files. Nothing throws: if the file cannot be created or written, there is a complaint, and writing ends.
  EventFile(const std::string& folder, int64_t first_step, double time);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// A line of metrics.jsonl, written at `time` (seconds since 1970). Numbers of a line with a step become scalars of
  /// the same names, members of an object "object/member"; an event becomes a text with its fields, at its own step or
  /// the last line's. Nulls are left out.
  void Add(std::string_view line, double time);

  /// Why writing ended, once; empty if it did not.
  std::string TakeComplaint();

 private:
  /// TensorBoard drops earlier values of this step and later ones.
  void BeginSession(int64_t step, double time);
  void Write(const std::string& event);

  std::string path_;
  std::string complaint_;
  int file_ = -1;
  int64_t step_;  ///< step of the last line
};

}  // namespace espalier
