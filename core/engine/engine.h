// Generation: sequences, rounds, drafts, counters. One loop serves prompts,
// ordinary and speculative decoding. Which tokens come out depends on the package and the request
// alone; EngineOptions and DraftOptions change only how fast.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/cpu.h"
#include "core/engine/backend.h"
#include "core/engine/profile.h"
#include "core/ops/ops.h"
#include "core/pack/package.h"

namespace bolt {

struct EngineOptions {
  int device = -1;  // -1: the CPU; else the GPU of that ordinal
  // Ranks that share the model (ranks.h): on the CPU n_ranks of them, which share its threads, or
  // one on each of these GPUs, of which `device` is the first. One may be named several times.
  int n_ranks = 1;
  std::vector<int> rank_devices;  // empty, or n_ranks
  bool graphs = true;             // GPU: capture calls of few rows and replay them
  int n_threads = 0;              // 0: all cores this process may run on
  Isa isa = Isa::automatic;       // asking for one this machine lacks is a usage error
  KvKind kv = KvKind::i16;
  int chunk_rows = 0;                // rows of a prompt call; 0: 512 on the CPU, 2048 on a GPU
  int window_rows = kWindowRowsMax;  // most rows of a decoding window, 1..32
  std::int64_t context = 0;          // most ids of a sequence; 0: the model's, or what fits
  int n_slots = 1;                   // sequences that may be open at once
  // For prefixes kept beyond their sequences; 0: none are, < 0: room for eight a sequence, or for
  // what an eighth of the free memory holds if that is less.
  std::int64_t prefix_bytes = 0;
  // Of the time while prompts fill, the part for passes without them; 0 to 0.9.
  double decode_share = 0.25;
  std::string cost_table;  // file; empty: measured once and cached
  std::string build_id;    // names this build in the cost cache; empty: nothing is cached
};

// Where drafts come from, and how many. drafts < 0: the depth rule decides.
struct DraftOptions {
  enum class Source { off, mtp, copy, automatic, dspark, dflash } source = Source::automatic;
  int drafts = -1;
};

// Exact, and equal from run to run (man/bolt-receipt.5).
struct Counters {
  std::int64_t target = 0;  // target passes after the prompt that held this sequence's rows
  std::int64_t prompt_passes = 0;
  std::int64_t rounds = 0;  // equal to target under bolt-exact (no segments)
  std::int64_t drafted = 0;
  std::vector<std::int64_t> accepted_at;  // by depth, non-increasing
  std::int64_t bonus = 0, cut = 0;
  std::int64_t copy_rounds = 0, copy_drafted = 0, copy_accepted = 0;
  std::int64_t head_levels = 0;
  std::int64_t block_passes = 0;  // of separate drafters
};

// A reply that is known, for benchmarks: drafts are its ids, each right with probability `rate`.
// The head's levels run and cost what they cost, though nobody listens.
struct Script {
  std::vector<int> reply_ids;
  double rate = 1.0;
  std::uint64_t seed = 0;
};

// How far a request has come, after each pass that held its rows.
struct Progress {
  std::int64_t n_prompt_done = 0;  // prompt ids whose rows have been run, reused ones included
  std::int64_t n_emitted = 0;
  const Counters* counters = nullptr;
};

struct Request {
  std::vector<int> prompt_ids;  // the whole sequence before the reply; at least one id
  SampleSpec sampling;          // position and n_vocab are filled in by the engine
  std::vector<int> stop_ids;    // a reply ends with one of them; empty with ignore_eos
  std::int64_t max_new = -1;    // -1: until a stop or the context's end
  DraftOptions draft;
  std::shared_ptr<const Script> script;  // drafts come from it, whatever `draft.source` says
  bool want_logits = false;              // hand each emitted position's logits to the sink
  // Called once a prompt chunk and once a round; for status lines. May be empty.
  std::function<void(const Progress&)> progress;
};

// Receives the reply as it is committed, one call a token, in order. `logits` is empty unless asked
// for. Returns false to end the reply with this token (a stop text was completed by it).
using TokenSink = std::function<bool(int id, std::span<const float> logits)>;

enum class Finish { eos, stop_text, limit, context, interrupted, error };

struct Reply {
  std::vector<int> ids;
  Finish finish = Finish::limit;
  int stop_id = -1;                  // of Finish::eos
  std::int64_t error_position = -1;  // absolute position of the token that could not be chosen
  std::int64_t n_prompt = 0;
  std::int64_t n_reused = 0;  // leading prompt ids whose state was already there
  std::int64_t n_nonfinite = 0;
  Counters counters;
  std::int64_t prefill_ns = 0, first_token_ns = 0, decode_ns = 0;
};

// What the target chooses at each position of a claimed reply, given the claimed ids before it.
struct Scoring {
  std::vector<int> chosen;  // one a claimed id, fewer where it was ended early
  std::int64_t passes = 0;
  std::int64_t n_nonfinite = 0;  // 1: the row after the last choice was not finite
  bool interrupted = false;
};

// One sequence's committed ids and state. Lives no longer than its Engine.
class Sequence {
 public:
  virtual ~Sequence() = default;
  virtual const std::vector<int>& ids() const = 0;  // all ids whose rows have been run and kept
  virtual void reset() = 0;
  // SHA-256 (hex) over the committed state: each layer in order, KV of the valid prefix only,
  // recurrent state and conv inputs with lagging rows replayed. Equal for equal ids, whatever ran.
  virtual std::string state_digest() const = 0;
};

// A reply in the making, for callers that share rounds among several. Ends with its sequence.
class Generation {
 public:
  virtual ~Generation() = default;
  virtual bool is_finished() const = 0;
  virtual const Reply& reply() const = 0;  // as far as it has come
};

class Engine {
 public:
  // Reads nothing of the package's files but the mapped weights, which must outlive the engine.
  static std::unique_ptr<Engine> open(const Package& package, const EngineOptions& options);
  virtual ~Engine() = default;

