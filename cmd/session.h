// What a command that answers prompts holds open: the package, its tokenizer, the engine and the
// place for receipts; and how one reply is made, timed, and sealed. What is printed is the
// caller's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cmd/generation.h"
#include "cmd/options.h"
#include "core/engine/engine.h"
#include "core/pack/package.h"
#include "core/text/tokenizer.h"
#include "receipts/facts.h"
#include "receipts/plan.h"
#include "receipts/write.h"

namespace bolt {

// One reply to be made, everything resolved.
struct Task {
  std::vector<int> prompt_ids;
  std::string prompt_text;  // what was tokenised, if a text was
  bool has_prompt_text = false;
  std::string input;       // the prompt's bytes as they were given, if a text was
  bool templated = false;  // the package's chat template made prompt_text
  SampleSpec sampling;
  std::vector<std::string> stop_texts;
  bool ignore_eos = false;
  std::int64_t max_new = -1;
  DraftOptions draft;
  std::shared_ptr<const Script> script = {};  // drafts come from it (bench)
  std::optional<std::int64_t> cell = {};      // the planned run that this is
};

// What a reply tells while it is being made. All may be empty.
struct Listener {
  // The next piece of text, whole characters, no stop text. Throwing ends the reply as cancelled;
  // the receipt is sealed and the exception thrown again.
  std::function<void(const std::string&)> text;
  std::function<void(int id, std::span<const float> logits)> token;
  bool wants_logits = false;  // else `token` gets none, unless the receipt needs them
  std::function<void(const Progress&)> progress;
};

struct Outcome {
  Reply reply;
  std::string text;
  std::string
      stop;  // receipts' word: eos, limit, context, stop_text, interrupted, cancelled, error
  receipts::Written receipt;
  std::string unplanned;  // why the run is not the planned one; empty if it is, or none was planned
  std::int64_t total_ns = 0;
  std::int64_t seal_ns = 0;  // what the receipt cost, after total_ns

  double decode_tok_per_s() const;  // 0 where fewer than two tokens came
  double prompt_tok_per_s() const;
  double tokens_per_pass() const;  // of the passes after the prompt
};

// OpenAI's word for how a reply ended: stop, length, context, cancelled, error.
const char* finish_reason(const std::string& stop);

class Answering;

class Session {
 public:
  // Opens and checks all of it. Error as find_package, Package::open, Tokenizer::from_json and
  // Engine::open throw, and where receipts cannot be written.
  Session(const ModelOptions& model, const HowOptions& how, const ReceiptOptions& receipt);

  // The plan whose cells tasks name from now on.
  void use_plan(receipts::Plan plan);

  const Package& package() const { return *package_; }
  const ModelConfig& config() const { return package_->config(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Engine& engine() { return *engine_; }
  const receipts::Where& where() const { return where_; }
  const receipts::Attach& attach() const { return receipt_.attach; }
  // Package, device, context and load time, a line each, for --verbose.
  std::string description() const;
  // The GPUs that were asked for, one a rank; empty on the CPU, and where none was named.
  const std::vector<int>& gpus() const { return gpus_; }
  // "costs     ...": which cost table chose the drafts, and whether it was measured now; empty
  // where none was needed yet.
  std::string cost_line() const;
  // All of a task but its prompt. Error(usage) where the package cannot do what was asked.
  Task task(const GenerationOptions& options) const;

  // Makes the reply and seals its receipt, whatever ends it; a numeric error or an interrupt is an
  // Outcome, too. `interrupt` ends the reply; it is set, too, when a listener throws. Throws what
  // Engine::generate does for a prompt that does not fit.
  Outcome answer(Sequence& sequence, const Task& task, const Listener& listener,
                 std::atomic<bool>& interrupt);

  // Seals a reply that has ended, made by whoever ran the engine, as a file of its own in `folder`,
  // if not where receipts go. Null sequence: as facts().
  Outcome& seal(Answering& answering, Sequence* sequence, const std::string& folder = {});
  const std::optional<receipts::Plan>& plan() const { return plan_; }

  // Makes the reply and seals nothing: for warming up, never for a result that is shown.
  Reply rehearse(Sequence& sequence, const Task& task, std::atomic<bool>& interrupt);

  // What a receipt says of a reply that has ended; the process (executable, environment, device) is
  // left out, as a pack's receipts leave it to their session. sequence: null if no row of it ran.
  receipts::RunFacts facts(const Answering& answering, Sequence* sequence) const;
  // What the opening receipt of a session says. draft: of lines that say nothing else.
  receipts::SessionFacts session_facts(const DraftOptions& draft) const;
  const receipts::PackageFacts& package_facts() const { return package_facts_; }
  receipts::Device device_facts() const;

 private:
  void add_process(receipts::Common& common) const;
  receipts::Arith arith_facts() const;
  receipts::Mode mode_facts(const DraftOptions& draft) const;

  std::string ranks_line() const;

  HowOptions how_;
  std::vector<int> gpus_;
  ReceiptOptions receipt_;
  receipts::Redaction redaction_;
  receipts::Where where_;
  std::unique_ptr<Package> package_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  receipts::PackageFacts package_facts_;
  std::optional<receipts::Plan> plan_;
  std::int64_t load_ns_ = 0;
};

// Opens a session on another thread, so that Ctrl-C works while a large package is read. A load
// that is nearly done may still finish, so that a receipt can say `interrupted`; a longer one ends
// the process, with nothing run and nothing to seal. quiet: no live line on stderr.
std::unique_ptr<Session> open_session(const ModelOptions& model, const HowOptions& how,
                                      const ReceiptOptions& receipt, bool quiet);

}  // namespace bolt
