// Runs the real `bolt` as a user's shell would: arguments, streams, signals, terminals. Tests only.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace bolt::testing {

// A fresh folder under the system's temporary one, removed with all it holds.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

struct Ended {
  int status = -1;  // exit status, -1 if a signal ended it
  int signal = 0;
  std::string out, err;
};

// How the child is started, and what happens to it meanwhile.
struct Start {
  std::vector<std::string> args = {};
  std::optional<std::string> input = {};  // stdin's text; none: /dev/null
  bool close_stdin = false, close_stdout = false;
  std::string stdout_file = {};  // opened for writing instead of a pipe
  std::size_t read_at_most = 0;  // then the pipe's reading end is closed; 0: reads all
  std::vector<std::pair<std::string, std::string>> env = {};
  // Called at the start, whenever output has come and ten times a second; may send signals to the
  // process.
  std::function<void(pid_t pid, const std::string& out, const std::string& err)> watch = {};
  int limit_s = 60;          // then it is killed, and the status is -1
  std::string program = {};  // another build's executable; empty: bolt
};

// Receipts, history and caches go to `home`; nothing of the caller's environment but PATH is kept.
Ended run_bolt(const ScratchFolder& home, const Start& start);
Ended run_bolt(const ScratchFolder& home, const std::vector<std::string>& args);

// The receipts that lie in home's folder: their whole texts, by name. Other files there are an
// error.
std::vector<std::string> receipts_in(const ScratchFolder& home);

// The one receipt there; it is an error if there are more or none.
std::string only_receipt(const ScratchFolder& home);
// Whether a receipt's text says that this ended the reply.
bool says_stop(const std::string& receipt, const std::string& kind);

std::string file_bytes(const std::string& path);
void write_bytes(const std::string& path, const std::string& bytes);

// A prompt that the sample model answers at length.
inline const std::string kCount = "Count from 1 to 20.";

// bolt on a pseudo-terminal of 80 columns.
class Terminal {
 public:
  // out_file: stdout goes there (a FIFO is opened for both ends) instead of to the terminal.
  Terminal(const ScratchFolder& home, const std::vector<std::string>& args,
           const std::string& term = "xterm", const std::string& out_file = {});
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Types once the line editor listens: libedit shows its prompt a moment before it takes the keys.
  void type(const std::string& keys);
  // Reads until `text` has come after the last match; answers all since then, empty on the limit.
  std::string wait_for(const std::string& text, int limit_s = 30);
  // Waits for the end; the exit status, -1 if a signal ended it or it did not end.
  int wait_for_end(int limit_s = 30);
  bool echoes() const;  // whether the terminal shows what is typed, by itself
  pid_t pid() const { return pid_; }
  const std::string& all() const { return all_; }

 private:
  bool read_some(int wait_ms);

  const bool edits_;              // a line editor, unless the terminal is dumb
  pid_t leader_ = -1, pid_ = -1;  // of the session; bolt's
  int fd_ = -1;
  int report_ = -1;  // the leader writes bolt's pid, and its status when it has ended
  std::string all_;
  std::size_t seen_ = 0;
};

}  // namespace bolt::testing
