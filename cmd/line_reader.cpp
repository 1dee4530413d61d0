// libedit's line editor fed by our own reader, which sees Ctrl-C, window changes and bracketed
// pastes (ESC[200~ ... ESC[201~) before libedit does.
#include "cmd/line_reader.h"

#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "cmd/streams.h"
#include "core/base/interrupt.h"
#include "core/text/utf8.h"

namespace bolt {
namespace {

constexpr int kHistoryLines = 1000;
// A pasted newline while it is edited: SYMBOL FOR NEWLINE, one column wide.
constexpr wchar_t kPastedNewline = L'\u2424';
constexpr std::string_view kPastedNewlineUtf8 = "\u2424";
constexpr std::string_view kPasteBegin = "\033[200~", kPasteEnd = "\033[201~";
// How long after ESC the rest of a key's sequence may take before ESC was a key of its own.
constexpr int kEscapeMs = 30;

volatile std::sig_atomic_t window_changed = 0, continued = 0;

// Handlers for as long as a line is edited; SIGINT is the chat's own.
class EditingSignals {
 public:
  EditingSignals() {
    struct sigaction action = {};
    sigemptyset(&action.sa_mask);
    action.sa_handler = [](int) { window_changed = 1; };
    sigaction(SIGWINCH, &action, &old_window_);
    action.sa_handler = [](int) { continued = 1; };
    sigaction(SIGCONT, &action, &old_continue_);
  }
  ~EditingSignals() {
    sigaction(SIGWINCH, &old_window_, nullptr);
    sigaction(SIGCONT, &old_continue_, nullptr);
  }
  EditingSignals(const EditingSignals&) = delete;
  EditingSignals& operator=(const EditingSignals&) = delete;

