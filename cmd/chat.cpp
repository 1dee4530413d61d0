// The conversation is kept as turns and rendered anew for each reply, exactly as the model's
// template does; the engine runs only what its sequence does not hold yet.
#include "cmd/chat.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <vector>

#include "cmd/echo_off.h"
#include "cmd/line_reader.h"
#include "cmd/prompt.h"
#include "cmd/report.h"
#include "cmd/status_line.h"
#include "cmd/terminal_text.h"
#include "core/base/interrupt.h"

namespace bolt {
namespace {

constexpr int kInsistentPresses = 3;  // of Ctrl-C in one reply: the process ends without waiting
volatile std::sig_atomic_t n_presses = 0;

// Ctrl-C stops a reply or clears a line, again and again; other signals stay main's.
class ChatInterrupts {
 public:
  ChatInterrupts() {
    struct sigaction action = {};
    sigemptyset(&action.sa_mask);
    action.sa_handler = [](int) {
      n_presses = n_presses + 1;
      interrupt_flag().store(true, std::memory_order_relaxed);
      if (n_presses < kInsistentPresses) return;
      EchoOff::restore();
      ::_exit(static_cast<int>(Exit::interrupted));
    };
    sigaction(SIGINT, &action, &old_);
  }
  ~ChatInterrupts() { sigaction(SIGINT, &old_, nullptr); }
  ChatInterrupts(const ChatInterrupts&) = delete;
  ChatInterrupts& operator=(const ChatInterrupts&) = delete;

  // Whether Ctrl-C was pressed since; false for SIGTERM or SIGHUP, which leave the flag set.
  bool take() {
    if (n_presses == 0) return false;
    n_presses = 0;
    interrupt_flag() = false;
    return true;
  }

 private:
  struct sigaction old_ = {};
};

// $XDG_STATE_HOME/bolt/history, its folder made; empty where no home is known.
std::string history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::string folder;
  if (state != nullptr && *state == '/') {
    folder = std::string(state) + "/bolt";
  } else if (home != nullptr && *home == '/') {
    folder = std::string(home) + "/.local/state/bolt";
  } else {
    return {};
  }
  for (std::size_t at = folder.find('/', 1); at != std::string::npos;
       at = folder.find('/', at + 1)) {
    (void)::mkdir(folder.substr(0, at).c_str(), 0755);
  }
  (void)::mkdir(folder.c_str(), 0700);
  return folder + "/history";
}

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

constexpr const char* kHelp =
    "/system TEXT   start afresh with this system turn; spaces alone clear it, nothing shows it\n"
    "/reset         forget the conversation, keep the system turn\n"
    "/stats         counters and speed of the last reply\n"
    "/receipt       where the last reply's receipt lies\n"
    "/quit          leave, as Ctrl-D does\n"
    "A line that ends in \\ goes on; a pasted text is one message. Ctrl-C stops a reply.\n"
    "A message that starts with / is typed with a space before it.\n";

// Those that take nothing.
constexpr std::string_view kPlainCommands[] = {"/help",    "/reset", "/stats",
                                               "/receipt", "/quit",  "/exit"};

class Chat {
 public:
  Chat(Session& session, const Task& task, const ChatSettings& options)
      : session_(session),
        task_(task),
        options_(options),
        color_(use_color(options.color, STDOUT_FILENO)),
        reader_(history_file()),
        sequence_(session.engine().new_sequence()) {
    set_system(options.system);
  }

  Exit loop() {
    if (!options_.quiet) {
      write_err(fmt::format("{}; /help lists commands{}\n", session_.config().name,
                            reader_.edits() ? "" : "; no line editing on this terminal"));
    }
    for (std::string message;;) {
      const LineReader::Result result = read_message(message);
      if (result == LineReader::Result::end) {
        write_out("\n");
        return Exit::ok;
      }
      if (result == LineReader::Result::interrupted) {
        write_out("\n");
        if (!interrupts_.take()) return Exit::interrupted;
        if (was_interrupted_) write_err("(/quit or Ctrl-D leaves)\n");
        was_interrupted_ = true;
        continue;
      }
      was_interrupted_ = false;
      if (is_blank(message)) continue;
      reader_.remember(message);
      if (message.starts_with('/')) {
        if (!command(message)) return Exit::ok;
        continue;
      }
      reply_to(message.starts_with(" /") ? message.substr(1) : message);
      if (interrupt_flag() && !interrupts_.take()) return Exit::interrupted;
    }
  }