  virtual std::unique_ptr<Sequence> new_sequence() = 0;
  // Runs the prompt (only what the sequence does not hold yet: its ids must be a prefix of the
  // prompt, else it is reset) and the reply. `interrupt` is looked at once a round and chunk.
  virtual Reply generate(Sequence& sequence, const Request& request, const TokenSink& sink,
                         const std::atomic<bool>* interrupt = nullptr) = 0;

  // One teacher-forced run over the prompt and the claimed ids (score.h), at the speed of a prompt.
  virtual Scoring score(Sequence& sequence, const Request& request, std::span<const int> claimed,
                        const TokenSink& sink, const std::atomic<bool>* interrupt = nullptr) = 0;

  // generate() in steps: start() checks the request as generate() does; round() runs one pass over
  // the next rows of all that are not finished. The sequences must differ and outlive it.
  virtual std::unique_ptr<Generation> start(Sequence& sequence, const Request& request,
                                            TokenSink sink,
                                            const std::atomic<bool>* interrupt = nullptr) = 0;
  virtual void round(std::span<Generation* const> generations) = 0;

  // Whether memory for the request's keys and values is free beside those of open sequences;
  // start() sets it aside and throws Error(fault) where it is not. One request alone always has
  // room.
  virtual bool has_room(const Request& request) const = 0;

  // Times the parts of every call from now on; null: no more. The replies stay as they are.
  virtual void set_profile(Profile* profile) = 0;

  virtual std::int64_t context() const = 0;
  virtual int n_threads() const = 0;
  virtual const Backend& backend() const = 0;  // the first rank's
  virtual int n_ranks() const = 0;
  virtual std::string exchange_name() const = 0;  // how they exchange; empty of one rank
  // What a rank's part of the weights takes, by rank.
  virtual std::vector<std::uint64_t> weight_bytes() const = 0;
  virtual const std::string& cost_digest() const = 0;  // empty until a depth rule was asked for
  virtual bool costs_measured() const = 0;             // by this engine, not read from a file
};

const char* finish_name(Finish finish);

}  // namespace bolt
