// The frozen prompts sent together through `bolt serve-stdin` equal `bolt run` alone, in ids and
// logits: at several widths and orders, drafted and not, greedy and sampled. A part by default, all
// of it with BOLT_FULL_TESTS=1 (half an hour on two cores).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "cmd/testing/batch_records.h"
#include "core/base/json.h"

namespace bolt::testing {
namespace {

const bool kFull = std::getenv("BOLT_FULL_TESTS") != nullptr;

// The lines of real30, by custom_id, as native requests with `more`.
std::vector<std::pair<std::string, std::string>> read_lines(std::size_t n) {
  std::ifstream file(BOLT_SOURCE_DIR "/testdata/prompts/real30.jsonl");
  std::vector<std::pair<std::string, std::string>> lines;
  for (std::string text; std::getline(file, text) && lines.size() < n;) {
    const JsonDocument document = JsonDocument::parse("real30", text);
    lines.emplace_back(document.root().at("custom_id").json(),
                       document.root().at("messages").json());
  }
  REQUIRE(lines.size() == n);
  return lines;
}

std::string newest_pack(const ScratchFolder& home, const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(home.file(folder))) {
    if (entry.path().string().ends_with(".runs.jsonl")) return entry.path().string();
  }
  return {};
}

// The prompt ids that a pack's runs have attached, as JSON arrays, by line.
std::map<std::int64_t, std::string> prompt_ids(const std::string& pack) {
  std::map<std::int64_t, std::string> ids;
  std::istringstream in(file_bytes(pack));
  std::int64_t line = 0;
  for (std::string text; std::getline(in, text);) {
    const JsonDocument document = JsonDocument::parse("pack", text);
    const JsonValue root = document.root();
    if (const auto request = root.find("request")) line = request->at("line").integer();
    const auto kind = root.find("kind");
    if (kind && kind->string() == "prompt_ids") ids[line] = root.at("data").json();
  }
  return ids;
}

}  // namespace

TEST_SUITE_BEGIN("binary");

TEST_CASE("serve-stdin: real30 together, in any order and number, equals each alone (case 19)") {
  const ScratchFolder home;
  const auto lines = read_lines(kFull ? 30 : 4);
  const std::string n_tokens = kFull ? "120" : "24";
  const auto batch = [&](const std::vector<std::size_t>& order, bool sampled, bool drafted) {
    std::string text;
    for (const std::size_t i : order) {
      text +=
          "{\"id\": " + lines[i].first + ", \"messages\": " + lines[i].second +
          ", \"logits_sha256\": true, \"max_tokens\": " + n_tokens + ", \"draft\": \"" +
          (drafted ? "auto" : "off") + "\"" +
          (sampled ? ", \"temperature\": 0.9, \"top_p\": 0.98, \"seed\": " + std::to_string(100 + i)
                   : "") +
          "}\n";
    }
    return text;
  };
  std::vector<std::size_t> forward(lines.size());
  for (std::size_t i = 0; i < forward.size(); ++i) forward[i] = i;
  // What the template makes of them, then each by itself.
  const Served first = serve(home, batch(forward, false, false),
                             {"--parallel", "1", "--receipts", home.file("first")});
  REQUIRE(first.records.size() == lines.size());
  const auto ids = prompt_ids(newest_pack(home, "first"));
  REQUIRE(ids.size() == lines.size());
  std::map<std::pair<std::string, bool>, Record> alone;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    write_bytes(home.file("ids"), ids.at(static_cast<std::int64_t>(i) + 1));
    for (const bool sampled : {false, true}) {
      std::vector<std::string> args = {"--prompt-ids", home.file("ids"), "-n", n_tokens};
      if (sampled) {
        args.insert(args.end(),
                    {"--temp", "0.9", "--top-p", "0.98", "-s", std::to_string(100 + i)});
      }
      alone[{lines[i].first, sampled}] = run_alone(home, args, /*logits=*/true);
    }
  }
  std::vector<std::size_t> reversed(forward.rbegin(), forward.rend()), mixed = forward;
  std::shuffle(mixed.begin(), mixed.end(), std::mt19937(7));
  const std::vector<std::vector<std::size_t>> orders = {forward, reversed, mixed};
  std::vector<std::string> parallels = {"1", "2", "4", "8", "16"};
  if (!kFull) parallels = {"2", "16"};
  std::size_t n_compared = 0, n_differing_controls = 0;
  for (const std::string& parallel : parallels) {
    for (std::size_t o = 0; o < orders.size(); ++o) {
      if (!kFull && (o == 0) == (parallel == "16")) continue;
      for (const bool drafted : {true, false}) {
        for (const bool sampled : {false, true}) {
          const Served served =
              serve(home, batch(orders[o], sampled, drafted), {"--parallel", parallel});
          INFO("parallel ", parallel, " order ", o, " drafted ", drafted, " sampled ", sampled);
          CHECK(served.ended.status == 0);
          CHECK(served.records.size() == lines.size());
          for (const auto& [line, record] : served.records) {
            const Record& by_itself = alone.at({record.id, sampled});
            CHECK(record.ids == by_itself.ids);
            CHECK(record.logits_sha256 == by_itself.logits_sha256);
            ++n_compared;
            // The control: the other sampling gives other logits or ids.
            n_differing_controls +=
                record.logits_sha256 != alone.at({record.id, !sampled}).logits_sha256;
          }
        }
      }
    }
  }
  const Served ranks =
      serve(home, batch(mixed, true, true), {"--parallel", "8", "--device", "cpu:2"});
  CHECK(ranks.records.size() == lines.size());
  for (const auto& [line, record] : ranks.records) {
    CHECK(record.ids == alone.at({record.id, true}).ids);
    CHECK(record.logits_sha256 == alone.at({record.id, true}).logits_sha256);
  }
  CHECK(n_compared >= lines.size() * 12);
  CHECK(n_differing_controls > n_compared / 2);
}

