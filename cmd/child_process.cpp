// posix_spawn, a pipe for stderr, wait4 for the memory.
#include "cmd/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/base/file_map.h"

extern char** environ;

namespace bolt {

ChildEnd run_child(const std::string& program, const std::vector<std::string>& args) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(Exit::fault, fmt::format("{}: no pipe: {}", program, std::strerror(errno)));
  }
  const FileDescriptor reading(ends[0]);
  FileDescriptor writing(ends[1]);
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), 2);
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
  writing = FileDescriptor();
  ChildEnd end;
  char buffer[4096];
  for (ssize_t n; (n = ::read(reading.get(), buffer, sizeof buffer)) != 0;) {
    if (n > 0) end.errors.append(buffer, static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR) break;
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

}  // namespace bolt
