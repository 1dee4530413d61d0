#include "core/pack/package.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/base/file_map.h"
#include "core/base/output.h"
#include "core/base/sha256.h"
#include "core/base/testing/caught.h"
#include "core/pack/byte_tokenizer.h"
#include "core/pack/graph_walk.h"
#include "core/pack/hash_cache.h"
#include "core/pack/package_writer.h"
#include "core/pack/testing/tiny_checkpoint.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

namespace fs = std::filesystem;
using testing::caught;
using testing::TemporaryFolder;
using testing::TinySpec;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

// A package whose files may be changed and whose manifest is then made to agree.
struct Editable {
  Editable() {
    TinySpec spec;
    spec.draft_pattern = "*E";
    make_tiny_package(path, spec);
  }
  std::string read(const std::string& name) const { return read_file(path + "/" + name); }
  void write(const std::string& name, const std::string& bytes) const {
    write_file_atomically(path + "/" + name, bytes);
  }
  // Writes a file and seals package.json anew with its size and hash.
  void write_and_list(const std::string& name, const std::string& bytes) {
    const std::string before = read(name);
    write(name, bytes);
    std::string manifest = read("package.json");
    // The last mention: the checkpoint's tokenizer has the same hash among the source's files.
    const std::size_t hash = manifest.rfind(sha256_hex(before));
    REQUIRE(hash != std::string::npos);
    manifest.replace(hash, 64, sha256_hex(bytes));
    edit_manifest(replaced(manifest,
                           "\"path\": \"" + name + "\",\n   \"role\": \"" + role(name) +
                               "\",\n   \"bytes\": " + std::to_string(before.size()),
                           "\"path\": \"" + name + "\",\n   \"role\": \"" + role(name) +
                               "\",\n   \"bytes\": " + std::to_string(bytes.size())));
  }
  void edit_manifest(std::string text) const {
    const std::size_t at = text.rfind(" \"sha256\"");
    const std::string head = text.substr(0, at);
    write("package.json", head + " \"sha256\": \"" + sha256_hex(head) + "\"\n}\n");
  }
  static std::string role(const std::string& name) {
    return name.starts_with("weights") ? "payload" : name.substr(0, name.find('.'));
  }
  testing::Caught open() const {
    return caught([&] { Package::open(path, {.n_threads = 1, .use_hash_cache = false}); });
  }

  TemporaryFolder folder;
  std::string path = folder / "p.bolt";
};

TEST_CASE("package: what was written is what is opened") {
  const Editable p;
  const auto package = Package::open(p.path);
  CHECK(package->files().at(0).path == "package.json");
  CHECK(package->files().at(0).sha256 == sha256_hex(p.read("package.json")));
  CHECK(package->files().size() == 5);
  for (const PackageFile& file : package->files()) {
    CHECK(file.sha256 == sha256_of_file(p.path + "/" + file.path));
    CHECK(file.bytes == fs::file_size(p.path + "/" + file.path));
    CHECK(file.how == "stream");
  }
  CHECK(package->arith_id() == "bolt-exact/1");
  CHECK(package->source() == "checkpoint");
  CHECK(package->tokenizer_json() == p.read("tokenizer.json"));
  CHECK(package->conversion_rid() == "");
  CHECK(package->graph().layers.size() == 4);
  CHECK(package->graph().draft.has_value());
  each_weight(package->graph(), [](const std::string&, const Weight& w) {
    CHECK(w.data != nullptr);
    CHECK(w.offset % 4096 == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(w.data) % 4096 == 0);
  });
}

TEST_CASE("package: weights are read where their files are mapped, each once for all who use it") {
  Editable p;
  const auto package = Package::open(p.path, {.n_threads = 1, .use_hash_cache = false});
  std::map<std::string, const std::byte*> bases;
  std::set<const std::byte*> places;
  each_weight(package->graph(), [&](const std::string& name, const Weight& w) {
    CAPTURE(name);
    CHECK(bases.emplace(w.file, w.data - w.offset).first->second == w.data - w.offset);
    CHECK(places.insert(w.data).second);
    // The draft head computes with the model's embedding and head.
    CHECK(name != "draft.embedding");
    CHECK(name != "draft.lm_head");
  });
  std::uint64_t payload = 0, mapped = 0;
  for (const PackageFile& file : package->files())
    payload += file.role == "payload" ? file.bytes : 0;
  each_weight(package->graph(), [&](const std::string&, const Weight& w) { mapped += w.bytes; });
  // Nothing but the gaps up to a page after each weight is in the payload besides.
  CHECK(mapped <= payload);
  CHECK(payload - mapped < places.size() * 4096);
}