TEST_CASE("serve-stdin: a chat's later turns reuse what earlier ones left, and say the same") {
  const ScratchFolder home;
  // Each line's conversation goes on from the one before; without thinking the template repeats
  // past replies as they were.
  const std::string system = R"({"role": "system", "content": "Be brief."})";
  const std::vector<std::string> questions = {"What is 8 + 51?", "Count from 1 to 9.",
                                              "What is 59 + 1?", "Say in Spanish: six dogs."};
  const auto talk = [&](const std::vector<std::string>& more) {
    std::string turns = system;
    std::vector<Record> replies;
    // One process for all turns: the next line is known once its reply is.
    Start start{.args = {"serve-stdin", "-q", "--parallel", "2"}, .limit_s = 120};
    start.args.insert(start.args.end(), more.begin(), more.end());
    std::string lines, seen;
    for (std::size_t i = 0; i < questions.size(); ++i) {
      turns += R"(, {"role": "user", "content": )" + json_quote(questions[i]) + "}";
      lines += R"({"messages": [)" + turns +
               R"(], "think": false, "logits_sha256": true, "max_tokens": 40})" + "\n";
      start.input = lines;
      const auto records = read_records(run_bolt(home, start).out);
      REQUIRE(records.size() == i + 1);
      const Record& reply = records.at(static_cast<std::int64_t>(i) + 1);
      turns += R"(, {"role": "assistant", "content": )" + json_quote(reply.text) + "}";
      replies.push_back(reply);
    }
    return replies;
  };
  const auto fresh = talk({"--prefix-cache", "0"}), reusing = talk({"--parallel", "1"});
  int n_reused = 0;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    CHECK(reusing[i].ids == fresh[i].ids);
    CHECK(reusing[i].logits_sha256 == fresh[i].logits_sha256);
    CHECK(fresh[i].json.find("\"reused\":0,") != std::string::npos);
    n_reused += reusing[i].json.find("\"reused\":0,") == std::string::npos;
  }
  CHECK(n_reused == 3);
}

TEST_SUITE_END();

}  // namespace bolt::testing
