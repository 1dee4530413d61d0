// Placing, packing, hashing and naming a package's files.
#include "core/pack/package_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>

#include "core/base/contract.h"
#include "core/base/error.h"
#include "core/base/interrupt.h"
#include "core/base/json.h"
#include "core/base/sha256.h"
#include "core/pack/graph_walk.h"

namespace bolt {
namespace {

constexpr std::uint64_t kRunBytes = 1 << 20;
constexpr std::uint64_t kGainAlignment = 64;

std::uint64_t aligned(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

// Payload bytes of a weight with its gains behind it.
std::uint64_t placed_bytes(const Weight& w) {
  if (!has_gain(w.format)) return w.bytes;
  return aligned(w.bytes, kGainAlignment) +
         static_cast<std::uint64_t>(w.n_matrices) * sizeof(float);
}

bool is_package(const std::string& path) { return path_exists(path + "/package.json"); }

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

void PackageWriter::place_weights(Graph& graph) {
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
      file = fmt::format("weights-{:05}.bin", ++n_files);
      end = 0;
    }
    w.file = file;
    w.offset = aligned(end, kWeightAlignment);
    w.gain_offset = has_gain(w.format) ? aligned(w.offset + w.bytes, kGainAlignment) : 0;
    end = w.offset + placed_bytes(w);
  });
  close();
}

void PackageWriter::write_weights(Graph& graph, const FillRows& fill, const GainOf& gain,
                                  const WorkProgress& progress) {
  place_weights(graph);
  std::map<std::string, OutputFile> outputs;
  std::uint64_t total = 0;
  for (const PackageFile& file : files_) {
    if (file.role != "payload") continue;
    OutputFile& out = outputs.emplace(file.path, OutputFile(folder_.file(file.path))).first->second;
    out.reserve(file.bytes);
    total += file.bytes;
  }
  std::vector<std::string> names;
  const std::vector<RowRun> runs = row_runs(graph, names);
  Meter meter(progress, "packing", total);
  const auto body = [&](int begin, int end, int) {
    RowCodes rows;
    std::vector<std::byte> packed;
    for (int i = begin; i < end; ++i) {
      check_interrupt();
      const RowRun& run = runs[static_cast<std::size_t>(i)];
      const Weight& w = *run.weight;
      rows.resize(w.format, run.n_rows, w.n_cols);
      fill(run, rows);
      std::span<const std::byte> bytes = rows.codes;
      std::uint64_t row_bytes =
          static_cast<std::uint64_t>(w.n_cols) * static_cast<std::uint64_t>(code_bytes(w.format));
      if (w.layout == Layout::tiles) {
        const auto bytes_of_tile = static_cast<std::size_t>(tile_bytes(w.format, w.n_cols));
        packed.resize(static_cast<std::size_t>(n_tiles(run.n_rows)) * bytes_of_tile);
        for (int tile = 0; tile < n_tiles(run.n_rows); ++tile) {
          pack_tile(rows, tile * kTileRows,
                    packed.data() + static_cast<std::size_t>(tile) * bytes_of_tile);
        }
        bytes = packed;
        row_bytes = bytes_of_tile / kTileRows;
      }
      outputs.at(w.file).write_at(w.offset +
                                      static_cast<std::uint64_t>(run.matrix) * w.matrix_bytes() +
                                      static_cast<std::uint64_t>(run.first_row) * row_bytes,
                                  bytes);
      meter.add(bytes.size());
    }
  };
  // Runs go out in small pieces, so that threads stay near each other in the files.
  constexpr int kPiece = 256;
  for (int first = 0; first < static_cast<int>(runs.size()); first += kPiece) {
    const int n = std::min(kPiece, static_cast<int>(runs.size()) - first);
    pool_.parallel_for(
        n, 1, [&](int begin, int end, int thread) { body(first + begin, first + end, thread); });
  }
  each_weight(graph, [&](const std::string& name, const Weight& w) {
    if (!has_gain(w.format)) return;
    std::vector<float> gains;
    for (int m = 0; m < w.n_matrices; ++m) gains.push_back(gain(name, m));
    outputs.at(w.file).write_at(w.gain_offset, std::as_bytes(std::span(gains)));
  });
  for (auto& [name, out] : outputs) out.close();
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

std::vector<PackageFile> PackageWriter::finish(const PackageFacts& facts,
                                               const WorkProgress& progress) {
  std::uint64_t total = 0;
  for (const PackageFile& file : files_) total += file.sha256.empty() ? file.bytes : 0;
  Meter meter(progress, "hashing", total);
  pool_.parallel_for(static_cast<int>(files_.size()), 1, [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) {
      PackageFile& file = files_[static_cast<std::size_t>(i)];
      if (!file.sha256.empty()) continue;
      file.sha256 = sha256_of_file(folder_.file(file.path));
      meter.add(file.bytes);
    }
  });
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
  std::vector<std::byte> buffer(std::min<std::uint64_t>(facts.bytes, 1 << 20));
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
