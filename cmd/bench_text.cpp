// The table as people and programs read it.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cmd/bench_report.h"
#include "core/base/file_map.h"
#include "core/base/json.h"
#include "core/engine/cost_table.h"
#include "core/pack/graph_walk.h"
#include "receipts/display.h"

namespace bolt {
namespace {

using Cells = std::vector<std::string>;

std::string shown(const Spread& spread, int digits) {
  return spread.n == 0 ? "-" : fmt::format("{:.{}f}", spread.median, digits);
}

std::string ratio_text(const BenchRow& row) {
  if (!row.ratio.known()) return row.base.empty() ? "base" : "-";
  return fmt::format("{:.2f}x {} ({:.2f}-{:.2f})", row.ratio.value, row.base, row.ratio.low,
                     row.ratio.high);
}

// A markdown table of equally wide columns; the first line is the head.
std::string layout(const std::vector<Cells>& lines, const std::set<std::string>& left_aligned) {
  const Cells& head = lines[0];
  std::vector<std::size_t> widths(head.size());
  for (const Cells& cells : lines) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  const auto is_left = [&](std::size_t i) { return left_aligned.contains(head[i]); };
  std::string text;
  for (std::size_t k = 0; k < lines.size(); ++k) {
    for (std::size_t i = 0; i < head.size(); ++i) {
      text += is_left(i) ? fmt::format("| {:<{}} ", lines[k][i], widths[i])
                         : fmt::format("| {:>{}} ", lines[k][i], widths[i]);
    }
    text += "|\n";
    if (k > 0) continue;
    for (std::size_t i = 0; i < head.size(); ++i) {
      const std::string dashes(widths[i] + 1, '-');
      text += is_left(i) ? "|:" + dashes : "|" + dashes + ":";
    }
    text += "|\n";
  }
  return text;
}

// Columns that say the same in every row are left out.
std::string md_table(const BenchTable& table) {
  const auto differ = [&](std::string BenchRow::*field) {
    std::set<std::string> seen;
    for (const BenchRow& row : table.rows) seen.insert(row.*field);
    return seen.size() > 1;
  };
  const bool packages = differ(&BenchRow::package), builds = differ(&BenchRow::build);
  const bool ceilings = std::ranges::any_of(table.rows, &BenchRow::ceiling);
  std::vector<Cells> lines;
  Cells head;
  if (packages) head.emplace_back("package");
  if (builds) head.emplace_back("build");
  for (const char* name : {"mode", "length", "runs", "TTFT ms", "prompt t/s", "decode t/s", "+-",
                           "speed (99%)", "t/pass", "accepted"}) {
    head.emplace_back(name);
  }
  if (ceilings) head.emplace_back("GB/s");
  const bool clocks = std::ranges::any_of(table.rows, [](const BenchRow& r) { return r.sm_mhz.n; });
  if (clocks) head.insert(head.end(), {"SM MHz", "C", "GPU GB"});
  head.emplace_back("tokens");
  lines.push_back(head);
  for (const BenchRow& row : table.rows) {
    Cells cells;
    if (packages) cells.push_back(row.package);
    if (builds) cells.push_back(row.build);
    cells.insert(cells.end(),
                 {row.mode, row.group, std::to_string(row.n_runs), shown(row.ttft_ms, 1),
                  shown(row.prompt_rate, 1), shown(row.decode_rate, 2),
                  fmt::format("{:.1f}%", 100 * row.noise), ratio_text(row)});
    cells.push_back(row.n_target > 0 ? fmt::format("{:.2f}", row.tokens_per_pass) : "-");
    cells.push_back(row.n_drafted > 0
                        ? fmt::format("{:.0f}%", 100.0 * static_cast<double>(row.n_accepted) /
                                                     static_cast<double>(row.n_drafted))
                        : "-");
    if (ceilings) {
      cells.push_back(row.ceiling > 0 ? fmt::format("{:.2f} ({:.0f}%)", row.bytes_per_s / 1e9,
                                                    100 * row.bytes_per_s / row.ceiling)
                                      : "-");
    }
    if (clocks) {
      cells.push_back(shown(row.sm_mhz, 0));
      cells.push_back(shown(row.celsius, 0));
      cells.push_back(row.gpu_bytes > 0
                          ? fmt::format("{:.1f}", static_cast<double>(row.gpu_bytes) / 1e9)
                          : "-");
    }
    cells.push_back(row.equal ? "equal" : "DIFFER");
    lines.push_back(std::move(cells));
  }
  return layout(lines, {"package", "build", "mode", "length"});
}

// Forty eighth-filled cells a bar.
std::string bar(double share) {
  constexpr int kCells = 40;
  constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::clamp(share, 0.0, 1.0) * kCells * 8 + 0.5);
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  return text + kEighths[eighths % 8];
}

// Of the drafts of each depth that were reached, how many were right.
std::string acceptance_plots(const BenchTable& table) {
  std::string text;
  const std::string last = table.rows.back().group;
  for (const BenchRow& row : table.rows) {
    if (row.group != last || row.n_drafted == 0 || row.accepted_at.empty()) continue;
    text += fmt::format("\naccepted by depth, {} {} {} ({}), of {} passes\n", row.package,
                        row.build, row.mode, row.group, row.n_target);
    for (std::size_t i = 0; i < row.accepted_at.size(); ++i) {
      const double share =
          static_cast<double>(row.accepted_at[i]) / static_cast<double>(row.n_target);
      text += fmt::format("{:>3} {:5.1f}% {}\n", i + 1, 100 * share, bar(share));
    }
  }
  return text;
}

std::vector<CostTable> cost_tables(const BenchRuns& runs) {
  std::vector<CostTable> tables;
  for (const BenchPackage& package : runs.packages()) {
    if (package.cost_file.empty() || !path_exists(package.cost_file)) continue;
    tables.push_back(CostTable::parse(package.cost_file, read_file(package.cost_file)));
  }
  return tables;
}

// What a pass of a separate drafter costs, and how that compares with reading its weights.
std::string drafter_cost(const BenchRuns& runs, std::size_t package, const CostTable& costs,
                         BlockKind kind) {
  const int n = costs.block_drafts(kind);
  if (n == 0) return {};
  const auto bytes =
      static_cast<double>(runs.packages()[package].bytes_of_pass[static_cast<std::size_t>(kind)]);
  const double ns = costs.block(kind, n),
               ceiling = runs.ceiling(static_cast<std::int64_t>(package), 0);
  std::string text =
      fmt::format("{}: a pass for {} drafts {:.3f} ms, for 1 {:.3f} ms; it reads {:.1f} MB",
                  kind_name(kind), n, ns / 1e6, costs.block(kind, 1) / 1e6, bytes / 1e6);
  if (ceiling > 0)
    text += fmt::format(", {:.2f} times what memory takes for them", ns * ceiling / bytes / 1e9);
  return text + "\n";
}

std::string cost_plots(const BenchRuns& runs) {
  std::string text;
  const std::vector<CostTable> tables = cost_tables(runs);
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const CostTable& costs = tables[i];
    text += fmt::format(
        "\nV[r], what a window of r rows costs, {}: V[1] {:.3f} ms, head level "
        "{:.3f} ms\n",
        runs.packages()[i].name, costs.window(1) / 1e6, costs.level(false) / 1e6);
    for (int r = 1; r <= kWindowRowsMax; ++r) {
      text += fmt::format("{:>3} {:6.2f} {}\n", r, costs.window(r) / costs.window(1),
                          bar(costs.window(r) / costs.window(kWindowRowsMax)));
    }
    for (const BlockKind kind : kBlockKinds) text += drafter_cost(runs, i, costs, kind);
  }
  return text;
}