TEST_CASE("package: a payload hashed behind its reader is refused before anything is said of it") {
  const Editable p;
  const PackageOptions behind{.n_threads = 1, .use_hash_cache = false, .hash_payload_behind = true};
  Package::open(p.path, behind)->check_unchanged();
  Package::open(p.path, behind);  // closed while it is hashed
  std::string bytes = p.read("weights-00001.bin");
  bytes[bytes.size() / 2] ^= 4;
  p.write("weights-00001.bin", bytes);
  const auto package = Package::open(p.path, behind);
  const testing::Caught error = caught([&] { package->check_unchanged(); });
  CHECK(error.code == Exit::input);
  CHECK(error.line == p.open().line);
}

TEST_CASE("package: a flipped byte anywhere in any file is named") {
  const Editable p;
  for (const char* name :
       {"package.json", "graph.json", "config.json", "tokenizer.json", "weights-00001.bin"}) {
    const std::string whole = p.read(name);
    const std::size_t step = std::max<std::size_t>(1, whole.size() / 61);
    for (std::size_t i = 0; i < whole.size(); i += step) {
      std::string flipped = whole;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
      p.write(name, flipped);
      const auto error = p.open();
      INFO(std::string(name));
      CAPTURE(i);
      CHECK(error.code == (error.says("arithmetic contract") ? Exit::unmet : Exit::input));
      CHECK(error.says(name));
    }
    // The ends, where a cut or a longer file shows.
    for (const std::string& other :
         {whole.substr(0, whole.size() - 1), whole + "\n", std::string()}) {
      p.write(name, other);
      CHECK(p.open().code == Exit::input);
      CHECK(p.open().says(name));
    }
    p.write(name, whole);
    CHECK(p.open().line == "");
  }
}

TEST_CASE("package: every byte of the manifest counts") {
  const Editable p;
  const std::string whole = p.read("package.json");
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] ^= 1;
    p.write("package.json", flipped);
    CAPTURE(i);
    CHECK(p.open().code != Exit::ok);
  }
}

TEST_CASE("package: names that leave the folder are refused before anything is opened (case 80)") {
  const Editable p;
  const std::string manifest = p.read("package.json");
  write_file_atomically(p.folder / "outside", p.read("tokenizer.json"));
  const std::string listed = "\"tokenizer.json\",\n   \"role\"";  // the source's list has no roles
  for (const char* name : {"../outside", "../../pwned", "/etc/passwd", "./tokenizer.json", "a\\\\b",
                           "a\\u0000b", "", "x/../tokenizer.json", "sub/tokenizer.json"}) {
    INFO(std::string(name));
    p.edit_manifest(replaced(manifest, listed, "\"" + std::string(name) + "\",\n   \"role\""));
    const auto error = p.open();
    CHECK(error.code == Exit::input);
    CHECK(error.says("package.json: field \"files["));
  }
  p.edit_manifest(replaced(manifest, listed, "\"GRAPH.json\",\n   \"role\""));
  CHECK(p.open().says("letter case aside"));
  p.edit_manifest(replaced(manifest, listed, "\"Package.JSON\",\n   \"role\""));
  CHECK(p.open().says("letter case aside"));
}

TEST_CASE("package: links, FIFOs and folders in the place of a file are refused") {
  const Editable p;
  const std::string file = p.path + "/tokenizer.json";
  fs::rename(file, p.folder / "moved");
  fs::create_symlink(p.folder / "moved", file);
  CHECK(p.open().says("tokenizer.json: is a symbolic link"));
  fs::remove(file);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);
  CHECK(p.open().says("tokenizer.json: is a FIFO"));
  fs::remove(file);
  fs::create_directory(file);
  CHECK(p.open().says("tokenizer.json: is a folder"));
  fs::remove(file);
  CHECK(p.open().says("tokenizer.json: cannot open: No such file"));
  fs::rename(p.folder / "moved", file);
  CHECK(p.open().line == "");
  fs::rename(p.path + "/package.json", p.folder / "manifest");
  fs::create_symlink(p.folder / "manifest", p.path + "/package.json");
  CHECK(p.open().says("package.json: is a symbolic link"));
}

