// The executable is opened before anything else could replace it; hashing runs beside the work.
#include "receipts/build_facts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <future>
#include <map>

#include "receipts/canonical.h"
#include "receipts/digest.h"
#include "receipts/status.h"

extern char** environ;

namespace bolt::receipts {
namespace {

// What cannot stay the same when a file's bytes change: the kernel alone sets ctime.
std::string identity(const struct stat& info) {
  return fmt::format("{}:{}:{}:{}.{:09}:{}.{:09}", info.st_dev, info.st_ino, info.st_size,
                     info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ctim.tv_sec,
                     info.st_ctim.tv_nsec);
}

std::string cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/bolt";
  const char* home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? std::string(home) + "/.cache/bolt" : std::string();
}

// Best effort: a cache that cannot be written only costs the next start some milliseconds.
void remember(const std::string& path, const std::string& entry) {
  const std::string temporary = fmt::format("{}.{}", path, ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const bool whole = ::write(fd, entry.data(), entry.size()) == static_cast<ssize_t>(entry.size());
  ::close(fd);
  if (!whole || ::rename(temporary.c_str(), path.c_str()) != 0) ::unlink(temporary.c_str());
}

struct Executable {
  int fd = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  const int error = errno;
  std::shared_future<std::string> hash =
      std::async(std::launch::async, [this] {
        if (fd < 0) {
          throw Failure(Status::fault,
                        std::string("/proc/self/exe: cannot open: ") + std::strerror(error));
        }
        return cached_file_sha256(fd, "/proc/self/exe");
      }).share();
};

Executable& executable() {
  static Executable the;
  return the;
}

int note_build_id(dl_phdr_info* info, std::size_t, void* out) {
  auto& ids = *static_cast<std::map<std::string, std::string>*>(out);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const std::uint8_t*>(info->dlpi_addr + header.p_vaddr);
    const std::uint8_t* end = at + header.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const std::uint8_t* name = at + sizeof note;
      const std::uint8_t* data = name + (note.n_namesz + 3) / 4 * 4;
      const std::uint8_t* next = data + (note.n_descsz + 3) / 4 * 4;
      if (next > end) break;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
          std::memcmp(name, "GNU", 4) == 0) {
        ids[info->dlpi_name] = hex(std::span<const std::uint8_t>(data, note.n_descsz));
      }
      at = next;
    }
  }
  return 0;
}

// Files mapped for execution, but the executable: path -> device and inode of what is mapped.
std::map<std::string, std::pair<dev_t, ino_t>> mapped_files() {
  std::map<std::string, std::pair<dev_t, ino_t>> files;
  std::ifstream maps("/proc/self/maps");
  std::string range, permissions, offset, device, line;
  ino_t inode = 0;
  while (maps >> range >> permissions >> offset >> device >> inode && std::getline(maps, line)) {
    const std::size_t path_at = line.find('/');
    if (path_at == std::string::npos || permissions.find('x') == std::string::npos) continue;
    const std::size_t colon = device.find(':');
    const auto part = [](const std::string& digits) {
      return static_cast<unsigned>(std::strtoul(digits.c_str(), nullptr, 16));
    };
    files[line.substr(path_at)] = {
        makedev(part(device.substr(0, colon)), part(device.substr(colon + 1))), inode};
  }
  struct stat own {};
  if (executable().fd >= 0 && ::fstat(executable().fd, &own) == 0) {
    std::erase_if(files, [&](const auto& file) { return file.second.second == own.st_ino; });
  }
  return files;
}

std::vector<Module> modules_now() {
  std::map<std::string, std::string> build_ids;
  dl_iterate_phdr(note_build_id, &build_ids);
  std::vector<Module> modules;
  for (const auto& [path, mapped] : mapped_files()) {
    Module module;
    module.name = path.substr(path.rfind('/') + 1);
    if (const auto id = build_ids.find(path); id != build_ids.end()) module.build_id = id->second;
    // A file replaced since it was mapped is not the one that runs: then only the build id counts.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat info {};
    if (fd >= 0 && ::fstat(fd, &info) == 0 && info.st_ino == mapped.second) {
      module.sha256 = cached_file_sha256(fd, path);
    }
    if (fd >= 0) ::close(fd);
    modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace

std::string cached_file_sha256(int fd, const std::string& name) {
  struct stat before {};
  if (::fstat(fd, &before) != 0) return sha256_fd_hex(fd, name);
  const std::string key = identity(before), folder = cache_folder();
  const std::string path = folder + "/hash-" + sha256_hex(key).substr(0, 16);
  if (!folder.empty()) {
    std::ifstream in(path);
    std::string found_key, found_hash;
    if (in >> found_key >> found_hash && found_key == key && digest_from_hex(found_hash)) {
      return found_hash;
    }
  }
  const std::string result = sha256_fd_hex(fd, name);
  struct stat after {};
  // A file changed within the clock's grain of its ctime could change again unseen.
  const bool settled = std::time(nullptr) - before.st_ctim.tv_sec > 2;
  if (!folder.empty() && settled && ::fstat(fd, &after) == 0 && identity(after) == key) {
    (void)::mkdir(folder.substr(0, folder.rfind('/')).c_str(), 0700);
    (void)::mkdir(folder.c_str(), 0700);
    remember(path, key + " " + result + "\n");
  }
  return result;
}

void start_build_facts() { (void)executable(); }

const std::string& executable_sha256() { return executable().hash.get(); }

Build build_facts(Build compiled) {
  compiled.exe = executable_sha256();
  compiled.modules = modules_now();
  return compiled;
}

std::vector<EnvEntry> environment_facts() {
  constexpr std::string_view kInClear[] = {"CUDA_VISIBLE_DEVICES", "CUDA_FORCE_PTX_JIT",
                                           "CUDA_DISABLE_PTX_JIT", "NVIDIA_TF32_OVERRIDE"};
  constexpr std::string_view kInjecting[] = {"LD_PRELOAD", "LD_AUDIT"};
  std::vector<EnvEntry> entries;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string_view pair = *at;
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals + 1 == pair.size()) continue;
    const std::string_view name = pair.substr(0, equals), value = pair.substr(equals + 1);
    const bool clear = std::ranges::find(kInClear, name) != std::end(kInClear);
    const bool injecting = std::ranges::find(kInjecting, name) != std::end(kInjecting);
    if (!clear && !injecting && !name.starts_with("CUDA_")) continue;
    if (first_bad_utf8(name) != std::string_view::npos) continue;  // no driver reads such a name
    EnvEntry entry;
    entry.name = name;
    // A value that is in clear but strange stays readable as a digest.
    if (clear && first_bad_utf8(value) == std::string_view::npos) {
      entry.value = value;
    } else {
      entry.sha256 = bind_hex(Binder(), "env", {value});
    }
    entries.push_back(std::move(entry));
  }
  std::ranges::sort(entries, {}, &EnvEntry::name);
  return entries;
}

bool forces_jit(const std::vector<EnvEntry>& env) {
  return std::ranges::any_of(env, [](const EnvEntry& entry) {
    return entry.name == "CUDA_FORCE_PTX_JIT" && entry.value != "0";
  });
}

std::string injected_by(const std::vector<EnvEntry>& env) {
  for (const EnvEntry& entry : env) {
    for (const char* name : {"LD_PRELOAD", "LD_AUDIT", "CUDA_INJECTION64_PATH"}) {
      if (entry.name == name) return name;
    }
  }
  return {};
}

}  // namespace bolt::receipts