// A part a line: what it takes of a token's decoding, and of the prompt.
std::string profile_tables(const BenchRuns& runs) {
  std::string text;
  for (const BenchProfile& profile : runs.profiles()) {
    const auto of_decode = static_cast<double>(std::max<std::int64_t>(profile.n_decoded, 1));
    const auto of_prompt = static_cast<double>(std::max<std::int64_t>(profile.n_prompt, 1));
    const auto decode = static_cast<double>(std::max<std::int64_t>(profile.decode.total_ns(), 1));
    const auto prompt = static_cast<double>(std::max<std::int64_t>(profile.prompt.total_ns(), 1));
    text += fmt::format(
        "\ntime by part, {} {}, each part waited for: {} tokens decoded, prompt of {}\n"
        "              decode us/token      prompt us/token\n",
        profile.package, profile.mode, profile.n_decoded, profile.n_prompt);
    for (std::size_t i = 0; i < kPartNames.size(); ++i) {
      const auto d = static_cast<double>(profile.decode.ns[i]);
      const auto p = static_cast<double>(profile.prompt.ns[i]);
      if (d == 0 && p == 0) continue;
      text += fmt::format("{:<12} {:>10.2f} ({:4.1f}%)   {:>10.2f} ({:4.1f}%)  {}\n", kPartNames[i],
                          d / 1e3 / of_decode, 100 * d / decode, p / 1e3 / of_prompt,
                          100 * p / prompt, bar(d / decode));
    }
  }
  return text;
}

