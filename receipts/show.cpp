// Every text that comes from a receipt passes inert(): a receipt may not speak to the terminal.
#include "receipts/show.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "receipts/attachments.h"
#include "receipts/verify.h"

namespace bolt::receipts {
namespace {

float f32_at(const Value& body, std::string_view path) {
  const std::string digits = body.string_at(path);
  return digits.empty()
             ? 0.0f
             : std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(digits, nullptr, 16)));
}

std::string text_at(const Value& body, std::string_view path) {
  return inert(body.string_at(path));
}

void list_fields(const Value& value, const std::string& path, std::vector<Line>& lines) {
  if (value.is_object()) {
    for (const auto& [key, child] : value.object()) {
      list_fields(child, path.empty() ? key : path + "." + key, lines);
    }
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.array().size(); ++i) {
      list_fields(value.array()[i], fmt::format("{}[{}]", path, i), lines);
    }
  } else {
    const std::string shown = value.is_string() ? inert(value.as_string()) : canonical(value);
    lines.push_back({fmt::format("{:<28} {}", path, shown), Tone::plain});
  }
}

std::string build_line(const Value& body) {
  std::string line = "build " + short_hex(body.string_at("build.exe"));
  if (const std::string commit = body.string_at("build.commit"); !commit.empty()) {
    line += fmt::format(" ({}{})", short_hex(commit, 7),
                        body.find("build.diff") != nullptr ? "+changes" : "");
  }
  if (body.find("package") != nullptr) {
    line += "  package " + short_hex(body.string_at("package.sha256"));
    if (const std::string source = text_at(body, "package.source"); !source.empty()) {
      line += fmt::format(" ({})", source);
    }
  }
  if (body.find("arith") != nullptr) {
    line += "  arith " + text_at(body, "arith.id");
    if (const std::string kv = body.string_at("arith.kv"); !kv.empty() && kv != "i16")
      line += " kv " + kv;
  }
  if (body.find("device") != nullptr) {
    line += fmt::format(" on {} {}", body.string_at("device.kind"), text_at(body, "device.arch"));
    if (const std::int64_t n = body.int_at("device.ranks"); n > 1)
      line += fmt::format(", {} ranks", n);
  }
  return line;
}

std::string sampling_line(const Value& body) {
  if (body.string_at("task.sampling.kind") == "greedy") return "greedy";
  return fmt::format("temperature {} top-k {} top-p {} min-p {} seed {}",
                     f32_at(body, "task.sampling.temperature"), body.int_at("task.sampling.top_k"),
                     f32_at(body, "task.sampling.top_p"), f32_at(body, "task.sampling.min_p"),
                     std::stoull(body.string_at("task.sampling.seed"), nullptr, 16));
}

// Why the reply ended.
std::string stop_words(const Value& body) {
  const std::string kind = body.string_at("stop.kind");
  if (kind == "eos") return fmt::format("ended by stop token {}", body.int_at("stop.id"));
  if (kind == "stop_text") return "ended by a stop text";
  if (kind == "limit") return "ended by the token limit";
  if (kind == "context") return "ended by a full context";
  if (kind == "error") return "ended by an error";
  return inert(kind);  // interrupted, cancelled
}

// Code points are counted as columns. A cut text ends in "...".
std::string cut_to(std::string text, std::size_t columns) {
  std::size_t n = 0, end = 0;  // where to cut, so that the dots still fit
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) continue;
    if (n == columns - 3) end = i;
    if (++n > columns) return text.substr(0, end) + "...";
  }
  return text;
}