TEST_CASE("package: a graph that does not follow from the config is refused, hashes being right") {
  Editable p;
  const std::string graph = p.read("graph.json");
  const std::pair<const char*, const char*> edits[] = {
      {"\"shape\": [1, 300, 64]", "\"shape\": [1, 64, 300]"},
      {"\"format\": \"bf16\"", "\"format\": \"q4\""},
      {"\"format\": \"f32\"", "\"format\": \"bf16\""},
      {"\"layout\": \"tiles\"", "\"layout\": \"plain\""},
      {"\"offset\": 0", "\"offset\": 64"},
      {"\"offset\": 0", "\"offset\": 18446744073709547520"},
      {"\"n_heads\": 4", "\"n_heads\": 8"},
      {"\"op\": \"mamba2\"", "\"op\": \"mamba\""},
      {"\"in_proj\"", "\"in_prob\""},
      {"\"file\": \"weights-00001.bin\"", "\"file\": \"tokenizer.json\""},
      {"\"file\": \"weights-00001.bin\"", "\"file\": \"../x\""},
      {"\"kind\": \"dynamic\"", "\"kind\": \"static\""},
      {"\"n_rows\": 0", "\"n_rows\": 8"},
      {"\"d_model\": 64", "\"d_model\": 128"},
      {"\"norm_eps\": 1e-05", "\"norm_eps\": 1e-06"},
  };
  for (const auto& [from, to] : edits) {
    INFO(std::string(to));
    p.write_and_list("graph.json", replaced(graph, from, to));
    const auto error = p.open();
    CHECK(error.code == Exit::input);
    CHECK(error.says("graph.json"));
    p.write_and_list("graph.json", graph);
  }
  // Two weights on the same bytes: D on A's place.
  const std::size_t a = graph.find("\"A\":"), d = graph.find("\"D\":");
  const auto offset_at = [&](std::size_t from) {
    const std::size_t at = graph.find("\"offset\": ", from) + 10;
    return std::pair{at, graph.find(',', at)};
  };
  const auto [a0, a1] = offset_at(a);
  const auto [d0, d1] = offset_at(d);
  std::string aliased = graph;
  aliased.replace(d0, d1 - d0, graph.substr(a0, a1 - a0));
  p.write_and_list("graph.json", aliased);
  CHECK(p.open().says("layers.0.A"));
  CHECK(p.open().says("overlap at byte"));
  p.write_and_list("graph.json", graph);
  CHECK(p.open().line == "");
}

TEST_CASE("package: a config with sizes out of range or of another model is refused") {
  Editable p;
  const std::string config = p.read("config.json");
  const std::pair<const char*, const char*> edits[] = {
      {"\"d_model\": 64", "\"d_model\": 0"},
      {"\"n_kv_heads\": 1", "\"n_kv_heads\": 3"},
      {"\"n_ssm_groups\": 2", "\"n_ssm_groups\": 0"},
      {"\"layers\": \"M*E-\"", "\"layers\": \"M*E\""},
      {"\"layers\": \"M*E-\"", "\"layers\": \"MXE-\""},
      {"\"top_k\": 2", "\"top_k\": 20"},
      {"\"vocab_size\": 300", "\"vocab_size\": 299"},
      {"\"stop_ids\": [2, 11]", "\"stop_ids\": [2, 300]"},
      {"\"bos_id\": 1", "\"bos_id\": -2"},
  };
  for (const auto& [from, to] : edits) {
    INFO(std::string(to));
    p.write_and_list("config.json", replaced(config, from, to));
    CHECK(p.open().code == Exit::input);
    p.write_and_list("config.json", config);
  }
  CHECK(p.open().line == "");
}

