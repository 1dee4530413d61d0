// Opening a package: manifest, paths, sizes, hashes, shapes and places, then the mapping.
#include "core/pack/package.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>

#include "core/base/cpu.h"
#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/json.h"
#include "core/base/sha256.h"
#include "core/base/thread_pool.h"
#include "core/pack/block_drafter.h"
#include "core/pack/file_kind.h"
#include "core/pack/graph_walk.h"
#include "core/pack/hash_cache.h"
#include "core/pack/manifest.h"
#include "core/pack/package_text.h"
#include "core/pack/tile_codec.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw Error(Exit::input, fmt::format("{}: {}", path, problem));
}

class OpenPackage final : public Package {
 public:
  OpenPackage(const std::string& path, const PackageOptions& options) : path_(path) {
    while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
    if (!path_exists(path_)) {
      throw Error(
          Exit::usage,
          fmt::format("{}: no such package; `bolt convert CHECKPOINT {}` makes one", path_, path_));
    }
    if (!is_folder(path_)) {
      FileFacts facts;
      const FileDescriptor file = open_regular_file(path_, facts);
      std::vector<std::byte> start(std::min<std::uint64_t>(facts.bytes, 512));
      read_at(file, path_, 0, start);
      const std::string_view kind = looks_like(start);
      fail(path_, fmt::format("is {}, expected a package folder", kind.empty() ? "a file" : kind));
    }
    read_manifest();
    map_files(options);
    read_texts();
    bind_weights();
    find_conversion();
  }
  ~OpenPackage() override { closing_ = true; }

  const std::string& path() const override { return path_; }
  const Graph& graph() const override { return graph_; }
  const ModelConfig& config() const override { return config_; }
  const std::string& tokenizer_json() const override { return tokenizer_; }
  const std::vector<PackageFile>& files() const override { return files_; }
  const std::string& arith_id() const override { return arith_id_; }
  const std::string& arith_sha256() const override { return arith_sha256_; }
  const std::string& source() const override { return source_; }
  const std::string& conversion_rid() const override { return conversion_rid_; }

  void check_unchanged() const override {
    if (behind_.valid()) behind_.get();
    for (const PackageFile& file : files_) {
      const auto at = descriptors_.find(file.path);
      if (at == descriptors_.end()) continue;  // package.json was read whole
      const FileMap& map = maps_.at(file.path);
      const FileFacts &then = map.facts(), now = file_facts(at->second, map.path());
      if (now == then) continue;
      const bool written = now.bytes != then.bytes || now.mtime_ns != then.mtime_ns;
      if (written || sha256_hex(map.bytes()) != file.sha256) {
        throw Error(Exit::fault,
                    fmt::format("{}: was written to while it was in use, so nothing can be said of "
                                "what was run; run `bolt convert` again",
                                map.path()));
      }
    }
  }

 private:
  std::string file_path(const std::string& name) const { return path_ + "/" + name; }

  void read_manifest() {
    const std::string name = file_path("package.json");
    if (!path_exists(name)) {
      fail(path_, path_exists(path_ + "/config.json")
                      ? "has no package.json: a checkpoint? `bolt convert` makes a package of it"
                      : "has no package.json; expected a package folder");
    }
    FileFacts facts;
    const FileDescriptor file = open_regular_file(name, facts, /*follow_symlink=*/false);
    const FileMap map(name, file, facts);
    Manifest manifest = parse_manifest(name, map.text());
    arith_id_ = std::move(manifest.arith_id);
    arith_sha256_ = std::move(manifest.arith_sha256);
    source_ = std::move(manifest.source);
    files_ = std::move(manifest.files);
    files_.insert(files_.begin(), {.path = "package.json",
                                   .role = "manifest",
                                   .bytes = facts.bytes,
                                   .sha256 = sha256_hex(map.text()),
                                   .how = "stream",
                                   .links = facts.links});
  }

  // Opens and maps every listed file, then hashes what the cache does not know.
  void map_files(const PackageOptions& options) {
    std::vector<std::size_t> to_hash;
    for (std::size_t i = 1; i < files_.size(); ++i) {
      PackageFile& file = files_[i];
      const std::string name = file_path(file.path);
      FileFacts facts;
      FileDescriptor descriptor = open_regular_file(name, facts, /*follow_symlink=*/false);
      if (facts.bytes != file.bytes) {
        fail(name, fmt::format("has {} bytes, package.json says {}; {}", facts.bytes, file.bytes,
                               facts.bytes < file.bytes ? "cut short, copy it again"
                                                        : "the file was changed"));
      }
      file.links = facts.links;
      const FileMap& map = maps_.emplace(file.path, FileMap(name, descriptor, facts)).first->second;
      descriptors_.emplace(file.path, std::move(descriptor));
      if (options.carry_hashes && file.role == "payload") {
        file.how = "carried";
        continue;
      }
      const auto cached = options.use_hash_cache ? cached_hash(facts) : std::nullopt;
      if (cached == file.sha256) {
        file.how = "cached";
        map.will_need();
      } else {
        to_hash.push_back(i);
      }
    }
    if (!options.hash_payload_behind) return hash(to_hash, options);
    const auto payload = std::stable_partition(
        to_hash.begin(), to_hash.end(), [&](std::size_t i) { return files_[i].role != "payload"; });
    hash({to_hash.begin(), payload}, options);
    if (payload == to_hash.end()) return;
    for (auto i = payload; i != to_hash.end(); ++i) files_[*i].how = "stream";
    behind_ = std::async(std::launch::async,
                         [this, options, which = std::vector<std::size_t>(payload, to_hash.end())] {
                           hash(which, options);
                         });
  }

