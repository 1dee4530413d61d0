// posix_spawn, a pipe for stderr, wait4 for the memory.
#include "cmd/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/base/error.h"
#include "core/base/file_map.h"

extern char** environ;

namespace bolt {
namespace {

struct Pipe {
  explicit Pipe(const std::string& program) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      throw Error(Exit::fault, fmt::format("{}: no pipe: {}", program, std::strerror(errno)));
    }
    reading = FileDescriptor(ends[0]);
    writing = FileDescriptor(ends[1]);
  }
  FileDescriptor reading, writing;
};

// Where a child's stdin, stdout and stderr go: a descriptor, or a path.
struct Direction {
  int descriptor = -1;
  std::string path;
};

pid_t spawn(const std::string& program, const std::vector<std::string>& args, const Direction& in,
            const Direction& out, const Direction& err) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  const auto direct = [&actions](const Direction& stream, int to) {
    if (stream.path.empty()) {
      ::posix_spawn_file_actions_adddup2(&actions, stream.descriptor, to);
    } else {
      ::posix_spawn_file_actions_addopen(&actions, to, stream.path.c_str(),
                                         to == 0 ? O_RDONLY : O_WRONLY | O_CREAT | O_TRUNC, 0600);
    }
  };
  direct(in, 0);
  direct(out, 1);
  direct(err, 2);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    throw Error(Exit::fault, fmt::format("{}: cannot run it: {}", program, std::strerror(error)));
  }
  return pid;
}

// The next bytes, appended; false at the end.
bool read_more(int descriptor, std::string& to) {
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(descriptor, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to.append(buffer, static_cast<std::size_t>(n));
    return true;
  }
}

}  // namespace

ChildEnd run_child(const std::string& program, const std::vector<std::string>& args) {
  Pipe errors(program);
  const pid_t pid =
      spawn(program, args, {-1, "/dev/null"}, {-1, "/dev/null"}, {errors.writing.get(), {}});
  errors.writing = FileDescriptor();
  ChildEnd end;
  while (read_more(errors.reading.get(), end.errors)) {
  }
  int state = 0;
  rusage usage{};
  while (::wait4(pid, &state, 0, &usage) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(state)) end.status = WEXITSTATUS(state);
  if (WIFSIGNALED(state)) end.signal = WTERMSIG(state);
  end.peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  return end;
}

LineChild::LineChild(const std::string& program, const std::vector<std::string>& args,
                     const std::string& errors_file)
    : program_(program), errors_file_(errors_file) {
  Pipe in(program), out(program);
  pid_ = spawn(program, args, {in.reading.get(), {}}, {out.writing.get(), {}}, {-1, errors_file});
  to_ = std::move(in.writing);
  from_ = std::move(out.reading);
}

LineChild::~LineChild() {
  to_ = FileDescriptor();
  from_ = FileDescriptor();
  int state = 0;
  while (pid_ >= 0 && ::waitpid(pid_, &state, 0) < 0 && errno == EINTR) {
  }
}

std::string LineChild::ask(const std::string& line) {
  const std::string whole = line + "\n";
  for (std::size_t done = 0; done < whole.size();) {
    const ssize_t n = ::write(to_.get(), whole.data() + done, whole.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_ended();
    done += static_cast<std::size_t>(n);
  }
  std::size_t end;
  while ((end = read_.find('\n')) == std::string::npos) {
    if (!read_more(from_.get(), read_)) fail_ended();
  }
  std::string answer = read_.substr(0, end);
  read_.erase(0, end + 1);
  return answer;
}

void LineChild::fail_ended() {
  std::string errors = path_exists(errors_file_) ? read_file(errors_file_) : std::string();
  while (!errors.empty() && errors.back() == '\n') errors.pop_back();
  throw Error(Exit::fault,
              fmt::format("{}: ended early: {}", program_, errors.substr(errors.rfind('\n') + 1)));
}

std::uint64_t LineChild::peak_bytes() const {
  std::ifstream status(fmt::format("/proc/{}/status", pid_));
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace bolt