// A prompt or reply, line by line behind a margin that no text can leave. On a terminal (columns >
// 0) shortened to what a glance takes in.
void show_text(const char* name, const std::string& text, int columns, std::vector<Line>& lines) {
  constexpr std::size_t kLinesMax = 8;
  constexpr std::string_view kMargin = "  | ";
  lines.push_back({fmt::format("{} ({}):", name, counted(std::ssize(text), "byte")), Tone::dim});
  std::size_t n = 0;
  std::string_view rest = text;
  bool cut = false;
  while (!rest.empty()) {
    if (columns > 0 && n == kLinesMax) {
      cut = true;
      break;
    }
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string line = inert(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (columns > 0) {
      const std::size_t whole = line.size();
      line = cut_to(std::move(line), static_cast<std::size_t>(columns) - kMargin.size());
      cut = cut || line.size() != whole;
    }
    lines.push_back({std::string(kMargin) + line});
    ++n;
  }
  if (cut) lines.push_back({"  shortened for the terminal; a pipe gets all of it", Tone::dim});
}

void show_run(const Receipt& receipt, int columns, std::vector<Line>& lines) {
  const Value& body = receipt.body;
  std::string line = fmt::format("{}, {} -> {}, {}", mode_name(body),
                                 counted(body.int_at("task.prompt_n"), "prompt token"),
                                 counted(body.int_at("out.n"), "token"), stop_words(body));
  if (body.find("count") != nullptr) {
    line += fmt::format(", {}, {}", counted(body.int_at("count.rounds"), "round"),
                        counted(body.int_at("count.target"), "target pass", "target passes"));
  }
  lines.push_back({line});
  if (const Value* accepted = body.find("count.accepted_at")) {
    line = fmt::format("{} drafted, accepted at depth 1 and on:", body.int_at("count.drafted"));
    for (const Value& n : accepted->array()) line += fmt::format(" {}", n.as_int());
    line += fmt::format("; {} from the target itself, {} cut off at the end",
                        body.int_at("count.bonus"), body.int_at("count.cut"));
    lines.push_back({line});
  }
  line = sampling_line(body);
  if (const std::int64_t cached = body.int_at("sched.cached_n"); cached > 0) {
    line += fmt::format(", {} from the cache", counted(cached, "prompt token"));
  }
  if (const std::int64_t at = body.int_at("out.margin.at"); at > 0) {
    line += fmt::format(", nearest tie {:.3g} at token {}", f32_at(body, "out.margin.value"), at);
  }
  lines.push_back({line});
  if (body.int_at("out.nonfinite") > 0) {
    lines.push_back({counted(body.int_at("out.nonfinite"), "row was", "rows were") +
                         " not finite: equal to nothing",
                     Tone::bad});
  }
  lines.push_back(
      {"answer " + short_hex(body.string_at("out.key"), 64) + " (out.key: task, tokens and stop)"});
  if (const std::string mode = body.string_at("redaction.mode"); mode != "plain") {
    lines.push_back({fmt::format("digests are {}, key {}", inert(mode),
                                 short_hex(body.string_at("redaction.key_id")))});
  }
  const Attachments& attached = receipt.attached;
  const BinderChoice choice = choose_binder(receipt, std::nullopt);
  const std::string unchecked =
      check_attachments(body, attached, choice.binder, choice.known, receipt.what);
  std::string list = attached.list();
  if (list.empty()) list = "nothing";
  if (!unchecked.empty())
    list += fmt::format(" ({} UNCHECKED: needs the redaction key)", unchecked);
  lines.push_back({"attached " + list, unchecked.empty() ? Tone::dim : Tone::bad});
  if (attached.prompt_text) show_text("prompt", *attached.prompt_text, columns, lines);
  if (attached.text) show_text("reply", *attached.text, columns, lines);
}

void show_conversion(const Value& body, std::vector<Line>& lines) {
  const Value* sources = body.find("conversion.source_files");
  const Value* files = body.find("package.files");
  lines.push_back({fmt::format(
      "from {} ({}), {} to {}, quant {}, geometry {}", text_at(body, "conversion.source_name"),
      counted(std::ssize(sources->array()), "file"),
      counted(body.int_at("conversion.tensors"), "tensor"),
      counted(std::ssize(files->array()), "file"), body.string_at("conversion.quant"),
      text_at(body, "conversion.geometry"))});
  lines.push_back({body.bool_at("conversion.verified")
                       ? fmt::format("{} compared and equal, {} requantised",
                                     counted(body.int_at("conversion.values_compared"), "value"),
                                     body.int_at("conversion.values_requantised"))
                       : std::string("values were not compared"),
                   body.bool_at("conversion.verified") ? Tone::good : Tone::bad});
}

void show_rest(const Value& body, std::vector<Line>& lines) {
  if (const Value* env = body.find("env")) {
    for (const Value& entry : env->array()) {
      const std::string name = entry.string_at("name");
      const bool injects =
          name == "LD_PRELOAD" || name == "LD_AUDIT" || name == "CUDA_INJECTION64_PATH";
      const std::string value = entry.find("value") != nullptr
                                    ? "=" + inert(entry.string_at("value"))
                                    : fmt::format(" set (value kept as a digest, {})",
                                                  short_hex(entry.string_at("sha256")));
      lines.push_back({fmt::format("env {}{}{}", inert(name), value,
                                   injects ? ": code was injected, the promise is dropped" : ""),
                       injects ? Tone::bad : Tone::plain});
    }
  }
  if (const Value* parents = body.find("parents")) {
    for (const Value& parent : parents->array()) {
      lines.push_back({fmt::format("parent {} receipt {}", parent.string_at("role"),
                                   short_hex(parent.string_at("rid")))});
    }
  }
  for (const char* list : {"limits_stated", "not_run"}) {
    if (const Value* items = body.find(list)) {
      for (const Value& item : items->array()) {
        lines.push_back(
            {fmt::format("{}: {}", std::string_view(list) == "not_run" ? "not run" : "limit",
                         inert(item.as_string()))});
      }
    }
  }
  std::string line = text_at(body, "time.utc");
  const std::pair<const char*, const char*> spans[] = {{"load", "time.load_ns"},
                                                       {"prefill", "time.prefill_ns"},
                                                       {"decode", "time.decode_ns"},
                                                       {"total", "time.total_ns"}};
  for (const auto& [name, path] : spans) {
    if (const std::int64_t ns = body.int_at(path); ns > 0) {
      line += fmt::format("  {} {}", name, short_time(ns));
    }
  }
  const std::int64_t ns = body.int_at("time.decode_ns"), n = body.int_at("out.n");
  if (ns > 0 && n > 1) {
    line +=
        fmt::format(" ({:.1f} tok/s)", 1e9 * static_cast<double>(n - 1) / static_cast<double>(ns));
  }
  if (!line.empty()) lines.push_back({line, Tone::dim});
}

}  // namespace

