#include "receipts/write.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "receipts/build_facts.h"
#include "receipts/compare.h"
#include "receipts/library.h"
#include "receipts/prune.h"
#include "receipts/session.h"
#include "receipts/test_facts.h"

using namespace bolt::receipts;
namespace fs = std::filesystem;

namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/bolt-write-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  std::size_t n_files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), {}));
  }
  std::string path;
};

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

mode_t mode_of(const std::string& path) {
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

int status_of(const std::function<void()>& work) {
  try {
    work();
    return 0;
  } catch (const Failure& failure) {
    return static_cast<int>(failure.status);
  }
}

}  // namespace

TEST_CASE("write: a receipt in a new private folder, private itself, named by time and run") {
  const Folder folder;
  RunFacts facts = sample_run();
  const Written written = write_run(facts, {folder.path + "/a/b", ""});
  CHECK(written.path == folder.path + "/a/b/20260131T123456Z-00010203.bolt.jsonl");
  CHECK(mode_of(written.path) == 0600);
  CHECK(mode_of(folder.path + "/a/b") == 0700);
  CHECK(read_receipt(written.path).rid == written.rid);
  CHECK(read_all(written.path) == sealed_text(facts));
  // Filled in where empty.
  facts.common.run_id.clear();
  facts.common.time.utc.clear();
  const Written next = write_run(facts, {folder.path, ""});
  CHECK(facts.common.run_id.size() == 32);
  CHECK(next.rid != written.rid);
}

TEST_CASE("write: case 26, of many writers of one name one wins, and nothing is mixed") {
  const Folder folder;
  const Where where{"", folder.path + "/r.bolt.jsonl"};
  std::atomic<int> won = 0, lost = 0;
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back([&, i] {
      RunFacts facts = sample_run(20 + i);
      const int status = status_of([&] { (void)write_run(facts, where); });
      ++(status == 0 ? won : lost);
    });
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(won == 1);
  CHECK(lost == 7);
  CHECK(folder.n_files() == 1);
  const Receipt receipt = read_receipt(where.file);
  CHECK(verify(receipt, {}).status == Status::holds);
  CHECK(status_of([&] { check_where(where); }) == 2);
}