std::string verdict(const BenchTable& table, const BenchRuns& runs) {
  std::string text = fmt::format("{} of {} planned runs; ", table.n_found, table.n_planned);
  if (!table.not_comparable.empty()) {
    text += "NOT COMPARABLE: " + table.not_comparable + "\n";
  } else {
    text += table.equal ? "tokens equal in all of them\n"
                        : fmt::format("tokens DIFFER in {}\n", table.divergences.size());
  }
  constexpr std::size_t kShown = 8;
  for (std::size_t i = 0; i < table.divergences.size() && i < kShown; ++i) {
    text += "  " + receipts::inert(table.divergences[i]) + "\n";
  }
  if (table.divergences.size() > kShown) {
    text += fmt::format("  and {} more\n", table.divergences.size() - kShown);
  }
  for (const std::string& claim : table.claims)
    text += "null: a difference is claimed: " + claim + "\n";
  for (const auto& [build, peak] : runs.costs().peaks) {
    text += fmt::format("memory at most {:.0f} MB ({})\n", static_cast<double>(peak) / 1e6,
                        runs.plan().build_name(build));
  }
  for (const BenchPackage& package : runs.packages()) {
    text += fmt::format("{}: one row reads {:.1f} MB of weights", package.name,
                        static_cast<double>(package.bytes_of_row) / 1e6);
    for (std::int64_t d = 0; d < runs.n_devices(); ++d) {
      const double ceiling = runs.ceiling(&package - runs.packages().data(), d);
      text += fmt::format(", memory gives {:.2f} GB/s", ceiling / 1e9);
      std::string parts;  // MB
      for (const std::uint64_t bytes : runs.rank_bytes(&package - runs.packages().data(), d)) {
        parts +=
            fmt::format("{}{:.1f}", parts.empty() ? "" : ", ", static_cast<double>(bytes) / 1e6);
      }
      if (!parts.empty()) text += fmt::format(", ranks hold {} MB", parts);
      if (runs.n_devices() > 1) text += " on " + runs.plan().build_name(d);
    }
    text += "\n";
  }
  if (table.receipt_ms > 0) {
    text += fmt::format("receipts cost {:.2f} ms a run, {:.2f}% of it\n", table.receipt_ms,
                        100 * table.receipt_share);
  }
  return text + "receipts in " + runs.folder() + "\n";
}

std::string throughput_table(const BenchTable& table) {
  if (table.throughput.empty()) return {};
  std::vector<Cells> lines{{"package", "mode", "at once", "replies", "passes", "tok/s of all",
                            "range", "times the first (99%)", "tokens"}};
  for (const BenchThroughput& r : table.throughput) {
    lines.push_back({r.package, r.mode, std::to_string(r.n_parallel), std::to_string(r.n_prompts),
                     std::to_string(r.n_passes), shown(r.tok_per_s, 1),
                     fmt::format("{:.1f}-{:.1f}", r.tok_per_s.low, r.tok_per_s.high),
                     r.ratio.known() ? fmt::format("{:.2f}x ({:.2f}-{:.2f})", r.ratio.value,
                                                   r.ratio.low, r.ratio.high)
                                     : std::string("base"),
                     r.equal() ? "equal" : "DIFFER"});
  }
  return "\n" + layout(lines, {"package", "mode"});
}