  void hash(const std::vector<std::size_t>& which, const PackageOptions& options) {
    if (which.empty()) return;
    std::uint64_t bytes = 0;
    for (const std::size_t i : which) bytes += files_[i].bytes;
    constexpr std::uint64_t kWorthThreads = 4 << 20;
    const int wanted = options.n_threads > 0 ? options.n_threads : usable_cores();
    ThreadPool pool(bytes < kWorthThreads ? 1
                                          : std::min<int>(wanted, static_cast<int>(which.size())));
    pool.parallel_for(static_cast<int>(which.size()), 1, [&](int begin, int end, int) {
      for (int k = begin; k < end; ++k) {
        PackageFile& file = files_[which[static_cast<std::size_t>(k)]];
        const FileMap& map = maps_.at(file.path);
        const std::string digest = digest_of(map);
        if (closing_) return;
        if (digest != file.sha256) {
          fail(map.path(),
               fmt::format("its SHA-256 is {}, package.json says {}; the file was changed, "
                           "copy it or run `bolt convert` again",
                           digest, file.sha256));
        }
        if (file.how.empty()) file.how = "stream";
        if (options.use_hash_cache) remember_hash(map.facts(), digest);
      }
    });
  }

  // Empty if the package is closed meanwhile.
  std::string digest_of(const FileMap& map) const {
    constexpr std::size_t kPiece = std::size_t{16} << 20;
    Sha256 hash;
    for (auto rest = map.bytes(); !rest.empty();
         rest = rest.subspan(std::min(kPiece, rest.size()))) {
      if (closing_) return {};
      hash.update(rest.first(std::min(kPiece, rest.size())));
    }
    return hash.hex();
  }

  // The one file of a role.
  const FileMap& only(const std::string& role) const {
    const PackageFile* found = nullptr;
    for (const PackageFile& file : files_) {
      if (file.role != role) continue;
      if (found) fail(file_path("package.json"), fmt::format("lists two files of role {}", role));
      found = &file;
    }
    if (!found) fail(file_path("package.json"), fmt::format("lists no file of role {}", role));
    return maps_.at(found->path);
  }
  bool has(const std::string& role) const {
    return std::any_of(files_.begin(), files_.end(),
                       [&](const auto& file) { return file.role == role; });
  }

  void read_texts() {
    ModelFacts facts;
    const FileMap& config = only("config");
    parse_config_json(config.path(), std::string(config.text()), facts, config_);
    graph_ = graph_skeleton(facts);
    const FileMap& graph = only("graph");
    parse_graph_json(graph.path(), std::string(graph.text()), graph_);
    read_drafters();
    tokenizer_ = only("tokenizer").text();
    if (has("draft_vocab")) read_draft_vocab(only("draft_vocab"));
    const auto n_ids = graph_.draft ? static_cast<int>(graph_.draft->vocab_ids.size()) : 0;
    const int n_rows = graph_.draft ? graph_.draft->vocab_head.n_rows : 0;
    if (n_ids != n_rows) {
      fail(graph.path(),
           fmt::format("the draft vocabulary's head has {} rows, draft_vocab.json {} ids", n_rows,
                       n_ids));
    }
  }

  void read_drafters() {
    for (const PackageFile& file : files_) {
      if (file.role != "drafter") continue;
      const FileMap& map = maps_.at(file.path);
      BlockDrafter drafter = parse_drafter_json(map.path(), std::string(map.text()), graph_);
      for (const BlockDrafter& other : graph_.drafters) {
        if (other.kind == drafter.kind) {
          fail(map.path(), fmt::format("is a second {} drafter", kind_name(drafter.kind)));
        }
      }
      graph_.drafters.push_back(std::move(drafter));
    }
    std::sort(graph_.drafters.begin(), graph_.drafters.end(),
              [](const auto& a, const auto& b) { return a.kind < b.kind; });
  }