TEST_CASE("write: case 25, a full disk leaves nothing and says so") {
  const Folder folder;
  RunFacts facts = sample_run();
  CHECK(status_of([&] { (void)write_run(facts, {"", "/dev/full"}); }) == 6);
  // A file size limit is the closest to a full disk that a test can have.
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit small = old;
  small.rlim_cur = 1000;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const int status = status_of([&] { (void)write_run(facts, {folder.path, ""}); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, handler);
  CHECK(status == 6);
  CHECK(folder.n_files() == 0);
  CHECK(status_of([&] { (void)write_run(facts, {folder.path, ""}); }) == 0);
  // A folder that is a file, and one that cannot be.
  CHECK(status_of([&] { (void)write_run(facts, {"/dev/null/x", ""}); }) == 6);
}

TEST_CASE("write: reading refuses folders and devices, and says what is not there") {
  const Folder folder;
  CHECK(status_of([&] { (void)read_receipt(folder.path); }) == 3);
  CHECK(status_of([&] { (void)read_receipt("/dev/zero"); }) == 3);
  CHECK(status_of([&] { (void)read_receipt(folder.path + "/none"); }) == 4);
  // A FIFO without a writer does not hang the check.
  const std::string fifo = folder.path + "/fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(status_of([&] { (void)read_receipt(fifo); }) == 3);
}

TEST_CASE("library: case 31, parents found, missing and of the wrong kind") {
  const Folder folder;
  RunFacts control = sample_run();
  const Written parent = write_run(control, {folder.path, ""});
  RunFacts child = sample_speculative();
  child.common.run_id[0] = 'a';
  child.common.parents = {{"control", parent.rid}, {"conversion", sha256_hex("nowhere")}};
  const Written written = write_run(child, {folder.path, ""});
  VerifyOptions options;
  CHECK(verify_file(written.path, options).json.int_at("parents_found") == 1);
  options.need_parents = true;
  CHECK(status_of([&] { (void)verify_file(written.path, options); }) == 4);
  child.common.parents.pop_back();
  child.common.run_id[0] = 'b';
  const Written whole = write_run(child, {folder.path, ""});
  CHECK(status_of([&] { (void)verify_file(whole.path, options); }) == 0);
  child.common.parents[0].role = "conversion";
  child.common.run_id[0] = 'c';
  const Written wrong = write_run(child, {folder.path, ""});
  CHECK(status_of([&] { (void)verify_file(wrong.path, options); }) == 3);
  // The digits in a name that was not chosen are the run_id's; both name the receipt.
  const std::string stem = fs::path(whole.path).filename().string();
  const std::string digits = stem.substr(stem.find('-') + 1, 8);
  CHECK(digits == child.common.run_id.substr(0, 8).replace(0, 1, "b"));
  CHECK(find_by_prefix(digits, {folder.path}) ==
        std::map<std::string, std::string>{{whole.rid, whole.path}});
  CHECK(find_by_prefix("0123456789", {folder.path}).empty());
  CHECK(find_by_prefix(whole.rid.substr(0, 12), {folder.path}).size() == 1);
}

TEST_CASE("session: a pack of runs, its root, and what is left when it is cut or changed") {
  const Folder folder;
  SessionFacts session;
  const RunFacts model = sample_run();
  session.common = model.common;
  session.package = model.package;
  session.arith = model.arith;
  PackWriter writer(session, {folder.path, ""});
  for (const int line : {2, 1, 3}) {
    RunFacts run = sample_run(20 + line);
    run.common.run_id.clear();
    run.request = RequestFacts{"{\"prompt\":\"x\"}", line, "\"a\""};
    const Written written = writer.add(run);
    CHECK(read_receipt(written.path).rid == written.rid);
    CHECK(read_receipt(written.path).body.find("package.files") == nullptr);
  }
  const std::string open_text = read_all(writer.pack_path());
  VerifyOptions options;
  options.need_parents = true;
  CHECK(status_of([&] { (void)verify_file(writer.pack_path(), options); }) == 4);  // not closed
  options.need_parents = false;
  CHECK(status_of([&] { (void)verify_file(writer.pack_path(), options); }) == 0);
  writer.add_failed(4);
  (void)writer.close();
  CHECK(mode_of(writer.pack_path()) == 0600);
  options.need_parents = true;
  const Answer answer = verify_file(writer.pack_path(), options);
  CHECK(answer.status == Status::holds);
  CHECK(answer.json.int_at("receipts") == 3);
  CHECK(status_of([&] { (void)verify_file(writer.pack_path() + "#2", options); }) == 0);
  CHECK(status_of([&] { (void)verify_file(writer.pack_path() + "#9", options); }) == 4);
  // One run taken out, or moved behind the close: the root tells.
  const std::string text = read_all(writer.pack_path());
  const std::size_t second = text.find("{\"_type\":\"bolt.receipt/1\"", 10);
  const std::string missing = folder.path + "/m.runs.jsonl";
  std::ofstream(missing) << text.substr(second);
  CHECK(status_of([&] { (void)verify_file(missing, options); }) == 3);
  const std::string moved = folder.path + "/n.runs.jsonl";
  std::ofstream(moved) << text.substr(second) << text.substr(0, second);
  CHECK(status_of([&] { (void)verify_file(moved, options); }) == 3);
}

TEST_CASE("prune: old receipts, packs and leftovers go, all else stays") {
  const Folder folder;
  for (const char* name :
       {"a.bolt.jsonl", "b.runs.jsonl", ".bolt-0.tmp", "notes.txt", "new.bolt.jsonl"}) {
    std::ofstream(folder.path + "/" + name) << "x";
    if (std::string_view(name).starts_with("new")) continue;
    fs::last_write_time(folder.path + "/" + name,
                        fs::file_time_type::clock::now() - std::chrono::hours(24 * 40));
  }
  CHECK(prune(folder.path, parse_age("30d"), true).names.size() == 3);
  CHECK(folder.n_files() == 5);
  CHECK(prune(folder.path, parse_age("30d"), false).names.size() == 3);
  CHECK(folder.n_files() == 2);
  CHECK(parse_age("2w") == 14 * 86400);
  for (const char* bad : {"", "30", "d", "-1d", "1y", "99999999999999999999d"}) {
    CHECK_THROWS_AS(parse_age(bad), Failure);
  }
}

TEST_CASE("build facts: case 22, the environment as it is recorded") {
  ::setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
  ::setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  ::setenv("NOT_CUDA", "1", 1);
  std::vector<EnvEntry> env = environment_facts();
  REQUIRE(env.size() >= 2);
  const auto find = [&](const std::string& name) -> const EnvEntry* {
    for (const EnvEntry& entry : env) {
      if (entry.name == name) return &entry;
    }
    return nullptr;
  };
  CHECK(find("CUDA_VISIBLE_DEVICES")->value == "0,1");
  CHECK(find("CUDA_LAUNCH_BLOCKING")->value.empty());
  CHECK(find("CUDA_LAUNCH_BLOCKING")->sha256 == bind_hex(Binder(), "env", {"1"}));
  CHECK(find("NOT_CUDA") == nullptr);
  CHECK(injected_by(env).empty());
  ::setenv("LD_PRELOAD", "/nonexistent.so", 1);
  env = environment_facts();
  CHECK(injected_by(env) == "LD_PRELOAD");
  ::unsetenv("LD_PRELOAD");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ::unsetenv("CUDA_LAUNCH_BLOCKING");
}

TEST_CASE("build facts: case 24, forced JIT is recorded and keeps the promise") {
  CHECK(!forces_jit(environment_facts()));
  ::setenv("CUDA_FORCE_PTX_JIT", "0", 1);
  CHECK(!forces_jit(environment_facts()));
  ::setenv("CUDA_FORCE_PTX_JIT", "1", 1);
  const std::vector<EnvEntry> env = environment_facts();
  ::unsetenv("CUDA_FORCE_PTX_JIT");
  CHECK(forces_jit(env));
  CHECK(injected_by(env).empty());
  RunFacts jitted = sample_run();
  jitted.common.env = env;
  jitted.common.build.jit = true;
  const Receipt receipt = sealed(jitted);
  CHECK(receipt.body.bool_at("build.jit"));
  CHECK(receipt.body.find("env")->array()[0].string_at("value") == "1");
  const Comparison c = compare_runs(sealed(sample_run()), receipt);
  CHECK(c.promised);
  CHECK(c.status == Status::holds);
}

// Run by the next test as a program of its own, in a file that it replaces while it runs.
TEST_CASE("build facts: child that replaces its own file" * doctest::skip()) {
  const char* path = ::getenv("BOLT_TEST_OWN_FILE");
  REQUIRE(path != nullptr);
  start_build_facts();
  const std::string other = std::string(path) + ".new";
  std::ofstream(other) << "another program";
  fs::rename(other, path);
  std::printf("HASH %s\n", executable_sha256().c_str());
}

TEST_CASE("build facts: case 20, an executable replaced by rename keeps its hash") {
  const Folder folder;
  const std::string path = folder.path + "/program";
  fs::copy_file(fs::read_symlink("/proc/self/exe"), path);
  const std::string original = sha256_file_hex(path);
  CHECK(executable_sha256() == original);
  const std::string command = "BOLT_TEST_OWN_FILE=" + path + " XDG_CACHE_HOME=" + folder.path +
                              " " + path +
                              " --no-skip -tc='build facts: child that replaces its own file'";
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string said;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) said.append(buffer, n);
  ::pclose(pipe);
  CHECK(said.find("HASH " + original) != std::string::npos);
  CHECK(sha256_file_hex(path) != original);  // what hashing by name would have given
}

TEST_CASE(
    "build facts: case 23, a file of the same size and mtime but other bytes is hashed anew") {
  const Folder folder;
  ::setenv("XDG_CACHE_HOME", folder.path.c_str(), 1);
  const std::string path = folder.path + "/file";
  std::ofstream(path) << "one";
  std::this_thread::sleep_for(std::chrono::seconds(4));  // until its ctime is settled
  const auto hash = [&] {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    std::string result = cached_file_sha256(fd, path);
    ::close(fd);
    return result;
  };
  const fs::file_time_type mtime = fs::last_write_time(path);
  CHECK(hash() == sha256_hex("one"));
  CHECK(fs::exists(folder.path + "/bolt"));  // remembered
  CHECK(hash() == sha256_hex("one"));
  std::ofstream(path) << "two";
  fs::last_write_time(path, mtime);
  CHECK(hash() == sha256_hex("two"));
  ::unsetenv("XDG_CACHE_HOME");
}

TEST_CASE("build facts: modules of this process are named with hashes") {
  const Build build = build_facts(Build());
  CHECK(build.exe.size() == 64);
  for (const Module& module : build.modules) {  // none in a static binary
    CHECK(module.sha256.size() == 64);
    CHECK(module.name.find('/') == std::string::npos);
  }
}
