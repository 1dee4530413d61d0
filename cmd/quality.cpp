// Teacher-forced comparison of two packages.
#include "cmd/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/interrupt.h"
#include "core/base/json.h"
#include "core/engine/engine.h"
#include "core/pack/package.h"
#include "core/text/chat.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

constexpr std::int64_t kPositions = 16;  // of each reply

struct Prompt {
  std::string name;
  std::vector<int> ids;
};

std::vector<Prompt> read_prompts(const std::string& path, const Package& package) {
  const auto tokenizer = read_tokenizer(package);
  const std::string text = read_file(path);
  std::vector<Prompt> prompts;
  std::size_t line = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view row = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line;
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{} line {}", path, line);
    const JsonDocument document = JsonDocument::parse(where, row);
    std::vector<Message> messages;
    if (const auto turns = document.root().find_set("messages")) {
      for (const JsonValue& turn : turns->items()) {
        Message message;
        message.role = turn.at("role").string();
        message.content = turn.at("content").string();
        messages.push_back(std::move(message));
      }
    } else {
      messages.push_back({.role = "user",
                          .content = std::string(document.root().at("prompt").string()),
                          .reasoning = "",
                          .tool_calls = {}});
    }
    Prompt prompt;
    const auto id = document.root().find_set("custom_id");
    prompt.name = id ? std::string(id->string()) : where;
    const ChatTemplate chat(package.config().chat_template, package.config().chat_facts);
    prompt.ids = tokenizer->encode(chat.render(messages, {.thinking = false}), false);
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) throw Error(Exit::input, path + ": holds no prompt");
  return prompts;
}

// A package with an engine and one sequence.
class Runner {
 public:
  Runner(const std::string& path, int n_threads)
      : package_(Package::open(path, {.n_threads = n_threads})),
        engine_([&] {
          EngineOptions options;
          options.n_threads = n_threads;
          return Engine::open(*package_, options);
        }()),
        sequence_(engine_->new_sequence()) {}

  const Package& package() const { return *package_; }
  void reset() { sequence_->reset(); }
  // Logits behind these ids, and the id preferred there; -1 past the context or in a row that is
  // not finite.
  int next(const std::vector<int>& ids, std::vector<float>& logits) {
    Request request;
    request.prompt_ids = ids;
    request.max_new = 1;
    request.want_logits = true;
    request.draft.source = DraftOptions::Source::off;
    int chosen = -1;
    engine_->generate(*sequence_, request, [&](int id, std::span<const float> row) {
      chosen = id;
      logits.assign(row.begin(), row.end());
      return true;
    });
    return chosen;
  }

 private:
  std::unique_ptr<Package> package_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Sequence> sequence_;
};

// KL(p || q) of the softmaxes over the first n logits, in double.
double divergence(std::span<const float> p, std::span<const float> q, std::size_t n) {
  const auto log_sum = [n](std::span<const float> x) {
    const double most = static_cast<double>(
        *std::max_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n)));
    double sum = 0.0;
    for (std::size_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i]) - most);
    return most + std::log(sum);
  };
  const double of_p = log_sum(p), of_q = log_sum(q);
  double kl = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    const double a = static_cast<double>(p[i]) - of_p, b = static_cast<double>(q[i]) - of_q;
    kl += std::exp(a) * (a - b);
  }
  return std::max(0.0, kl);
}

}  // namespace

Quality compare_distributions(const std::string& reference, const std::string& other,
                              const std::string& prompts, int n_threads) {
  Runner right(reference, n_threads), tried(other, n_threads);
  const int n_tokens = right.package().config().n_tokens;
  if (n_tokens != tried.package().config().n_tokens) {
    throw Error(Exit::usage,
                fmt::format("{} has {} token ids, {} has {}; they are not of one model", reference,
                            n_tokens, other, tried.package().config().n_tokens));
  }
  const std::vector<int>& stops = right.package().config().stop_ids;
  Quality quality;
  double sum = 0.0;
  std::vector<float> p, q;
  for (Prompt& prompt : read_prompts(prompts, right.package())) {
    right.reset();
    tried.reset();
    ++quality.n_prompts;
    for (std::int64_t i = 0; i < kPositions; ++i) {
      check_interrupt();
      const int wanted = right.next(prompt.ids, p), found = tried.next(prompt.ids, q);
      if (wanted < 0 || found < 0) break;
      const double kl = divergence(p, q, static_cast<std::size_t>(n_tokens));
      sum += kl;
      ++quality.n_positions;
      quality.n_same_choice += wanted == found;
      if (kl > quality.largest_kl) {
        quality.largest_kl = kl;
        quality.worst_prompt = prompt.name;
        quality.worst_position = i;
      }
      if (std::find(stops.begin(), stops.end(), wanted) != stops.end()) break;
      prompt.ids.push_back(wanted);
    }
  }
  if (quality.n_positions > 0) sum /= static_cast<double>(quality.n_positions);
  quality.mean_kl = sum;
  return quality;
}

}  // namespace bolt
