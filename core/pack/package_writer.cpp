// Placing, packing, hashing and naming a package's files.
#include "core/pack/package_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>

#include "core/base/contract.h"
#include "core/base/error.h"
#include "core/base/interrupt.h"
#include "core/base/json.h"
#include "core/base/sha256.h"
#include "core/pack/graph_walk.h"

namespace bolt {
namespace {

// A run as it is read, as codes and packed fits a core's second cache.
constexpr std::uint64_t kRunBytes = 1 << 18;
constexpr std::uint64_t kGainAlignment = 64;

std::uint64_t aligned(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

// Payload bytes of a weight with its gains behind it.
std::uint64_t placed_bytes(const Weight& w) {
  if (!has_gain(w.format)) return w.bytes;
  return aligned(w.bytes, kGainAlignment) +
         static_cast<std::uint64_t>(w.n_matrices) * sizeof(float);
}

bool is_package(const std::string& path) { return path_exists(path + "/package.json"); }

// Rows of a matrix, those that fill its last tile included.
std::uint64_t packed_rows(const Weight& w) {
  return static_cast<std::uint64_t>(w.layout == Layout::tiles ? n_tiles(w.n_rows) * kTileRows
                                                              : w.n_rows);
}

}  // namespace

PackageWriter::PackageWriter(const std::string& target, bool force, int n_threads)
    : folder_(
          [&] {
            if (path_exists(target)) {
              if (!force)
                throw Error(Exit::usage, target + ": exists already; --force replaces it");
              if (!is_package(target)) {
                throw Error(Exit::usage,
                            target + ": is no package, so --force does not replace it");
              }
            }
            return target;
          }(),
          force),
      pool_(n_threads) {}

std::vector<RowRun> row_runs(const Graph& graph, std::vector<std::string>& names) {
  std::vector<RowRun> runs;
  each_weight(graph, [&](const std::string& name, const Weight&) { names.push_back(name); });
  std::size_t index = 0;
  each_weight(graph, [&](const std::string&, const Weight& w) {
    const std::string* name = &names[index++];
    const auto bytes_of_tile = static_cast<std::uint64_t>(kTileRows) *
                               static_cast<std::uint64_t>(w.n_cols) *
                               static_cast<std::uint64_t>(code_bytes(w.format));
    const auto tiles =
        std::max<std::uint64_t>(1, kRunBytes / std::max<std::uint64_t>(1, bytes_of_tile));
    const auto step = static_cast<int>(std::min<std::uint64_t>(tiles * kTileRows, 1 << 20));
    for (int m = 0; m < w.n_matrices; ++m) {
      for (int row = 0; row < w.n_rows; row += step) {
        runs.push_back({name, &w, m, row, std::min(step, w.n_rows - row)});
      }
    }
  });
  return runs;
}

void PackageWriter::place_weights(Graph& graph, const std::string& prefix) {
  std::uint64_t end = 0;
  int n_files = 0;
  std::string file;
  const auto close = [&] {
    if (n_files > 0)
      files_.push_back({.path = file,
                        .role = "payload",
                        .bytes = end,
                        .sha256 = "",
                        .how = "stream",
                        .links = 1});
  };
  each_weight(graph, [&](const std::string&, Weight& w) {
    w.bytes = weight_bytes(w);
    const std::uint64_t begin = aligned(end, kWeightAlignment);
    if (n_files == 0 || begin + placed_bytes(w) > kWeightFileBytesMax) {
      close();
      file = fmt::format("{}-{:05}.bin", prefix, ++n_files);
      end = 0;
    }
    w.file = file;
    w.offset = aligned(end, kWeightAlignment);
    w.gain_offset = has_gain(w.format) ? aligned(w.offset + w.bytes, kGainAlignment) : 0;
    end = w.offset + placed_bytes(w);
  });
  close();
}

namespace {

// A payload file while it is written: threads write their runs where they belong and hash them in
// the file's order, each when its turn has come.
class Payload {
 public:
  explicit Payload(const std::string& path) : out_(path) {}
  OutputFile& out() { return out_; }

  // Run number `turn` of this file, and zeros before it where there is a gap.
  void put(int turn, std::uint64_t offset, std::span<const std::byte> bytes,
           const std::atomic<bool>& failed) {
    out_.write_at(offset, bytes);
    std::uint64_t written_from = 0, written_to = 0;
    {
      std::unique_lock<std::mutex> hold(lock_);
      turned_.wait(hold, [&] { return turn_ == turn || failed.load(); });
      if (failed.load()) return;
      hash(offset, bytes);
      ++turn_;
      if (at_ - sent_ >= kSendBytes) {
        written_from = sent_;
        written_to = sent_ = at_;
      }
    }
    turned_.notify_all();
    // What is whole goes to the disk while the rest is made.
    if (written_to > 0) out_.start_writing(written_from, written_to - written_from);
  }
  void stop() {
    const std::lock_guard<std::mutex> hold(lock_);
    turned_.notify_all();
  }
  std::string close() {
    out_.close();
    return sha_.hex();
  }

 private:
  static constexpr std::uint64_t kSendBytes = 16 << 20;