void write_spread(JsonWriter& json, const char* name, const Spread& spread) {
  if (spread.n == 0) return;
  json.key(name).begin_object().member("median", spread.median).member("low", spread.low);
  json.member("high", spread.high).end_object();
}

void write_row(JsonWriter& json, const BenchRow& row) {
  json.begin_object().member("package", row.package).member("build", row.build);
  json.member("mode", row.mode).member("length", row.group).member("prompts", row.n_prompts);
  json.member("runs", row.n_runs).member("tokens", row.n_tokens);
  write_spread(json, "ttft_ms", row.ttft_ms);
  write_spread(json, "prompt_tok_per_s", row.prompt_rate);
  write_spread(json, "decode_tok_per_s", row.decode_rate);
  json.member("noise", row.noise);
  if (row.ratio.known()) {
    json.key("speed").begin_object().member("times", row.ratio.value).member("low", row.ratio.low);
    json.member("high", row.ratio.high).member("confidence", kConfidence).member("of", row.base);
    json.member("differs", row.ratio.differs()).end_object();
  }
  json.member("target_passes", row.n_target).member("tokens_per_pass", row.tokens_per_pass);
  json.member("drafted", row.n_drafted).member("accepted", row.n_accepted);
  json.member("accepted_at", row.accepted_at);
  if (row.bytes_per_s > 0) json.member("weight_bytes_per_s", row.bytes_per_s);
  if (row.ceiling > 0) json.member("read_ceiling_bytes_per_s", row.ceiling);
  write_spread(json, "gpu_sm_mhz", row.sm_mhz);
  write_spread(json, "gpu_celsius", row.celsius);
  if (row.gpu_bytes > 0) json.member("gpu_bytes", row.gpu_bytes);
  json.member("equal", row.equal);
  if (!row.divergence.empty()) json.member("divergence", row.divergence);
  json.end_object();
}

void write_throughput(JsonWriter& json, const BenchThroughput& r) {
  json.begin_object().member("package", r.package).member("mode", r.mode);
  json.member("at_once", r.n_parallel).member("prompts", r.n_prompts);
  json.member("passes", r.n_passes).member("tokens", r.n_tokens).member("plan", r.plan_rid);
  write_spread(json, "tok_per_s", r.tok_per_s);
  if (r.ratio.known()) {
    json.key("speed").begin_object().member("times", r.ratio.value).member("low", r.ratio.low);
    json.member("high", r.ratio.high).member("confidence", kConfidence).end_object();
  }
  json.member("equal", r.equal()).member("folder", r.folder).end_object();
}

void write_profile(JsonWriter& json, const BenchProfile& profile) {
  json.begin_object().member("package", profile.package).member("mode", profile.mode);
  json.member("decoded", profile.n_decoded).member("prompt", profile.n_prompt);
  for (const bool is_prompt : {false, true}) {
    json.key(is_prompt ? "prompt_ns" : "decode_ns").begin_object();
    const Profile& parts = is_prompt ? profile.prompt : profile.decode;
    for (std::size_t i = 0; i < kPartNames.size(); ++i) json.member(kPartNames[i], parts.ns[i]);
    json.end_object();
  }
  json.end_object();
}

