// fork and exec, poll over both pipes; the executable and its sample package are the build's own.
#include "cmd/testing/child.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

namespace bolt::testing {
namespace {

using Clock = std::chrono::steady_clock;

const std::string kBolt = BOLT_BINARY_DIR "/bolt";

std::vector<std::string> environment(const ScratchFolder& home,
                                     const std::vector<std::pair<std::string, std::string>>& more) {
  const char* path = std::getenv("PATH");
  std::vector<std::string> env = {"PATH=" + std::string(path != nullptr ? path : ""),
                                  "HOME=" + home.path(), "BOLT_RECEIPTS=" + home.file("receipts"),
                                  "XDG_STATE_HOME=" + home.file("state"),
                                  // Shared, so that the hash of the executable is taken once.
                                  "XDG_CACHE_HOME=" BOLT_BINARY_DIR "/test-cache"};
  for (const auto& [name, value] : more) env.push_back(name + "=" + value);
  return env;
}

// After fork: becomes bolt.
[[noreturn]] void become_bolt(std::vector<std::string> args, std::vector<std::string> env,
                              const std::string& program = kBolt) {
  args.insert(args.begin(), program);
  std::vector<char*> argv, envp;
  for (std::string& arg : args) argv.push_back(arg.data());
  for (std::string& variable : env) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  ::execve(program.c_str(), argv.data(), envp.data());
  ::_exit(125);
}

int wait_status(int status, int& signal) {
  signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "bolt-cmd-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Ended run_bolt(const ScratchFolder& home, const Start& start) {
  std::array<int, 2> in{}, out{}, err{};
  REQUIRE(::pipe(in.data()) == 0);
  REQUIRE(::pipe(out.data()) == 0);
  REQUIRE(::pipe(err.data()) == 0);
  const std::vector<std::string> env = environment(home, start.env);
  // A signal sent before exec must meet the default, not the test runner's handler.
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(start.input ? in[0] : null, 0);
    ::dup2(start.stdout_file.empty()
               ? out[1]
               : ::open(start.stdout_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600),
           1);
    ::dup2(err[1], 2);
    for (int fd = 3; fd < 64; ++fd) ::close(fd);
    if (start.close_stdin) ::close(0);
    if (start.close_stdout) ::close(1);
    become_bolt(start.args, env, start.program.empty() ? kBolt : start.program);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  ::close(in[0]);
  ::close(out[1]);
  ::close(err[1]);
  if (start.input) {
    // Written by a child of its own, so that neither side waits for the other.
    if (::fork() == 0) {
      std::signal(SIGPIPE, SIG_IGN);
      std::string_view rest = *start.input;
      while (!rest.empty()) {
        const ssize_t n = ::write(in[1], rest.data(), rest.size());
        if (n <= 0) break;
        rest.remove_prefix(static_cast<std::size_t>(n));
      }
      ::_exit(0);
    }
  }
  ::close(in[1]);

  Ended ended;
  if (start.watch) start.watch(pid, ended.out, ended.err);
  const auto deadline = Clock::now() + std::chrono::seconds(start.limit_s);
  std::array<pollfd, 2> pipes = {{{out[0], POLLIN, 0}, {err[0], POLLIN, 0}}};
  while (pipes[0].fd >= 0 || pipes[1].fd >= 0) {
    if (::poll(pipes.data(), pipes.size(), 100) < 0) break;
    for (std::size_t i = 0; i < pipes.size(); ++i) {
      if (pipes[i].fd < 0 || pipes[i].revents == 0) continue;
      std::array<char, 1 << 16> buffer;
      const std::size_t room =
          i == 0 && start.read_at_most > 0 ? start.read_at_most - ended.out.size() : buffer.size();
      const ssize_t n = ::read(pipes[i].fd, buffer.data(), std::min(room, buffer.size()));
      if (n > 0)
        (i == 0 ? ended.out : ended.err).append(buffer.data(), static_cast<std::size_t>(n));
      const bool enough =
          i == 0 && start.read_at_most > 0 && ended.out.size() >= start.read_at_most;
      if (n <= 0 || enough) {
        ::close(pipes[i].fd);
        pipes[i].fd = -1;
      }
    }
    if (start.watch) start.watch(pid, ended.out, ended.err);
    if (Clock::now() > deadline) {
      ::kill(pid, SIGKILL);
      break;
    }
  }
  for (const pollfd& pipe : pipes) {
    if (pipe.fd >= 0) ::close(pipe.fd);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ended.status = wait_status(status, ended.signal);
  if (start.input) ::waitpid(-1, nullptr, WNOHANG);
  return ended;
}

Ended run_bolt(const ScratchFolder& home, const std::vector<std::string>& args) {
  Start start;
  start.args = args;
  return run_bolt(home, start);
}

std::vector<std::string> receipts_in(const ScratchFolder& home) {
  std::vector<std::string> texts;
  if (!std::filesystem::exists(home.file("receipts"))) return texts;
  for (const auto& entry : std::filesystem::directory_iterator(home.file("receipts"))) {
    CHECK_MESSAGE(entry.path().string().ends_with(".bolt.jsonl"),
                  "left over: ", entry.path().string());
    std::ifstream file(entry.path(), std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

std::string only_receipt(const ScratchFolder& home) {
  const std::vector<std::string> receipts = receipts_in(home);
  REQUIRE(receipts.size() == 1);
  return receipts.front();
}

bool says_stop(const std::string& receipt, const std::string& kind) {
  return receipt.find("\"stop\":{\"kind\":\"" + kind + "\"") != std::string::npos;
}

std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

Terminal::Terminal(const ScratchFolder& home, const std::vector<std::string>& args,
                   const std::string& term, const std::string& out_file)
    : edits_(term != "dumb") {
  const std::vector<std::string> env = environment(home, {{"TERM", term}});
  winsize size = {24, 80, 0, 0};
  std::array<int, 2> report{};
  REQUIRE(::pipe2(report.data(), O_CLOEXEC) == 0);
  leader_ = ::forkpty(&fd_, nullptr, nullptr, &size);
  REQUIRE(leader_ >= 0);
  if (leader_ == 0) {
    // A shell's part: when the leader of a session ends, the kernel resets its terminal, and
    // nobody could see how bolt left it.
    const pid_t bolt = ::fork();
    if (bolt == 0) {
      const rlimit no_core = {0, 0};
      ::setrlimit(RLIMIT_CORE, &no_core);
      if (!out_file.empty()) ::dup2(::open(out_file.c_str(), O_RDWR | O_CLOEXEC), 1);
      become_bolt(args, env);
    }
    for (const int signal : {SIGINT, SIGQUIT, SIGTSTP}) std::signal(signal, SIG_IGN);
    int status = 0;
    if (::write(report[1], &bolt, sizeof bolt) != sizeof bolt) ::_exit(1);
    ::waitpid(bolt, &status, 0);
    if (::write(report[1], &status, sizeof status) != sizeof status) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(report[1]);
  report_ = report[0];
  REQUIRE(::read(report_, &pid_, sizeof pid_) == sizeof pid_);
}

bool Terminal::echoes() const {
  termios mode = {};
  REQUIRE(::tcgetattr(fd_, &mode) == 0);
  return (mode.c_lflag & ECHO) != 0;
}

Terminal::~Terminal() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
  ::kill(leader_, SIGKILL);
  ::waitpid(leader_, nullptr, 0);
  ::close(report_);
  ::close(fd_);
}

void Terminal::type(const std::string& keys) {
  const auto deadline = Clock::now() + std::chrono::seconds(2);
  while (edits_ && echoes() && Clock::now() < deadline) read_some(5);
  REQUIRE(::write(fd_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
}

bool Terminal::read_some(int wait_ms) {
  pollfd waiting = {fd_, POLLIN, 0};
  if (::poll(&waiting, 1, wait_ms) <= 0) return true;
  std::array<char, 1 << 14> buffer;
  const ssize_t n = ::read(fd_, buffer.data(), buffer.size());
  if (n <= 0) return false;
  all_.append(buffer.data(), static_cast<std::size_t>(n));
  return true;
}

std::string Terminal::wait_for(const std::string& text, int limit_s) {
  const auto deadline = Clock::now() + std::chrono::seconds(limit_s);
  for (;;) {
    const std::size_t at = all_.find(text, seen_);
    if (at != std::string::npos) {
      const std::string between = all_.substr(seen_, at + text.size() - seen_);
      seen_ = at + text.size();
      return between;
    }
    if (Clock::now() > deadline || !read_some(50)) {
      const std::size_t n = all_.size() - seen_;
      MESSAGE("waited for \"", text,
              "\", last came: ", all_.substr(n > 300 ? all_.size() - 300 : seen_));
      return {};
    }
  }
}

int Terminal::wait_for_end(int limit_s) {
  const auto deadline = Clock::now() + std::chrono::seconds(limit_s);
  for (;;) {
    read_some(20);
    int status = 0, signal = 0;
    pollfd ended = {report_, POLLIN, 0};
    if (::poll(&ended, 1, 0) == 1 && ::read(report_, &status, sizeof status) == sizeof status) {
      while (read_some(0) && Clock::now() < deadline && ::poll(nullptr, 0, 0) == 0) {
        pollfd left = {fd_, POLLIN, 0};
        if (::poll(&left, 1, 0) <= 0 || (left.revents & POLLIN) == 0) break;
      }
      pid_ = -1;
      return wait_status(status, signal);
    }
    if (Clock::now() > deadline) return -1;
  }
}

}  // namespace bolt::testing