  void hash(std::uint64_t offset, std::span<const std::byte> bytes) {
    static constexpr std::byte kZeros[kWeightAlignment] = {};
    require(at_ <= offset && offset - at_ <= sizeof kZeros, "runs follow each other in a file");
    sha_.update(kZeros, offset - at_);
    sha_.update(bytes.data(), bytes.size());
    at_ = offset + bytes.size();
  }

  OutputFile out_;
  std::mutex lock_;
  std::condition_variable turned_;
  Sha256 sha_;
  int turn_ = 0;  // whose turn it is
  std::uint64_t at_ = 0, sent_ = 0;
};

// A run's place: its file, and its number among the file's.
struct Turn {
  std::size_t run = 0;
  Payload* file = nullptr;
  int turn = 0;
};

// The order in which runs are made: each file's in its own order, files side by side where there
// are threads for them, since one file's hash takes one thread.
std::vector<Turn> turns_of(const std::vector<RowRun>& runs, std::map<std::string, Payload>& files,
                           int n_threads) {
  std::vector<std::vector<Turn>> by_file;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Payload* file = &files.at(runs[i].weight->file);
    if (by_file.empty() || by_file.back().front().file != file) by_file.emplace_back();
    by_file.back().push_back({i, file, static_cast<int>(by_file.back().size())});
  }
  const auto n_lanes = static_cast<std::size_t>(std::clamp(n_threads / 2, 1, 8));
  std::vector<Turn> all;
  for (std::size_t first = 0; first < by_file.size(); first += n_lanes) {
    const std::size_t last = std::min(first + n_lanes, by_file.size());
    for (std::size_t i = 0, left = 1; left > 0; ++i) {
      left = 0;
      for (std::size_t f = first; f < last; ++f) {
        if (i >= by_file[f].size()) continue;
        all.push_back(by_file[f][i]);
        ++left;
      }
    }
  }
  return all;
}

// One run's bytes as they lie in the package: tiles, or rows as they are.
std::span<const std::byte> pack_run(const RowCodes& rows, const Weight& w, int n_rows,
                                    std::vector<std::byte>& packed) {
  if (w.layout != Layout::tiles) return rows.codes;
  const auto bytes_of_tile = static_cast<std::size_t>(tile_bytes(w.format, w.n_cols));
  packed.resize(static_cast<std::size_t>(n_tiles(n_rows)) * bytes_of_tile);
  for (int tile = 0; tile < n_tiles(n_rows); ++tile) {
    pack_tile(rows, tile * kTileRows,
              packed.data() + static_cast<std::size_t>(tile) * bytes_of_tile);
  }
  return packed;
}

}  // namespace

void PackageWriter::write_weights(const Graph& graph, const FillRows& fill, const GainOf& gain,
                                  const CheckRun& check, const WorkProgress& progress) {
  std::map<std::string, Payload> outputs;
  std::uint64_t total = 0;
  for (const PackageFile& file : files_) {
    if (file.role != "payload") continue;
    const auto out = outputs.try_emplace(file.path, folder_.file(file.path)).first;
    out->second.out().reserve(file.bytes);
    total += file.bytes;
  }
  std::vector<std::string> names;
  const std::vector<RowRun> runs = row_runs(graph, names);
  const std::vector<Turn> turns = turns_of(runs, outputs, pool_.n_threads());
  Meter meter(progress, check ? "packing and verifying" : "packing", total);
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  const auto make = [&](const Turn& turn, RowCodes& rows, std::vector<std::byte>& packed) {
    check_interrupt();
    const RowRun& run = runs[turn.run];
    const Weight& w = *run.weight;
    rows.resize(w.format, run.n_rows, w.n_cols);
    fill(run, rows);
    const std::span<const std::byte> bytes = pack_run(rows, w, run.n_rows, packed);
    const float g = has_gain(w.format) ? gain(*run.name, run.matrix) : 1.0f;
    if (check) check(turn.run, run, bytes, g);
    const std::uint64_t row_bytes = w.matrix_bytes() / packed_rows(w);
    const std::uint64_t offset = w.offset +
                                 static_cast<std::uint64_t>(run.matrix) * w.matrix_bytes() +
                                 static_cast<std::uint64_t>(run.first_row) * row_bytes;
    const bool last = run.matrix + 1 == w.n_matrices && run.first_row + run.n_rows == w.n_rows;
    if (!last || !has_gain(w.format)) {
      turn.file->put(turn.turn, offset, bytes, failed);
    } else {
      // The weight's gains lie behind its last run.
      packed.resize(w.gain_offset - offset, std::byte{0});
      for (int m = 0; m < w.n_matrices; ++m) {
        const float one = gain(*run.name, m);
        const auto* from = reinterpret_cast<const std::byte*>(&one);
        packed.insert(packed.end(), from, from + sizeof one);
      }
      turn.file->put(turn.turn, offset, packed, failed);
    }
    meter.add(bytes.size());
  };
  // Runs are taken in order, or a thread would wait for a turn that nobody has.
  pool_.parallel_for(pool_.n_threads(), 1, [&](int, int, int) {
    RowCodes rows;
    std::vector<std::byte> packed;
    try {
      for (std::size_t i = next.fetch_add(1); i < turns.size() && !failed; i = next.fetch_add(1)) {
        make(turns[i], rows, packed);
      }
    } catch (...) {
      failed = true;
      for (auto& [name, out] : outputs) out.stop();
      throw;
    }
  });
  for (PackageFile& file : files_) {
    if (file.role == "payload") file.sha256 = outputs.at(file.path).close();
  }
}

bool PackageWriter::link_file(const std::string& from, const PackageFile& file) {
  const std::string to = folder_.file(file.path);
  files_.push_back(file);
  PackageFile& placed = files_.back();
  FileFacts facts;
  if (::link(from.c_str(), to.c_str()) == 0) {
    open_regular_file(to, facts);
    placed.links = facts.links;
    if (placed.role == "payload") placed.how = "carried";
    return true;
  }
  // Another file system, one without links, or a file that has all it may have.
  if (errno != EXDEV && errno != EPERM && errno != EMLINK && errno != ENOTSUP && errno != EACCES) {
    throw Error(Exit::fault, fmt::format("{}: cannot link: {}", from, std::strerror(errno)));
  }
  const FileDescriptor source = open_regular_file(from, facts);
  OutputFile out(to);
  out.reserve(facts.bytes);
  std::vector<std::byte> buffer(
      std::min<std::uint64_t>(std::max<std::uint64_t>(facts.bytes, 1), 1 << 20));
  Sha256 sha;
  for (std::uint64_t at = 0; at < facts.bytes; at += buffer.size()) {
    check_interrupt();
    const auto n =
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), facts.bytes - at));
    read_at(source, from, at, {buffer.data(), n});
    sha.update(buffer.data(), n);
    out.append(std::span<const std::byte>(buffer.data(), n));
  }
  out.close();
  const std::string digest = sha.hex();
  if (digest != file.sha256) {
    throw Error(Exit::input,
                fmt::format("{}: its SHA-256 is {}, package.json says {}; the file was "
                            "changed, run `bolt convert` on the checkpoint again",
                            from, digest, file.sha256));
  }
  placed.how = "stream";
  placed.links = 1;
  return false;
}

