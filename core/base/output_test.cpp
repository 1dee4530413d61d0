#include "core/base/output.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>
#include <vector>

#include "core/base/file_map.h"
#include "core/base/sha256.h"
#include "core/base/testing/caught.h"

namespace bolt {
namespace {

namespace fs = std::filesystem;
using testing::caught;

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "bolt-output-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { remove_tree(path); }
  std::string operator/(const std::string& name) const { return path + "/" + name; }
  std::size_t n_entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
  std::string path;
};

TEST_CASE("output: an atomic file is there only after commit") {
  const Folder folder;
  {
    AtomicFile file(folder / "a");
    file.append(std::string_view("half"));
    CHECK(!path_exists(folder / "a"));
  }
  CHECK(folder.n_entries() == 0);
  write_file_atomically(folder / "a", "whole");
  CHECK(read_file(folder / "a") == "whole");
  CHECK(caught([&] { write_file_atomically(folder / "a", "x", /*replace=*/false); }).code ==
        Exit::usage);
  CHECK(read_file(folder / "a") == "whole");
  write_file_atomically(folder / "a", "again");
  CHECK(read_file(folder / "a") == "again");
  CHECK(folder.n_entries() == 1);
}

TEST_CASE("output: a link's target is replaced, not the link; devices are written as they are") {
  const Folder folder;
  write_file_atomically(folder / "real", "1");
  fs::create_symlink("real", folder / "link");
  write_file_atomically(folder / "link", "2");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(read_file(folder / "real") == "2");
  write_file_atomically("/dev/null", "x");
  CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("output: a full disk is named, and nothing is left (case 77)") {
  const auto error = caught([] { write_file_atomically("/dev/full", "x"); });
  CHECK(error.code == Exit::fault);
  CHECK(error.says("/dev/full: cannot write: the disk is full"));
}

TEST_CASE("output: a folder appears whole, replaces only when asked, leaves nothing behind") {
  const Folder folder;
  {
    AtomicFolder made(folder / "p", false);
    OutputFile(made.file("x")).append(std::string_view("1"));
    CHECK(!path_exists(folder / "p"));
  }
  CHECK(folder.n_entries() == 0);
  {
    AtomicFolder made(folder / "p/", false);
    OutputFile(made.file("x")).append(std::string_view("1"));
    made.commit();
  }
  CHECK(read_file(folder / "p/x") == "1");
  CHECK(caught([&] { AtomicFolder(folder / "p", false); }).code == Exit::usage);
  {
    AtomicFolder made(folder / "p", true);
    OutputFile(made.file("y")).append(std::string_view("2"));
    made.commit();
  }
  CHECK(!path_exists(folder / "p/x"));
  CHECK(read_file(folder / "p/y") == "2");
  CHECK(folder.n_entries() == 1);
}

TEST_CASE("output: folders of writers that died are removed, a living writer's is not") {
  const Folder folder;
  fs::create_directory(folder / ".p.partial-dead");
  AtomicFolder living(folder / "p", false);
  CHECK(!path_exists(folder / ".p.partial-dead"));
  {
    AtomicFolder other(folder / "p", false);
    CHECK(path_exists(living.path()));
  }
  living.commit();
  CHECK(path_exists(folder / "p"));
}

TEST_CASE("output: writers who begin and replace at once never lose their folders") {
  const Folder folder;
  std::atomic<int> failures{0};
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const auto error = caught([&] {
          AtomicFolder made(folder / "p", true);
          OutputFile out(made.file("f"));
          out.append("whole");
          out.close();
          made.commit();
        });
        if (error.code != Exit::ok) {
          ++failures;
          MESSAGE(error.line);
        }
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(failures == 0);
  CHECK(read_file(folder / "p/f") == "whole");
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
}

TEST_CASE("output: past the limit on file sizes a write is an error, and nothing is left") {
  const Folder folder;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto error = caught([&] { write_file_atomically(folder / "f", std::string(2000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(error.code == Exit::fault);
  CHECK(error.says("the limit on file sizes"));
  CHECK(fs::is_empty(folder.path));
}

TEST_CASE("output: of two writers of one new name the second loses") {
  const Folder folder;
  AtomicFolder first(folder / "p", false), second(folder / "p", false);
  first.commit();
  CHECK(caught([&] { second.commit(); }).code == Exit::usage);
  AtomicFile a(folder / "f", false), b(folder / "f", false);
  a.commit();
  CHECK(caught([&] { b.commit(); }).code == Exit::usage);
}

TEST_CASE("file_map: what is no regular file is refused without hanging") {
  const Folder folder;
  FileFacts facts;
  REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK(caught([&] { open_regular_file(folder / "fifo", facts); }).says("is a FIFO"));
  CHECK(caught([&] { open_regular_file(folder.path, facts); }).says("is a folder"));
  CHECK(caught([&] { open_regular_file("/dev/null", facts); }).says("is a device"));
  CHECK(caught([&] { open_regular_file(folder / "none", facts); }).code == Exit::input);
  write_file_atomically(folder / "f", "abc");
  fs::create_symlink("f", folder / "l");
  CHECK(caught([&] { open_regular_file(folder / "l", facts, false); }).says("symbolic link"));
  CHECK(FileMap(folder / "l").text() == "abc");
  write_file_atomically(folder / "empty", "");
  CHECK(FileMap(folder / "empty").size() == 0);
  std::byte four[4];
  const FileDescriptor f = open_regular_file(folder / "f", facts);
  CHECK(caught([&] { read_at(f, "f", 0, four); }).says("cut short"));
  CHECK(caught([&] { read_file(folder / "f", 2); }).says("too large"));
  CHECK(caught([&] { read_file(folder / "fifo"); }).says("is a FIFO, expected a regular file"));
  CHECK(read_file(folder / "l") == "abc");
  CHECK(read_stream(folder / "l") == "abc");
  CHECK(read_stream("/dev/null").empty());
  CHECK(caught([&] { read_stream(folder.path); }).says("is a folder"));
}

TEST_CASE("sha256: FIPS 180-4 vectors, in pieces too") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 sha;
  for (int i = 0; i < 1000; ++i) sha.update(std::string(1000, 'a'));
  CHECK(sha.hex() == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(sha.update("abc").hex() == sha256_hex("abc"));  // afresh
  CHECK(is_sha256_hex(sha256_hex("x")));
  CHECK(!is_sha256_hex(std::string(63, 'a')));
  CHECK(!is_sha256_hex(std::string(64, 'A')));
}

}  // namespace
}  // namespace bolt
