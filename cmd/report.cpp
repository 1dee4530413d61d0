// Words and numbers about a reply; nothing here decides anything.
#include "cmd/report.h"

#include <fmt/format.h>

#include <chrono>
#include <numeric>

namespace bolt {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double ms(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

// Milliseconds with three decimals, as JSON: finer digits are noise.
std::string rounded(double x) { return fmt::format("{:.3f}", x); }

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

std::string percent(std::int64_t part, std::int64_t whole) {
  return fmt::format("{:.0f}%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace

void write_done(JsonWriter& json, const Task& task, const Outcome& outcome) {
  const Reply& reply = outcome.reply;
  json.member("event", "done");
  json.member("text", outcome.text);
  json.member("ids", reply.ids);
  json.member("finish_reason", finish_reason(outcome.stop));
  json.member("stop", outcome.stop);
  if (outcome.stop == "error") json.member("error_position", reply.error_position);
  json.key("usage").begin_object();
  json.member("prompt", reply.n_prompt).member("reused", reply.n_reused);
  json.member("completion", reply.ids.size()).end_object();
  if (task.sampling.temperature > 0.0f) json.member("seed", task.sampling.seed);
  const Counters& c = reply.counters;
  json.key("counters").begin_object();
  json.member("target", c.target).member("rounds", c.rounds);
  json.member("prompt_passes", c.prompt_passes).member("drafted", c.drafted);
  json.member("accepted_at", c.accepted_at).member("bonus", c.bonus).member("cut", c.cut);
  json.key("copy").begin_object();
  json.member("rounds", c.copy_rounds).member("drafted", c.copy_drafted);
  json.member("accepted", c.copy_accepted).end_object();
  json.member("head_levels", c.head_levels);
  json.member("block_passes", c.block_passes).end_object();
  json.member("receipt", outcome.receipt.path);
  json.key("timing").begin_object();
  json.key("ttft_ms").raw(rounded(ms(reply.first_token_ns)));
  json.key("prefill_ms").raw(rounded(ms(reply.prefill_ns)));
  json.key("decode_ms").raw(rounded(ms(reply.decode_ns)));
  json.key("total_ms").raw(rounded(ms(outcome.total_ns)));
  json.key("prompt_tok_per_s").raw(rounded(outcome.prompt_tok_per_s()));
  json.key("decode_tok_per_s").raw(rounded(outcome.decode_tok_per_s())).end_object();
}

std::string last_line(const Outcome& outcome) {
  const Reply& reply = outcome.reply;
  std::string line = fmt::format("{} token{}", reply.ids.size(), reply.ids.size() == 1 ? "" : "s");
  if (!reply.ids.empty()) line += fmt::format(", first after {:.0f} ms", ms(reply.first_token_ns));
  if (reply.ids.size() > 1) {
    line += fmt::format(", {:.1f} tok/s, {:.2f} tokens/pass", outcome.decode_tok_per_s(),
                        outcome.tokens_per_pass());
  }
  return line + fmt::format(", {}, receipt {}", outcome.stop, outcome.receipt.path);
}

std::string counter_lines(const Outcome& outcome) {
  const Reply& reply = outcome.reply;
  const Counters& c = reply.counters;
  std::string lines =
      fmt::format("prompt    {} tokens, {} reused, {} passes, {:.1f} tok/s\n", reply.n_prompt,
                  reply.n_reused, c.prompt_passes, outcome.prompt_tok_per_s());
  lines += fmt::format("passes    {} target, {} rounds, {:.2f} tokens/pass\n", c.target, c.rounds,
                       outcome.tokens_per_pass());
  std::string depths;
  for (const std::int64_t n : c.accepted_at) depths += fmt::format(" {}", n);
  lines += fmt::format("drafts    {} drafted, {} accepted{}; by depth{}\n", c.drafted,
                       sum(c.accepted_at),
                       c.drafted > 0 ? " (" + percent(sum(c.accepted_at), c.drafted) + ")" : "",
                       depths.empty() ? " none" : depths);
  lines += fmt::format("bonus     {}, cut {}, head levels {}, block passes {}\n", c.bonus, c.cut,
                       c.head_levels, c.block_passes);
  return lines + fmt::format("copies    {} rounds, {} drafted, {} accepted\n", c.copy_rounds,
                             c.copy_drafted, c.copy_accepted);
}

LiveLine::LiveLine(std::int64_t n_prompt) : n_prompt_(n_prompt), start_ns_(now_ns()) {}

std::string LiveLine::text(const Progress& progress) {
  const std::int64_t now = now_ns();
  const auto rate = [now](std::int64_t n, std::int64_t since) {
    return now > since ? static_cast<double>(n) * 1e9 / static_cast<double>(now - since) : 0.0;
  };
  if (progress.n_emitted == 0) {
    return fmt::format("prompt {}/{}  {:.0f} tok/s", progress.n_prompt_done, n_prompt_,
                       rate(progress.n_prompt_done, start_ns_));
  }
  if (first_ns_ == 0) first_ns_ = now;
  std::string line = fmt::format("{} tokens  {:.1f} tok/s", progress.n_emitted,
                                 rate(progress.n_emitted - 1, first_ns_));
  if (progress.counters == nullptr || progress.counters->target == 0) return line;
  const Counters& c = *progress.counters;
  line += fmt::format("  {:.2f} tokens/pass",
                      static_cast<double>(progress.n_emitted - 1) / static_cast<double>(c.target));
  if (c.drafted > 0) line += "  " + percent(sum(c.accepted_at), c.drafted) + " accepted";
  return line;
}

}  // namespace bolt
