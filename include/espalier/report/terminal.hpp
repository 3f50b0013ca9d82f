// The terminal on which somebody watches this process, if there is one.
#pragma once

#include <optional>

namespace espalier {

/// A screen of lines that can be overwritten. Owns a descriptor of it.
class Terminal {
 public:
  /// The terminal that shows the output of `descriptor`. None if that is a file or a pipe, if TERM is unset or "dumb",
  /// or if it is unknown where the text goes. Open MPI gives every rank a terminal of its own and forwards its output,
  /// so under a launcher only the launcher's standard output counts: the launcher must be the parent of this process,
  /// and must have no option that changes the output.
  static std::optional<Terminal> Of(int descriptor);

  ~Terminal();
  Terminal(Terminal&& other) noexcept;
  Terminal& operator=(Terminal&&) = delete;

  /// Columns at this moment; 80 if the terminal does not say.
  int Width() const;

 private:
  explicit Terminal(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

/// True if text on the standard output may have colours: on a terminal that no launcher made, unless NO_COLOR is set;
/// everywhere if CLICOLOR_FORCE is set.
bool WantsColours();

}  // namespace espalier