void PackageWriter::write_text(const std::string& name, const std::string& role,
                               const std::string& text) {
  OutputFile out(folder_.file(name));
  out.append(text);
  out.close();
  files_.push_back({.path = name,
                    .role = role,
                    .bytes = text.size(),
                    .sha256 = sha256_hex(text),
                    .how = "stream",
                    .links = 1});
}

std::vector<PackageFile> PackageWriter::finish(const PackageFacts& facts) {
  std::sort(files_.begin(), files_.end(),
            [](const PackageFile& a, const PackageFile& b) { return a.path < b.path; });
  const std::string text = package_json(facts, files_);
  OutputFile out(folder_.file("package.json"));
  out.append(text);
  out.close();
  folder_.commit();
  std::vector<PackageFile> all{{.path = "package.json",
                                .role = "manifest",
                                .bytes = text.size(),
                                .sha256 = sha256_hex(text),
                                .how = "stream",
                                .links = 1}};
  all.insert(all.end(), files_.begin(), files_.end());
  return all;
}

std::string package_json(const PackageFacts& facts, const std::vector<PackageFile>& files) {
  const auto list = [](JsonWriter& json, const std::vector<PackageFile>& items, bool roles) {
    json.begin_array();
    for (const PackageFile& file : items) {
      json.begin_object().member("path", file.path);
      if (roles) json.member("role", file.role);
      json.member("bytes", file.bytes).member("sha256", file.sha256).end_object();
    }
    json.end_array();
  };
  JsonWriter json(1);
  json.begin_object().member("format", "bolt-package/1").member("bolt", facts.bolt_version);
  json.key("arithmetic")
      .begin_object()
      .member("id", kContractId)
      .member("sha256", kContractSha256)
      .end_object();
  json.key("source").begin_object().member("name", facts.source).key("files");
  list(json, facts.source_files, false);
  json.end_object();
  json.key("options").raw(facts.options.empty() ? "{}" : facts.options);
  json.key("files");
  list(json, files, true);
  json.member("sha256", std::string(64, '0'));
  std::string text = json.end_object().take() + "\n";
  const std::size_t seal = text.rfind(" \"sha256\"");
  text.replace(text.rfind(std::string(64, '0')), 64,
               sha256_hex(std::string_view(text).substr(0, seal)));
  return text;
}

std::string sha256_of_file(const std::string& path) {
  FileFacts facts;
  const FileDescriptor file = open_regular_file(path, facts);
  std::vector<std::byte> buffer(std::min<std::uint64_t>(facts.bytes, kRunBytes));
  Sha256 sha;
  for (std::uint64_t at = 0; at < facts.bytes; at += buffer.size()) {
    check_interrupt();
    const auto n =
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), facts.bytes - at));
    read_at(file, path, at, {buffer.data(), n});
    sha.update(buffer.data(), n);
  }
  return sha.hex();
}

}  // namespace bolt
