// Standard output and standard error as a command writes them: answers on stdout, each byte
// checked; all else on stderr, best effort. Colours and terminals are asked about here, nowhere
// else.
#pragma once

#include <stdexcept>
#include <string_view>

namespace bolt {

// The reader of stdout went away: main ends quietly, as SIGPIPE would have.
struct ReaderGone : std::runtime_error {
  ReaderGone() : std::runtime_error("stdout: the reader went away") {}
};

// Called first of all: a descriptor 0, 1 or 2 that is closed is taken, so that no file that is
// opened later gets its number; SIGPIPE is ignored, so that a receipt can still be sealed.
void claim_standard_streams();

// Writes to stdout now, whole. Throws ReaderGone, or Error(fault) that names the cause.
void write_out(std::string_view text);
// Throws ReaderGone if stdout is a pipe that nobody reads any more: looked at where nothing is to
// be written yet, in a long prompt say.
void check_reader();
// Throws Error(fault) if stdout was closed or is not open for writing: before the work, not after
// it.
void require_stdout();
// Writes to stderr; a failure there is nobody's business.
void write_err(std::string_view text) noexcept;

// A pipe or a socket: where its text goes, to a file or to this very terminal, cannot be known.
bool stdout_is_pipe();
bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();
// Both write to one file, pipe or device, as after 2>&1.
bool stderr_is_stdout();

enum class Color { automatic, always, never };
// Whether escape sequences belong on the stream: asked for, or a capable terminal (TERM set and not
// dumb, NO_COLOR unset).
bool use_color(Color color, int descriptor);

}  // namespace bolt