TEST_CASE("package: other versions and contracts are told apart from damage") {
  const Editable p;
  const std::string manifest = p.read("package.json");
  p.edit_manifest(replaced(manifest, "bolt-package/1", "bolt-package/2"));
  CHECK(p.open().says("this bolt reads no other format"));
  p.edit_manifest(replaced(manifest, "bolt-exact/1", "bolt-exact/9"));
  CHECK(p.open().code == Exit::unmet);
  CHECK(p.open().says(
      "made for the arithmetic contract bolt-exact/9, this bolt computes bolt-exact/1"));
  p.edit_manifest(replaced(manifest, "\"role\": \"tokenizer\"", "\"role\": \"config\""));
  CHECK(p.open().says("lists two files of role config"));
  p.edit_manifest(replaced(manifest, "\"role\": \"tokenizer\"", "\"role\": \"songs\""));
  CHECK(p.open().says("expected graph, config, tokenizer"));
}

TEST_CASE("package: what is no package says what it is and what to do") {
  const TemporaryFolder folder;
  const auto open = [](const std::string& path) { return caught([&] { Package::open(path); }); };
  CHECK(open(folder / "none").code == Exit::usage);
  CHECK(open(folder / "none").says("bolt convert"));
  CHECK(open(folder.path()).says("has no package.json"));
  write_file_atomically(folder / "config.json", "{}");
  CHECK(open(folder.path()).says("a checkpoint? `bolt convert`"));
  write_file_atomically(folder / "model.gguf", std::string("GGUF\3\0\0\0", 8));
  CHECK(open(folder / "model.gguf").says("is a GGUF file, expected a package folder"));
}

TEST_CASE("package: names its conversion receipt where one is sealed and speaks of it") {
  const Editable p;
  const std::string body = "{\"package\":\"" + sha256_hex(p.read("package.json")) + "\"}";
  const auto rid_with = [&](const std::string& text) {
    write_file_atomically(p.folder / "p.bolt.jsonl", text);
    return Package::open(p.path)->conversion_rid();
  };
  const std::string seal = "{\"rid\":\"" + sha256_hex(body) + "\"}\n";
  CHECK(conversion_receipt_path(p.path + "/") == p.folder / "p.bolt.jsonl");
  CHECK(rid_with(body + "\n" + seal) == sha256_hex(body));
  CHECK(rid_with(body + " \n" + seal) == "");
  CHECK(rid_with("{\"other\":1}\n{\"rid\":\"" + sha256_hex("{\"other\":1}") + "\"}\n") == "");
  CHECK(rid_with("") == "");
  CHECK(rid_with(body) == "");
}

TEST_CASE("hash cache: answers for unchanged large files only") {
  const TemporaryFolder folder;
  const char* before = getenv("XDG_CACHE_HOME");
  const std::string saved = before ? before : "";
  setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  FileFacts facts{.device = 1,
                  .inode = 2,
                  .bytes = kHashCacheBytesMin,
                  .links = 1,
                  .mtime_ns = 3,
                  .ctime_ns = 4};
  const std::string hash = sha256_hex("x");
  remember_hash(facts, hash);
  CHECK(cached_hash(facts) == hash);
  for (auto member : {&FileFacts::device, &FileFacts::inode, &FileFacts::bytes}) {
    FileFacts other = facts;
    other.*member += 1;
    CHECK(!cached_hash(other));
  }
  for (auto member : {&FileFacts::mtime_ns, &FileFacts::ctime_ns}) {
    FileFacts other = facts;
    other.*member += 1;
    CHECK(!cached_hash(other));
  }
  FileFacts small = facts;
  small.bytes -= 1;
  remember_hash(small, hash);
  CHECK(!cached_hash(small));
  // A file changed a moment ago may change again within the same tick of the clock.
  FileFacts fresh = facts;
  fresh.inode = 77;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  fresh.ctime_ns = fresh.mtime_ns = now.tv_sec * 1'000'000'000LL + now.tv_nsec;
  remember_hash(fresh, hash);
  CHECK(!cached_hash(fresh));
  write_file_atomically(folder / "bolt/hashes/1-2", "rubbish");
  CHECK(!cached_hash(facts));
  if (before)
    setenv("XDG_CACHE_HOME", saved.c_str(), 1);
  else
    unsetenv("XDG_CACHE_HOME");
}