  void read_draft_vocab(const FileMap& file) {
    const JsonDocument document = JsonDocument::parse(file.path(), file.text());
    if (!graph_.draft) fail(file.path(), "is there, but the package has no draft head");
    int before = -1;
    for (const JsonValue& item : document.root().items()) {
      const int id = static_cast<int>(item.integer(0, graph_.vocab_size - 1));
      if (id <= before) item.fail(fmt::format("an id above {}; ids ascend", before));
      graph_.draft->vocab_ids.push_back(before = id);
    }
  }

  // The file that lists a weight.
  std::string graph_file(const std::string& weight) const {
    for (const BlockDrafter& drafter : graph_.drafters) {
      const std::string kind = kind_name(drafter.kind);
      if (weight.starts_with(kind + ".")) return file_path(kind + ".json");
    }
    return file_path("graph.json");
  }

  // Every weight inside its file, none over another.
  void bind_weights() {
    struct Range {
      std::uint64_t begin, end;
      std::string weight;
    };
    std::map<std::string, std::vector<Range>> ranges;
    each_weight(graph_, [&](const std::string& name, Weight& w) {
      const auto at = maps_.find(w.file);
      const bool payload = std::any_of(files_.begin(), files_.end(), [&](const PackageFile& file) {
        return file.path == w.file && file.role == "payload";
      });
      if (at == maps_.end() || !payload) {
        fail(graph_file(name), fmt::format("weight {} lies in {}, which is no payload file of "
                                           "package.json",
                                           name, json_quote(w.file)));
      }
      const FileMap& map = at->second;
      const auto place = [&](std::uint64_t offset, std::uint64_t bytes) {
        if (offset > map.size() || bytes > map.size() - offset) {
          fail(graph_file(name), fmt::format("weight {} takes bytes {} to {} of {}, which has {}",
                                             name, offset, offset + bytes, w.file, map.size()));
        }
        ranges[w.file].push_back({offset, offset + bytes, name});
        return map.bytes().data() + offset;
      };
      w.data = place(w.offset, w.bytes);
      if (has_gain(w.format)) {
        w.gains = reinterpret_cast<const float*>(
            place(w.gain_offset, static_cast<std::uint64_t>(w.n_matrices) * sizeof(float)));
      }
    });
    for (auto& [file, list] : ranges) {
      std::sort(list.begin(), list.end(),
                [](const Range& a, const Range& b) { return a.begin < b.begin; });
      for (std::size_t i = 1; i < list.size(); ++i) {
        if (list[i].begin >= list[i - 1].end) continue;
        fail(graph_file(list[i].weight),
             fmt::format("weights {} and {} overlap at byte {} of {}", list[i - 1].weight,
                         list[i].weight, list[i].begin, file));
      }
    }
  }

  // The conversion's receipt lies beside the package, its first line the body, its second the seal
  // with the body's hash. One that is broken or speaks of another package is left alone: a parent
  // that cannot be named is no reason not to run.
  void find_conversion() {
    const std::string receipt = conversion_receipt_path(path_);
    FileMap file;
    try {
      if (is_regular_file(receipt)) file = FileMap(receipt);
    } catch (const Error&) {
      return;  // not readable to us
    }
    const std::string_view all = file.text();
    const std::size_t end = all.find('\n');
    if (end == std::string_view::npos) return;
    const std::string_view body = all.substr(0, end);
    const std::string_view seal = all.substr(end + 1, all.find('\n', end + 1) - end - 1);
    const std::string rid = sha256_hex(body);
    const bool sealed = seal.find(fmt::format("\"rid\":\"{}\"", rid)) != std::string_view::npos;
    const bool ours = body.find(files_.front().sha256) != std::string_view::npos;
    if (sealed && ours) conversion_rid_ = rid;
  }

  std::string path_;
  std::vector<PackageFile> files_;
  std::map<std::string, FileMap> maps_;
  std::map<std::string, FileDescriptor> descriptors_;  // of the same, for check_unchanged
  Graph graph_;
  ModelConfig config_;
  std::string tokenizer_, arith_id_, arith_sha256_, source_, conversion_rid_;
  std::atomic<bool> closing_{false};
  mutable std::future<void> behind_;  // the payload's hashes, while they are made; dies first
};

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer(const Package& package) {
  const std::string name = package.path() + "/tokenizer.json";
  auto tokenizer = Tokenizer::from_json(package.tokenizer_json(), name);
  if (tokenizer->n_tokens() != package.config().n_tokens) {
    fail(name, fmt::format("has {} ids, config.json says {}; run `bolt convert` again",
                           tokenizer->n_tokens(), package.config().n_tokens));
  }
  return tokenizer;
}

std::string conversion_receipt_path(const std::string& package) {
  std::string path = package;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path.ends_with(".bolt")) path.resize(path.size() - 5);
  return path + ".bolt.jsonl";
}

std::unique_ptr<Package> Package::open(const std::string& path, const PackageOptions& options) {
  return std::make_unique<OpenPackage>(path, options);
}

}  // namespace bolt
