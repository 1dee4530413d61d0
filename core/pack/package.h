// A package folder NAME.bolt/, opened: every file checked, weights mapped and bound to the graph.
// Making one is convert.h; what a package means is man/bolt-package.5.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/pack/graph.h"

namespace bolt {

class Tokenizer;

// config.json of a package: facts under their normalised names.
struct ModelConfig {
  std::string name;        // the checkpoint's folder name
  std::string model_type;  // nemotron_h, ...
  int vocab_size = 0;      // rows of the head
  int n_tokens = 0;        // ids the tokenizer knows; those at or past it are never sampled
  std::int64_t context_limit = 0;
  int bos_id = -1;            // -1: none
  bool add_bos = false;       // raw text gets bos_id first
  std::vector<int> stop_ids;  // the union of all sources, ascending
  // generation_config.json's defaults, else greedy.
  bool do_sample = false;
  float temperature = 1.0f, top_p = 1.0f, min_p = 0.0f;
  int top_k = 0;
  // v3, v2, or none (unknown templates are refused with a hint to --raw).
  std::string chat_template;
  std::string chat_template_sha256;  // of the template's bytes, empty if the checkpoint has none
  // The template's source and its special tokens, as the JSON object that core/text/chat.h reads
  // (template_facts.h makes it when converting); empty if none.
  std::string chat_facts;
};

// One file of a package, as package.json lists it and as it was checked.
struct PackageFile {
  std::string path;  // relative, inside the folder
  // manifest (package.json itself), graph, config, tokenizer, draft_vocab, payload, drafter
  std::string role;
  std::uint64_t bytes = 0;
  std::string sha256;  // hex
  // stream: hashed now from the bytes used; cached: from the hash cache; carried: from the manifest
  // that lists the same file
  std::string how;
  std::uint64_t links = 1;
};

struct PackageOptions {
  int n_threads = 0;  // 0: all
  bool use_hash_cache = true;
  // Take the payload's hashes from package.json (how: carried): for those who link the files and
  // read no byte of them.
  bool carry_hashes = false;
  // Hash the payload on threads of its own while its caller reads it, too (a GPU's upload): a file
  // that is not what package.json says is refused by the first check_unchanged().
  bool hash_payload_behind = false;
};

class Package {
 public:
  // Opens and checks everything before the first byte is used. Throws Error(input) naming file,
  // field, expected and found; Error(fault) where the files cannot be read.
  static std::unique_ptr<Package> open(const std::string& path, const PackageOptions& options = {});
  virtual ~Package() = default;

  virtual const std::string& path() const = 0;
  virtual const Graph& graph() const = 0;
  virtual const ModelConfig& config() const = 0;
  virtual const std::string& tokenizer_json() const = 0;  // the file's bytes
  // package.json first, then the files it lists, by path.
  virtual const std::vector<PackageFile>& files() const = 0;
  virtual const std::string& arith_id() const = 0;      // bolt-exact/1
  virtual const std::string& arith_sha256() const = 0;  // of the contract's test vectors
  virtual const std::string& source() const = 0;        // declared origin, e.g. folder name
  // rid of the conversion receipt that lies beside the package and names its manifest's hash; empty
  // if there is none.
  virtual const std::string& conversion_rid() const = 0;
  // Says whether the mapped files still are what was checked at opening: Error(fault) naming one
  // that was written to since, through whatever name. A file whose links alone changed is hashed
  // again. Asked after a load and before a receipt is sealed. Waits for hashes that are still being
  // made, and throws what open() would have thrown.
  virtual void check_unchanged() const = 0;
};

// The package's tokenizer; it has the ids that config.json counts, none without a row of the head.
std::unique_ptr<Tokenizer> read_tokenizer(const Package& package);

// Where a package's conversion receipt lies: NAME.bolt has NAME.bolt.jsonl beside it.
std::string conversion_receipt_path(const std::string& package);

}  // namespace bolt