TEST_CASE("package: facts that only people and receipts read are checked, too") {
  const auto refused = [](const char* file, const std::string& from, const std::string& to,
                          const std::string& line) {
    Editable p;
    const std::string text = replaced(p.read(file), from, to);
    if (file == std::string("package.json"))
      p.edit_manifest(text);
    else
      p.write_and_list(file, text);
    const auto error = p.open();
    CAPTURE(error.line);
    CHECK(error.code == Exit::input);
    CHECK(error.says(line));
  };
  const char* config = "config.json";
  refused(config, "\"chat_template\": \"v3\"", "\"chat_template\": \"../../etc/passwd\"",
          "field \"chat_template\" is \"../../etc/passwd\", expected \"v3\", \"v2\" or \"none\"");
  refused(config, "\"chat_template_sha256\": \"", "\"chat_template_sha256\": \"v2",
          "field \"chat_template_sha256\"");
  refused(config, "\"temperature\": 1", "\"temperature\": -1", "\"generation.temperature\" is -1");
  refused(config, "\"top_p\": 1", "\"top_p\": 2", "field \"generation.top_p\" is 2");
  refused(config, "\"model_type\": \"nemotron_h\"", "\"model_type\": \"llama\"",
          "field \"model_type\" is \"llama\"");
  const char* manifest = "package.json";
  refused(manifest, "\"bytes\": ", "\"bytes\": -", "field \"source.files[0].bytes\" is -");
  refused(manifest, "\"bolt\": \"test\"", "\"bolt\": 3", "field \"bolt\" is 3, expected a string");
  refused(manifest, "\"name\": \"checkpoint\"", "\"name\": \"checkpoint\", \"x\": 1",
          "field \"source.x\" is not a known field");
}

TEST_CASE("package: a tokenizer of other ids than config.json counts is refused") {
  Editable p;
  CHECK(read_tokenizer(*Package::open(p.path))->n_tokens() == 300);
  p.write_and_list("tokenizer.json", byte_tokenizer_json(301));
  const auto package = Package::open(p.path);
  CHECK(caught([&] {
          read_tokenizer(*package);
        }).says("tokenizer.json: has 301 ids, config.json says 300"));
}

TEST_CASE("package: a payload that is written to while it is open is told, under any name") {
  const Editable package;
  const std::string payload = package.path + "/weights-00001.bin";
  const std::string bytes = package.read("weights-00001.bin");
  const auto open_then = [&](const auto& work) {
    const auto opened = Package::open(package.path, {.use_hash_cache = false});
    work();
    return caught([&] { opened->check_unchanged(); });
  };
  CHECK(open_then([] {}).code == Exit::ok);
  // A link more changes the times that the kernel keeps, but no byte.
  CHECK(open_then([&] { fs::create_hard_link(payload, package.path + ".link"); }).code == Exit::ok);
  CHECK(open_then([&] { fs::rename(package.path + ".link", package.path + ".moved"); }).code ==
        Exit::ok);
  // The same file by its other name, its time of modification put back.
  const auto write_over = [&](bool restore_time) {
    const fs::file_time_type time = fs::last_write_time(payload);
    std::fstream file(package.path + ".moved", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.put(static_cast<char>(bytes[100] ^ 1));
    file.close();
    if (restore_time) fs::last_write_time(payload, time);
  };
  CHECK(open_then([&] { write_over(false); }).says("was written to while it was in use"));
  std::ofstream(payload, std::ios::binary) << bytes;
  CHECK(open_then([&] { write_over(true); }).says("was written to while it was in use"));
  std::ofstream(payload, std::ios::binary) << bytes;
  // Through a mapping that was there before.
  const int fd = ::open(payload.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(fd >= 0);
  void* map = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  REQUIRE(map != MAP_FAILED);
  const auto told = open_then([&] {
    static_cast<char*>(map)[7] ^= 1;
    ::msync(map, 4096, MS_SYNC);
  });
  CHECK(told.code == Exit::fault);
  CHECK(told.says("was written to while it was in use"));
  ::munmap(map, 4096);
  ::close(fd);
}

}  // namespace
}  // namespace bolt