 private:
  // A line that ends in a backslash goes on in the next one.
  LineReader::Result read_message(std::string& message) {
    message.clear();
    for (std::string line;;) {
      const LineReader::Result result = reader_.read(message.empty() ? "> " : ". ", line);
      if (result != LineReader::Result::line) return result;
      if (!line.ends_with('\\')) {
        message += line;
        return result;
      }
      message += line.substr(0, line.size() - 1) + "\n";
    }
  }

  void set_system(const std::optional<std::string>& text) {
    system_ = text;
    turns_.clear();
    said_.clear();
    sequence_->reset();
    if (text) add_turn("system", *text);
  }

  void add_turn(const std::string& role, const std::string& content) {
    Message turn;
    turn.role = role;
    turn.content = content;
    turns_.push_back(std::move(turn));
  }

  // Returns false to leave.
  bool command(const std::string& line) {
    const std::size_t space = line.find_first_of(" \n");
    const std::string name = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (std::ranges::find(kPlainCommands, name) != std::end(kPlainCommands) && !is_blank(rest)) {
      write_err(fmt::format("{} takes no words after it\n", name));
      return true;
    }
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help") {
      write_err(kHelp);
    } else if (name == "/system") {
      if (rest.empty()) {
        write_err(system_ ? inert(*system_) + "\n" : "no system turn\n");
      } else if (is_blank(rest)) {
        set_system(std::nullopt);
        write_err("no system turn now; the conversation starts afresh\n");
      } else {
        set_system(rest);
        write_err("system turn set; the conversation starts afresh\n");
      }
    } else if (name == "/reset") {
      set_system(system_);
      write_err("the conversation starts afresh\n");
    } else if (name == "/stats") {
      write_err(last_ ? counter_lines(*last_) + last_line(*last_) + "\n" : "no reply yet\n");
    } else if (name == "/receipt") {
      write_err(last_ ? last_->receipt.path + "\n" : "no reply yet\n");
    } else {
      write_err(fmt::format("unknown command {}; /help lists them\n", inert(name)));
    }
    return true;
  }

  void reply_to(const std::string& message) {
    add_turn("user", message);
    try {
      const Outcome outcome = answer();
      if (outcome.text.empty() && outcome.stop == "interrupted") {
        turns_.pop_back();  // nothing was said: as if it had not been asked
      } else {
        add_turn("assistant", outcome.text);
        said_ = task_.prompt_ids;
        said_.insert(said_.end(), outcome.reply.ids.begin(), outcome.reply.ids.end());
      }
      last_ = outcome;
    } catch (const Error& error) {
      // Of this turn alone: a prompt too long, bytes that are not UTF-8.
      if (error.code != Exit::usage && error.code != Exit::input) throw;
      turns_.pop_back();
      write_err(std::string("bolt: ") + error.what() + "\n");
    }
  }

  Outcome answer() {
    const EchoOff quiet_keys;
    set_chat_prompt(task_, session_, turns_, options_.thinking, said_);
    TerminalText shown(/*terminal=*/true, color_, options_.thinking);
    StatusLine status(!options_.quiet);
    LiveLine live(static_cast<std::int64_t>(task_.prompt_ids.size()));
    Listener listener;
    listener.text = [&](const std::string& piece) {
      status.clear();
      write_out(shown.push(piece));
      status.again();
    };
    listener.progress = [&](const Progress& progress) {
      if (status.due()) status.show(live.text(progress));
    };
    Outcome outcome = session_.answer(*sequence_, task_, listener, interrupt_flag());
    status.clear();
    write_out(shown.finish() + (shown.mid_line() ? "\n" : ""));
    if (options_.verbose) write_err(counter_lines(outcome) + session_.cost_line());
    if (!options_.quiet) write_err(dim(last_line(outcome)) + "\n");
    if (outcome.stop == "error") {
      write_err(
          fmt::format("bolt: the logits for position {} are not finite: the reply ends there\n",
                      outcome.reply.error_position));
    }
    return outcome;
  }

  std::string dim(const std::string& text) const {
    return use_color(options_.color, STDERR_FILENO) ? "\033[2m" + text + "\033[0m" : text;
  }

  Session& session_;
  Task task_;
  const ChatSettings& options_;
  bool color_;
  ChatInterrupts interrupts_;
  LineReader reader_;
  std::unique_ptr<Sequence> sequence_;
  std::optional<std::string> system_;
  std::vector<Message> turns_;
  std::vector<int> said_;  // ids of all turns so far
  std::optional<Outcome> last_;
  bool was_interrupted_ = false;
};

}  // namespace

Exit chat(Session& session, const Task& task, const ChatSettings& options) {
  return Chat(session, task, options).loop();
}

}  // namespace bolt