std::string json_table(const BenchTable& table, const BenchRuns& runs) {
  JsonWriter json(1);
  json.begin_object().member("plan", runs.plan().rid()).member("planned", table.n_planned);
  json.member("runs", table.n_found).member("equal", table.equal);
  json.member("comparable", table.not_comparable.empty());
  json.member("divergences", table.divergences).member("claims", table.claims);
  json.key("rows").begin_array();
  for (const BenchRow& row : table.rows) write_row(json, row);
  json.end_array();
  json.key("packages").begin_array();
  const std::vector<CostTable> costs = cost_tables(runs);
  for (std::size_t i = 0; i < runs.packages().size(); ++i) {
    const BenchPackage& package = runs.packages()[i];
    json.begin_object().member("name", package.name);
    json.member("row_bytes", package.bytes_of_row);
    for (const BlockKind kind : kBlockKinds) {
      const std::uint64_t bytes = package.bytes_of_pass[static_cast<std::size_t>(kind)];
      if (bytes > 0) json.member(fmt::format("{}_pass_bytes", kind_name(kind)), bytes);
    }
    const auto rank_bytes = runs.rank_bytes(static_cast<std::int64_t>(i), 0);
    if (!rank_bytes.empty()) {
      json.key("rank_weight_bytes").begin_array();
      for (const std::uint64_t bytes : rank_bytes) json.value(bytes);
      json.end_array();
    }
    if (runs.ceiling(static_cast<std::int64_t>(i), 0) > 0) {
      json.member("read_ceiling_bytes_per_s", runs.ceiling(static_cast<std::int64_t>(i), 0));
    }
    if (i < costs.size()) json.key("costs").raw(costs[i].json());
    json.end_object();
  }
  json.end_array();
  json.key("parallel").begin_array();
  for (const BenchThroughput& series : table.throughput) write_throughput(json, series);
  json.end_array();
  json.key("profiles").begin_array();
  for (const BenchProfile& profile : runs.profiles()) write_profile(json, profile);
  json.end_array();
  json.key("peak_bytes").begin_object();
  for (const auto& [build, peak] : runs.costs().peaks)
    json.member(runs.plan().build_name(build), peak);
  json.end_object();
  json.member("receipt_ms", table.receipt_ms).member("receipt_share", table.receipt_share);
  json.member("folder", runs.folder());
  return json.end_object().take() + "\n";
}

std::string csv_table(const BenchTable& table) {
  std::string text =
      "package,build,mode,length,prompts,runs,tokens,ttft_ms,prompt_tok_per_s,decode_tok_per_s,"
      "noise,"
      "speed,speed_low,speed_high,speed_of,target_passes,tokens_per_pass,drafted,accepted,"
      "weight_bytes_per_s,read_ceiling_bytes_per_s,gpu_sm_mhz,gpu_celsius,gpu_bytes,equal,"
      "divergence\n";
  const auto quoted = [](std::string word) {
    if (word.find_first_of(",\"\n") == std::string::npos) return word;
    for (std::size_t at = 0; (at = word.find('"', at)) != std::string::npos; at += 2) {
      word.insert(at, 1, '"');
    }
    return "\"" + word + "\"";
  };
  for (const BenchRow& row : table.rows) {
    text += fmt::format(
        "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
        quoted(row.package), quoted(row.build), row.mode, row.group, row.n_prompts, row.n_runs,
        row.n_tokens, row.ttft_ms.median, row.prompt_rate.median, row.decode_rate.median, row.noise,
        row.ratio.value, row.ratio.low, row.ratio.high, quoted(row.base), row.n_target,
        row.tokens_per_pass, row.n_drafted, row.n_accepted, row.bytes_per_s, row.ceiling,
        row.sm_mhz.median, row.celsius.median, row.gpu_bytes, row.equal ? "true" : "false",
        quoted(row.divergence));
  }
  return text;
}

}  // namespace

std::string bench_text(const BenchTable& table, const BenchRuns& runs, BenchFormat format,
                       bool plots) {
  switch (format) {
    case BenchFormat::json:
      return json_table(table, runs);
    case BenchFormat::csv:
      return csv_table(table);
    case BenchFormat::jsonl: {
      std::string text;
      for (const BenchRow& row : table.rows) {
        JsonWriter json;
        write_row(json, row);
        text += json.take() + "\n";
      }
      for (const BenchThroughput& series : table.throughput) {
        JsonWriter json;
        write_throughput(json, series);
        text += json.take() + "\n";
      }
      for (const BenchProfile& profile : runs.profiles()) {
        JsonWriter json;
        write_profile(json, profile);
        text += json.take() + "\n";
      }
      return text;
    }
    case BenchFormat::md:
      break;
  }
  if (table.rows.empty()) return verdict(table, runs);
  return md_table(table) + "\n" + verdict(table, runs) + throughput_table(table) +
         (plots ? acceptance_plots(table) : std::string()) + cost_plots(runs) +
         profile_tables(runs);
}

}  // namespace bolt
