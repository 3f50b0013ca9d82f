// The terminal on which somebody watches this process, if there is one.
#pragma once

#include <optional>

namespace espalier {

/// A screen of lines that can be written again. Owns a descriptor of it.
class Terminal {
 public:
  /// The terminal that shows what is written to `descriptor`. None if that is a file or a pipe, if TERM is unset or
  /// "dumb", or if it is not known where the text goes. Open MPI gives every rank a terminal of its own and passes on
  /// what it reads there, so under a launcher only the launcher's standard output counts: it must be the parent of this
  /// process, and no option of its may change what it passes on.
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