 private:
  struct sigaction old_window_ = {}, old_continue_ = {};
};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

std::string to_utf8(const wchar_t* text) {
  std::string out;
  for (; *text != L'\0'; ++text) append_utf8(static_cast<char32_t>(*text), out);
  return out;
}

std::wstring to_wide(std::string_view text) {
  std::wstring out;
  for (std::size_t at = 0; at < text.size();) {
    out += static_cast<wchar_t>(next_code_point(text, at));
  }
  return out;
}

// What stdin gives next: a byte, or why there is none.
enum class Byte { got, none, end, interrupted };

bool can_edit() {
  const char* term = std::getenv("TERM");
  if (term == nullptr || *term == '\0' || std::strcmp(term, "dumb") == 0) return false;
  if (!stdin_is_terminal() || !stdout_is_terminal()) return false;
  // libedit prints wide characters through the locale; C.UTF-8 is there on every glibc system.
  for (const char* name : {"", "C.UTF-8", "C.utf8", "en_US.UTF-8"}) {
    if (std::setlocale(LC_CTYPE, name) != nullptr &&
        std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace

class LineReader::Editor {
 public:
  explicit Editor(const std::string& history_file) : history_file_(history_file) {
    editor_ = el_init("bolt", stdin, stdout, stderr);
    history_ = history_winit();
    if (editor_ == nullptr || history_ == nullptr) throw std::bad_alloc();
    HistEventW event;
    history_w(history_, &event, H_SETSIZE, kHistoryLines);
    history_w(history_, &event, H_SETUNIQUE, 1);
    if (!history_file_.empty()) history_w(history_, &event, H_LOAD, history_file_.c_str());
    el_wset(editor_, EL_CLIENTDATA, this);
    el_wset(editor_, EL_EDITOR, L"emacs");
    el_wset(editor_, EL_HIST, history_w, history_);
    el_wset(editor_, EL_PROMPT_ESC, prompt_of, L'\1');
    el_wset(editor_, EL_GETCFN, next_character);
    // What the cursor keys and Home, End, Delete send, beyond what terminfo says.
    bind(L"^I", L"ed-insert");
    bind(L"^R", L"em-inc-search-prev");
    bind(L"\\e[3~", L"ed-delete-next-char");
    bind(L"\\e[H", L"ed-move-to-beg");
    bind(L"\\e[F", L"ed-move-to-end");
    bind(L"\\e[1~", L"ed-move-to-beg");
    bind(L"\\e[4~", L"ed-move-to-end");
    bind(L"\\e[1;5C", L"em-next-word");
    bind(L"\\e[1;5D", L"ed-prev-word");
  }
  ~Editor() {
    save_history();
    history_wend(history_);
    el_end(editor_);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  Result read(const std::string& prompt, std::string& line) {
    prompt_ = to_wide(prompt);
    last_ = Byte::got;
    const EditingSignals signals;
    write_out("\033[?2004h");  // pastes come in brackets
    int n = 0;
    const wchar_t* typed = el_wgets(editor_, &n);
    write_out("\033[?2004l");
    if (last_ == Byte::interrupted) {
      el_wset(editor_, EL_PREP_TERM, 0);
      el_reset(editor_);
      pending_.clear();
      pasting_ = false;
      return Result::interrupted;
    }
    if (typed == nullptr || n <= 0) return Result::end;
    line = to_utf8(typed);
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    replace_all(line, kPastedNewlineUtf8, "\n");
    return Result::line;
  }

  void remember(const std::string& line) {
    HistEventW event;
    std::string shown = line;
    replace_all(shown, "\n", kPastedNewlineUtf8);
    history_w(history_, &event, H_ENTER, to_wide(shown).c_str());
    changed_ = true;
  }

 private:
  void bind(const wchar_t* key, const wchar_t* command) {
    el_wset(editor_, EL_BIND, key, command, nullptr);
  }

  static Editor* self(EditLine* editor) {
    void* data = nullptr;
    el_wget(editor, EL_CLIENTDATA, &data);
    return static_cast<Editor*>(data);
  }
  static wchar_t* prompt_of(EditLine* editor) { return self(editor)->prompt_.data(); }

  // One raw byte; waits at most `wait_ms` (-1: for ever).
  Byte next_byte(unsigned char& byte, int wait_ms) {
    for (;;) {
      if (continued != 0) {  // back from Ctrl-Z: the terminal's mode and the line are ours again
        continued = 0;
        el_wset(editor_, EL_PREP_TERM, 1);
        el_wset(editor_, EL_REFRESH);
      }
      if (window_changed != 0) {
        window_changed = 0;
        el_resize(editor_);
      }
      if (interrupt_flag()) return Byte::interrupted;
      pollfd waiting = {STDIN_FILENO, POLLIN, 0};
      const int ready = ::poll(&waiting, 1, wait_ms);
      if (ready == 0) return Byte::none;
      if (ready < 0 && errno == EINTR) continue;
      const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
      if (n == 1) return Byte::got;
      if (n == 0 || errno != EINTR) return Byte::end;
    }
  }

  // Looks for `sequence` after its first byte, ESC, was read; what was read of another key waits
  // its turn in pending_.
  bool follows(std::string_view sequence) {
    std::string read(1, '\033');
    while (read.size() < sequence.size() && sequence.starts_with(read)) {
      unsigned char byte = 0;
      if (next_byte(byte, kEscapeMs) != Byte::got) break;
      read += static_cast<char>(byte);
    }
    if (read == sequence) return true;
    pending_.insert(pending_.end(), read.begin(), read.end());
    return false;
  }

  // The next byte of a key or of a paste; the brackets themselves are taken out.
  Byte next_key_byte(unsigned char& byte) {
    for (;;) {
      if (!pending_.empty()) {
        byte = static_cast<unsigned char>(pending_.front());
        pending_.pop_front();
        return Byte::got;
      }
      const Byte read = next_byte(byte, -1);
      if (read != Byte::got || byte != 0x1B) return read;
      if (follows(pasting_ ? kPasteEnd : kPasteBegin)) pasting_ = !pasting_;
    }
  }

  Byte next_wide(wchar_t& out) {
    for (;;) {
      std::string bytes;
      Utf8State state;
      for (;;) {
        unsigned char byte = 0;
        const Byte read = next_key_byte(byte);
        if (read != Byte::got) return read;
        bytes += static_cast<char>(byte);
        const Utf8State::Step step = state.take(byte);
        if (step == Utf8State::Step::complete) break;
        if (step == Utf8State::Step::refused) bytes.clear();
      }
      std::size_t at = 0;
      out = static_cast<wchar_t>(next_code_point(bytes, at));
      if (!pasting_) return Byte::got;
      if (out == L'\r') out = L'\n';
      if (out == L'\n') {
        out = kPastedNewline;
        return Byte::got;
      }
      if (out == L'\t') out = L' ';
      if (out >= 0x20 && out != 0x7F) return Byte::got;  // other control keys would edit: left out
    }
  }

  static int next_character(EditLine* editor, wchar_t* out) {
    Editor* self = Editor::self(editor);
    wchar_t c = 0;
    self->last_ = self->next_wide(c);
    if (self->last_ == Byte::got) {
      *out = c;
      return 1;
    }
    return self->last_ == Byte::end ? 0 : -1;
  }

  // Written beside and renamed, so that a crash leaves the old one.
  void save_history() {
    if (history_file_.empty() || !changed_) return;
    const std::string temporary = history_file_ + ".new";
    const int fd =
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    (void)::close(fd);
    HistEventW event;
    if (history_w(history_, &event, H_SAVE, temporary.c_str()) < 0 ||
        ::rename(temporary.c_str(), history_file_.c_str()) != 0) {
      (void)::unlink(temporary.c_str());
    }
  }

  std::string history_file_;
  EditLine* editor_ = nullptr;
  HistoryW* history_ = nullptr;
  std::wstring prompt_;
  std::deque<char> pending_;  // read ahead
  bool pasting_ = false, changed_ = false;
  Byte last_ = Byte::got;
};

LineReader::LineReader(const std::string& history_file) {
  if (can_edit()) editor_ = std::make_unique<Editor>(history_file);
}

LineReader::~LineReader() = default;

bool LineReader::edits() const { return editor_ != nullptr; }

void LineReader::remember(const std::string& line) {
  if (editor_) editor_->remember(line);
}

LineReader::Result LineReader::read(const std::string& prompt, std::string& line) {
  if (editor_) return editor_->read(prompt, line);
  write_out(prompt);
  line.clear();
  for (;;) {
    char c = 0;
    if (interrupt_flag()) return Result::interrupted;
    const ssize_t n = ::read(STDIN_FILENO, &c, 1);
    if (n == 1) {
      if (c == '\n') return Result::line;
      line += c;
    } else if (n == 0) {
      return line.empty() ? Result::end : Result::line;
    } else if (errno != EINTR) {
      return Result::end;
    }
  }
}

}  // namespace bolt
