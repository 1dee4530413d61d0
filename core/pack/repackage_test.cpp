// A package of another row geometry: payload shared, graph rewritten, everything else refused.
#include "core/pack/repackage.h"

#include <doctest/doctest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/output.h"
#include "core/base/testing/caught.h"
#include "core/pack/testing/tiny_checkpoint.h"

namespace bolt {
namespace {

namespace fs = std::filesystem;
using testing::caught;
using testing::TemporaryFolder;
using testing::TinySpec;

ConvertOptions to(const std::string& source, const std::string& target, const char* geometry) {
  ConvertOptions options;
  options.source = source;
  options.target = target;
  options.n_threads = 1;
  options.bolt_version = "test";
  if (geometry) options.geometry = parse_geometry("--geometry", geometry);
  return options;
}

ino_t inode(const std::string& path) {
  struct stat facts {};
  REQUIRE(::stat(path.c_str(), &facts) == 0);
  return facts.st_ino;
}

}  // namespace

TEST_CASE("geometry: names and what is none") {
  CHECK(geometry_text(parse_geometry("--geometry", "dynamic")) == "dynamic");
  CHECK(geometry_text(parse_geometry("--geometry", "fixed:8")) == "fixed:8");
  CHECK(geometry_text(parse_geometry("--geometry", "hybrid:32")) == "hybrid:32");
  for (const char* wrong : {"", "fixed", "fixed:", "fixed:0", "fixed:33", "hybrid:8x", "fixed:-1",
                            "dynamic:8", "hybrid:99999999999"}) {
    const auto error = caught([&] { parse_geometry("--geometry", wrong); });
    CHECK(error.code == Exit::usage);
    CHECK(error.says("--geometry: "));
  }
}

TEST_CASE("geometry: the payload is linked, the graph differs in its geometry alone") {
  const TemporaryFolder folder;
  TinySpec spec;
  spec.draft_pattern = "*E";
  testing::make_tiny_package(folder / "a.bolt", spec);
  const ConvertFacts facts = convert(to(folder / "a.bolt", folder / "b.bolt", "hybrid:8"));
  CHECK(facts.n_copied == 0);
  CHECK(facts.n_linked >= 3);
  const auto a = Package::open(folder / "a.bolt"), b = Package::open(folder / "b.bolt");
  CHECK(b->graph().geometry.kind == Geometry::Kind::hybrid);
  CHECK(b->graph().geometry.n_rows == 8);
  for (const PackageFile& file : a->files()) {
    const std::string of_a = folder / ("a.bolt/" + file.path),
                      of_b = folder / ("b.bolt/" + file.path);
    if (file.role == "manifest" || file.role == "graph") {
      CHECK(inode(of_a) != inode(of_b));
    } else {
      CHECK(inode(of_a) == inode(of_b));
    }
  }
  for (const PackageFile& file : facts.package_files) {
    if (file.role == "payload") CHECK(file.how == "carried");
    if (file.role == "payload") CHECK(file.links == 2);
  }
  // The text of the graph: two lines of it.
  const std::string before = read_file(folder / "a.bolt/graph.json"),
                    after = read_file(folder / "b.bolt/graph.json");
  std::string expected = before;
  const auto replace = [&](const std::string& from, const std::string& with) {
    const std::size_t at = expected.find(from);
    REQUIRE(at != std::string::npos);
    expected.replace(at, from.size(), with);
  };
  replace("\"dynamic\"", "\"hybrid\"");
  replace("\"n_rows\": 0", "\"n_rows\": 8");
  CHECK(after == expected);
  // And back: the same graph and config, byte for byte.
  convert(to(folder / "b.bolt", folder / "c.bolt", "dynamic"));
  CHECK(read_file(folder / "c.bolt/graph.json") == before);
  CHECK(read_file(folder / "c.bolt/config.json") == read_file(folder / "a.bolt/config.json"));
  // Removing one package takes nothing from the others.
  fs::remove_all(folder / "a.bolt");
  CHECK(caught([&] { Package::open(folder / "c.bolt", {.use_hash_cache = false}); }).line == "");
}

TEST_CASE("geometry: a checkpoint may be converted to one at once") {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "checkpoint", TinySpec{});
  convert(to(folder / "checkpoint", folder / "p.bolt", "fixed:4"));
  const auto package = Package::open(folder / "p.bolt");
  CHECK(package->graph().geometry.kind == Geometry::Kind::fixed);
  CHECK(package->graph().geometry.n_rows == 4);
}

TEST_CASE("geometry: what needs the checkpoint, and targets that cannot be, are refused") {
  const TemporaryFolder folder;
  testing::make_tiny_package(folder / "a.bolt", TinySpec{});
  const auto refused = [&](ConvertOptions options, const char* says) {
    const auto error = caught([&] { convert(options); });
    CHECK(error.code == Exit::usage);
    CHECK_MESSAGE(error.says(says), error.line);
    CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  };
  refused(to(folder / "a.bolt", folder / "b.bolt", nullptr), "is a package already");
  auto quantised = to(folder / "a.bolt", folder / "b.bolt", "fixed:8");
  quantised.quant = Format::q8;
  refused(quantised, "--quant: needs the checkpoint");
  auto without = to(folder / "a.bolt", folder / "b.bolt", "fixed:8");
  without.without_mtp = true;
  refused(without, "--without-mtp: needs the checkpoint");
  auto same = to(folder / "a.bolt", folder / "a.bolt", "fixed:8");
  same.force = true;
  refused(same, "source and target are the same");
  same.target = folder / "a.bolt/b.bolt";
  refused(same, "inside the source");
}

TEST_CASE("geometry: another file system gets copies, whose hashes are checked") {
  const TemporaryFolder folder;
  testing::make_tiny_package(folder / "a.bolt", TinySpec{});
  const std::string other = "/dev/shm/bolt-geometry-" + std::to_string(::getpid());
  fs::create_directories(other);
  struct Remove {
    const std::string& path;
    ~Remove() { fs::remove_all(path); }
  } remove{other};
  struct stat here {
  }, there{};
  REQUIRE(::stat(folder.path().c_str(), &here) == 0);
  REQUIRE(::stat(other.c_str(), &there) == 0);
  if (here.st_dev == there.st_dev) return;  // one file system: nothing to see
  const ConvertFacts facts = convert(to(folder / "a.bolt", other + "/b.bolt", "fixed:8"));
  CHECK(facts.n_linked == 0);
  CHECK(facts.n_copied >= 3);
  CHECK(caught([&] { Package::open(other + "/b.bolt", {.use_hash_cache = false}); }).line == "");
  // A payload that is not what its manifest says is not copied as if it were.
  std::string payload = read_file(folder / "a.bolt/weights-00001.bin");
  payload[100] ^= 1;
  write_file_atomically(folder / "a.bolt/weights-00001.bin", payload);
  const auto error = caught([&] { convert(to(folder / "a.bolt", other + "/c.bolt", "fixed:8")); });
  CHECK(error.says("its SHA-256 is"));
  CHECK(!path_exists(other + "/c.bolt"));
}

}  // namespace bolt