std::string mode_name(const Value& body) {
  if (body.string_at("mode.kind") == "ordinary") return "ordinary";
  const std::string source = body.string_at("mode.source");
  const std::string from = source == "auto" ? "" : " " + inert(source);
  if (body.bool_at("mode.adaptive")) return "speculative auto" + from;
  return fmt::format("speculative k{}{}", body.int_at("mode.depth"), from);
}

std::vector<Line> show(const Receipt& receipt, bool whole, int columns) {
  const Value& body = receipt.body;
  std::vector<Line> lines;
  const std::string signature =
      receipt.envelopes.empty()
          ? "not signed"
          : fmt::format("{} signature{} (unchecked: verify --key)", receipt.envelopes.size(),
                        receipt.envelopes.size() == 1 ? "" : "s");
  if (whole) {
    lines.push_back({fmt::format("{:<28} {}", "rid", receipt.rid), Tone::good});
    list_fields(body, "", lines);
    return lines;
  }
  const std::string kind = body.string_at("kind");
  lines.push_back(
      {fmt::format("{} {}  SEALED, {}", short_hex(receipt.rid), kind, signature), Tone::good});
  lines.push_back({build_line(body)});
  if (kind == "run") show_run(receipt, columns, lines);
  if (kind == "conversion") show_conversion(body, lines);
  if (kind == "session") {
    lines.push_back(
        {body.string_at("session.phase") == "open"
             ? std::string("session opened; its runs and totals are in the pack")
             : fmt::format("session closed: {}, {} answered, {} failed, root {}",
                           counted(body.int_at("session.lines"), "line"),
                           body.int_at("session.answered"), body.int_at("session.failed"),
                           short_hex(body.string_at("session.root")))});
  }
  if (kind == "plan" || kind == "audit" || kind == "bench") {
    list_fields(*body.find(kind), kind, lines);
  }
  show_rest(body, lines);
  return lines;
}

}  // namespace bolt::receipts
