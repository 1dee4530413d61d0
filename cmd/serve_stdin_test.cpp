// `bolt serve-stdin` as its users meet it. Rows of public fault reports are named as "case N".
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "cmd/testing/batch_records.h"
#include "core/base/json.h"

namespace bolt::testing {
namespace {

const std::string kShort = R"({"id": "s", "prompt": "What is 8 + 51?", "think": false})";

std::string prompt_line(const std::string& id, const std::string& prompt,
                        const std::string& more = "") {
  return "{\"id\": \"" + id + "\", \"prompt\": " + json_quote(prompt) + more + "}\n";
}

// A reply that goes on until it is stopped.
std::string endless_line(const std::string& id) {
  return prompt_line(id, kCount, ", \"ignore_eos\": true, \"stream\": true");
}

std::string receipt_folder(const ScratchFolder& home, const std::string& suffix) {
  for (const auto& entry : std::filesystem::directory_iterator(home.file("receipts"))) {
    if (entry.path().string().ends_with(suffix)) return entry.path().string();
  }
  return {};
}

}  // namespace

TEST_SUITE_BEGIN("binary");

TEST_CASE("serve-stdin: a bad line costs one record, the others are answered (cases 50, 52)") {
  const ScratchFolder home;
  const Served served =
      serve(home, prompt_line("long", kCount) + "ls\n" + kShort + "\n\n" + "  \r\n");
  CHECK(served.ended.status == 1);
  REQUIRE(served.records.size() == 3);
  CHECK(served.records.at(1).event == "done");
  CHECK(served.records.at(1).id == "\"long\"");
  CHECK(served.records.at(2).event == "error");
  CHECK(served.records.at(2).code == "invalid_json");
  CHECK(served.records.at(2).id == "null");
  CHECK(served.records.at(3).id == "\"s\"");
  CHECK(served.records.at(3).text.find("59") != std::string::npos);
  // The short reply does not wait for the long one before it.
  CHECK(served.ended.out.find("\"s\"") < served.ended.out.find("\"long\""));
  CHECK(served.ended.err.empty());
}

TEST_CASE("serve-stdin: every line is answered as `bolt run` answers it alone") {
  const ScratchFolder home;
  write_bytes(home.file("ids"), "[5,66,7,8]");
  const std::vector<std::pair<std::string, std::vector<std::string>>> pairs = {
      {R"({"prompt": "Count from 1 to 20.", "logits_sha256": true})", {kCount}},
      {R"({"prompt": "What is 8 + 51?", "think": false, "logits_sha256": true})",
       {"--no-think", "What is 8 + 51?"}},
      {R"({"prompt": "One, two,", "raw": true, "max_tokens": 20, "logits_sha256": true})",
       {"--raw", "-n", "20", "One, two,"}},
      {R"({"prompt_ids": [5,66,7,8], "max_tokens": 9, "logits_sha256": true})",
       {"--prompt-ids", home.file("ids"), "-n", "9"}},
      {R"({"prompt": "Tell a story.", "system": "Be brief.", "temperature": 1.5, "seed": 7,
           "top_p": 0.95, "max_tokens": 40, "ignore_eos": true, "logits_sha256": true})",
       {"--system", "Be brief.", "--temp", "1.5", "-s", "7", "--top-p", "0.95", "-n", "40",
        "--ignore-eos", "Tell a story."}},
      {R"({"prompt": "Count from 1 to 20.", "stop": ["9", "never"], "draft": "off",
           "logits_sha256": true})",
       {"--stop", "9", "--stop", "never", "--draft", "off", kCount}},
      {R"({"prompt": "Count from 1 to 20.", "min_p": 0.02, "top_k": 50, "temperature": 0.9,
           "seed": 18446744073709551615, "draft": "mtp", "drafts": 3, "logits_sha256": true})",
       {"--min-p", "0.02", "--top-k", "50", "--temp", "0.9", "-s", "18446744073709551615",
        "--draft", "mtp", "--drafts", "3", kCount}}};
  std::string lines;
  for (const auto& [line, args] : pairs) {
    std::string one = line;
    std::replace(one.begin(), one.end(), '\n', ' ');
    lines += one + "\n";
  }
  const Served served = serve(home, lines, {"--parallel", "5"});
  INFO(served.ended.err);
  CHECK(served.ended.status == 0);
  REQUIRE(served.records.size() == pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Record& together = served.records.at(static_cast<std::int64_t>(i) + 1);
    const Record by_itself = run_alone(home, pairs[i].second, /*logits=*/true);
    INFO(pairs[i].first);
    CHECK(together.ids == by_itself.ids);
    CHECK(together.text == by_itself.text);
    CHECK(together.stop == by_itself.stop);
    CHECK(together.logits_sha256 == by_itself.logits_sha256);
    CHECK(together.logits_sha256.size() == 64);
  }
  // The control: another seed is another reply, so the comparison can fail.
  std::vector<std::string> other = pairs[4].second;
  other[5] = "8";
  CHECK(run_alone(home, other, true).logits_sha256 != served.records.at(5).logits_sha256);
}

TEST_CASE("serve-stdin: what is wrong with a line is said with its key (cases 36, 38, 46)") {
  const ScratchFolder home;
  const std::vector<std::tuple<std::string, std::string, std::string>> wrong = {
      {R"({"prompt": "x", "temprature": 1})", "invalid_request", "temprature"},
      {R"({"prompt": "x", "prompt": "y"})", "invalid_request", "prompt"},
      {R"({"prompt": 5})", "invalid_request", "prompt"},
      {R"({"prompt": "x", "temperature": "hot"})", "invalid_request", "temperature"},
      {R"({"prompt": "x", "temperature": -1})", "invalid_request", "temperature"},
      {R"({"prompt": "x", "temperature": 1e-30})", "invalid_request", "temperature"},
      {R"({"prompt": "x", "temperature": NaN})", "invalid_json", ""},
      {R"({"prompt": "x", "temperature": 1e999})", "invalid_json", ""},
      {R"({"prompt": "x", "top_p": 1.5})", "invalid_request", "top_p"},
      {R"({"prompt": "x", "top_k": 4.5})", "invalid_request", "top_k"},
      {R"({"prompt": "x", "seed": -1})", "invalid_request", "seed"},
      {R"({"prompt": "x", "max_tokens": -2})", "invalid_request", "max_tokens"},
      {R"({"prompt": "x", "drafts": 32})", "invalid_request", "drafts"},
      {R"({"prompt": "x", "draft": "fast"})", "invalid_request", "draft"},
      {R"({"prompt": "x", "stop": [""]})", "invalid_request", "stop"},
      {R"({"prompt": "x", "logprobs": 21})", "invalid_request", "logprobs"},
      {R"({"prompt": "x", "id": [1]})", "invalid_request", "id"},
      {R"({"prompt": ""})", "invalid_request", ""},
      {R"({"prompt_ids": []})", "invalid_request", ""},
      {R"({"prompt_ids": [-1]})", "invalid_request", "prompt_ids"},
      {R"({"prompt_ids": [99999999]})", "invalid_request", "prompt_ids"},
      {R"({"messages": []})", "invalid_request", "messages"},
      {R"({"messages": [{"role": "judge", "content": "x"}]})", "invalid_request", ""},
      {R"({"prompt": "x", "messages": [{"role": "user", "content": "x"}]})", "invalid_request", ""},
      {R"({"prompt": "x", "raw": true, "think": false})", "invalid_request", ""},
      {R"({"id": "none"})", "invalid_request", ""},
      {R"([1])", "invalid_request", ""},
      {R"({"stats": false})", "invalid_request", "stats"},
      {"{\"prompt\": \"fine \xC4\xE3\"}", "invalid_utf8", ""},
      {std::string("{\"prompt\": \"a\0b\"}", 17), "invalid_json", ""},
      {"{", "invalid_json", ""},
      {"\"id\": 1,", "invalid_json", ""},
      {"}", "invalid_json", ""}};
  std::string lines;
  for (const auto& [line, code, param] : wrong) lines += line + "\n";
  const Served served = serve(home, lines + kShort);  // the last line without its end
  CHECK(served.ended.status == 1);
  CHECK(served.records.size() == wrong.size() + 1);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    const Record& record = served.records.at(static_cast<std::int64_t>(i) + 1);
    INFO(record.json);
    CHECK(record.event == "error");
    CHECK(record.code == std::get<1>(wrong[i]));
    CHECK(record.param == std::get<2>(wrong[i]));
    CHECK(std::all_of(record.json.begin(), record.json.end(),
                      [](char c) { return c >= ' ' && c <= '~'; }));
  }
  CHECK(served.records.rbegin()->second.event == "done");
}

TEST_CASE("serve-stdin: byte order mark, CRLF, long lines and lines over the cap (cases 39, 54)") {
  const ScratchFolder home;
  const std::string big = prompt_line("big", std::string(1 << 20, 'x'));  // fits no context
  const std::string over = prompt_line("over", std::string(3 << 20, 'x'));
  const Served served = serve(home, "\xEF\xBB\xBF" + kShort + "\r\n" + big + over + kShort + "\r\n",
                              {"--max-line", "2097152"});
  CHECK(served.ended.status == 1);
  CHECK(served.records.size() == 4);
  CHECK(served.records.at(1).event == "done");
  CHECK(served.records.at(2).code == "does_not_fit");
  CHECK(served.records.at(3).code == "line_too_long");
  CHECK(served.records.at(4).text == served.records.at(1).text);
}

TEST_CASE("serve-stdin: OpenAI's batch lines are answered in OpenAI's shape") {
  const ScratchFolder home;
  const auto batch = [](const std::string& id, const std::string& url, const std::string& body) {
    return "{\"custom_id\": \"" + id + "\", \"method\": \"POST\", \"url\": \"" + url +
           "\", \"body\": " + body + "}\n";
  };
  const std::string chat = "/v1/chat/completions";
  const std::string turns = R"("messages": [{"role": "user", "content": "What is 8 + 51?"}])";
  const Served served = serve(
      home,
      batch("a", chat, "{\"model\": \"gpt-4o\", \"n\": 1, \"user\": \"me\", " + turns + "}") +
          batch("b", chat,
                "{\"logprobs\": true, \"top_logprobs\": 2, \"max_tokens\": 3, " + turns + "}") +
          batch("c", "/v1/completions", R"({"prompt": "One, two,", "max_tokens": 8})") +
          batch("d", chat, "{\"n\": 2, " + turns + "}") +
          batch("e", chat, "{\"presence_penalty\": 0.5, " + turns + "}") +
          batch("f", "/v1/embeddings", "{}") + batch("g", chat, "{\"strange\": 1, " + turns + "}") +
          batch("h", chat,
                "{\"chat_template_kwargs\": {\"enable_thinking\": false}, " + turns + "}"));
  CHECK(served.ended.status == 1);
  REQUIRE(served.records.size() == 8);
  for (const auto& [line, record] : served.records) CHECK(record.event == "openai");
  CHECK(served.records.at(4).param == "n");
  CHECK(served.records.at(5).param == "presence_penalty");
  CHECK(served.records.at(6).param == "url");
  CHECK(served.records.at(7).param == "strange");
  const JsonDocument a = JsonDocument::parse("a", served.records.at(1).json);
  CHECK(a.root().at("response").at("status_code").integer() == 200);
  const JsonValue body = a.root().at("response").at("body");
  const JsonValue choice = body.at("choices").items().at(0);
  CHECK(choice.at("message").at("content").string() == run_alone(home, {"What is 8 + 51?"}).text);
  CHECK(choice.at("finish_reason").string() == "stop");
  CHECK(body.at("usage").at("completion_tokens").integer() > 3);
  const JsonDocument b = JsonDocument::parse("b", served.records.at(2).json);
  const JsonValue second = b.root().at("response").at("body").at("choices").items().at(0);
  CHECK(second.at("finish_reason").string() == "length");
  const auto content = second.at("logprobs").at("content").items();
  CHECK(content.size() == 3);
  for (const JsonValue& token : content) {
    CHECK(token.at("logprob").number() <= 0.0);
    // Greedy: the likeliest is the one that was taken.
    const auto top = token.at("top_logprobs").items();
    REQUIRE(top.size() == 2);
    CHECK(top[0].at("logprob").number() == token.at("logprob").number());
    CHECK(top[1].at("logprob").number() <= top[0].at("logprob").number());
  }
  const JsonDocument c = JsonDocument::parse("c", served.records.at(3).json);
  CHECK(c.root().at("response").at("body").at("choices").items().at(0).at("text").string() ==
        run_alone(home, {"--raw", "-n", "8", "One, two,"}).text);
  const JsonDocument h = JsonDocument::parse("h", served.records.at(8).json);
  CHECK(h.root()
            .at("response")
            .at("body")
            .at("choices")
            .items()
            .at(0)
            .at("message")
            .at("content")
            .string() == run_alone(home, {"--no-think", "What is 8 + 51?"}).text);
}

TEST_CASE("serve-stdin: token records join to the reply, also with a stop text") {
  const ScratchFolder home;
  const Served served = serve(home, prompt_line("a", kCount, ", \"stream\": true") +
                                        prompt_line("b", kCount,
                                                    ", \"stream\": true, \"think\": "
                                                    "false, \"stop\": \"11\""));
  CHECK(served.ended.status == 0);
  for (const auto& [line, record] : served.records) {
    CHECK(record.streamed_text == record.text);
    CHECK(record.streamed_ids == record.ids);
    CHECK(record.ids.size() > 8);
  }
  CHECK(served.records.at(2).stop == "stop_text");
}

TEST_CASE("serve-stdin: a cancel ends a reply that runs and one that waits") {
  const ScratchFolder home;
  const Served served =
      serve(home,
            endless_line("a") + endless_line("b") + "{\"cancel\": \"b\"}\n{\"cancel\": \"x\"}\n" +
                "{\"cancel\": \"a\"}\n{\"stats\": true}\n" + kShort + "\n",
            {"--parallel", "1"});
  CHECK(served.ended.status == 0);
  REQUIRE(served.records.size() == 4);
  CHECK(served.records.at(1).stop == "cancelled");
  CHECK(served.records.at(1).finish_reason == "cancelled");
  CHECK(served.records.at(2).stop == "cancelled");
  CHECK(served.records.at(2).ids.empty());
  CHECK(served.records.at(6).event == "stats");
  CHECK(served.records.at(7).stop == "eos");
  const Ended verified =
      run_bolt(home, {"receipt", "verify", "--parents", receipt_folder(home, ".runs.jsonl")});
  INFO(verified.err, verified.out);
  CHECK(verified.status == 0);
}

TEST_CASE("serve-stdin: SIGINT once finishes, twice cuts short; SIGTERM cuts short (case 83)") {
  const ScratchFolder home;
  const std::string lines = endless_line("a") + endless_line("b") + kShort + "\n";
  const auto interrupted = [&](std::vector<int> signals, const std::string& more) {
    Start start{.args = {"serve-stdin", "-q", "--parallel", "2"}, .input = lines + more};
    std::size_t n_sent = 0;
    start.watch = [&](pid_t pid, const std::string& out, const std::string&) {
      if (out.find("\"b\",\"line\":2,\"event\":\"token\"") == std::string::npos ||
          n_sent == signals.size())
        return;
      ::kill(pid, signals[n_sent++]);
    };
    return run_bolt(home, start);
  };
  for (const auto& signals : {std::vector<int>{SIGINT, SIGINT}, std::vector<int>{SIGTERM}}) {
    const Ended ended = interrupted(signals, "");
    CHECK(ended.status == 130);
    const auto records = read_records(ended.out);
    REQUIRE(records.size() == 2);
    for (const auto& [line, record] : records) {
      CHECK(record.stop == "interrupted");
      CHECK(record.ids == record.streamed_ids);
      CHECK(record.ids.size() > 0);
    }
  }
  // Once: what runs is completed. Both replies end by the context here.
  Start once{.args = {"serve-stdin", "-q", "--parallel", "2", "-c", "400"}, .input = lines};
  bool sent = false;
  once.watch = [&](pid_t pid, const std::string& out, const std::string&) {
    if (out.find("\"b\",\"line\":2,\"event\":\"token\"") == std::string::npos || sent) return;
    sent = true;
    ::kill(pid, SIGINT);
  };
  const Ended ended = run_bolt(home, once);
  CHECK(ended.status == 130);
  const auto records = read_records(ended.out);
  REQUIRE(records.size() == 2);
  for (const auto& [line, record] : records) CHECK(record.stop == "context");
  const Ended verified =
      run_bolt(home, {"receipt", "verify", "--parents", receipt_folder(home, ".runs.jsonl")});
  CHECK(verified.status == 0);
}

TEST_CASE("serve-stdin: the reader goes away, the work ends within a pass (case 58)") {
  const ScratchFolder home;
  // In decoding, and in a prompt of 4000 tokens run two rows a pass: nothing is written then.
  const std::string ids = [] {
    std::string text = "[1";
    for (int i = 0; i < 4000; ++i) text += ",66";
    return text + "]";
  }();
  const Ended decoding = run_bolt(home, Start{.args = {"serve-stdin", "-q"},
                                              .input = endless_line("a") + endless_line("b"),
                                              .read_at_most = 50});
  CHECK(decoding.signal == SIGPIPE);
  const Ended prompt = run_bolt(home, Start{.args = {"serve-stdin", "-q", "--chunk", "2"},
                                            .input = "ls\n{\"prompt_ids\": " + ids + "}\n",
                                            .read_at_most = 10});
  CHECK(prompt.signal == SIGPIPE);
  int n_cancelled = 0;
  for (const auto& entry : std::filesystem::directory_iterator(home.file("receipts"))) {
    if (!entry.path().string().ends_with(".runs.jsonl")) continue;
    const Ended verified =
        run_bolt(home, {"receipt", "verify", "--parents", entry.path().string()});
    CHECK(verified.status == 0);
    n_cancelled += says_stop(file_bytes(entry.path().string()), "cancelled");
  }
  CHECK(n_cancelled == 2);
}

TEST_CASE("serve-stdin: -o refuses what it would spoil, and --resume goes on (case 51)") {
  const ScratchFolder home;
  const std::string out = home.file("out.jsonl");
  const std::string lines = prompt_line("a", "What is 1 + 1?") + "ls\n" +
                            prompt_line("c", "What is 2 + 2?") + prompt_line("d", kCount);
  Served whole = serve(home, lines, {"-o", out});
  CHECK(whole.ended.status == 1);
  CHECK(whole.ended.out.empty());
  const std::string undisturbed = file_bytes(out);
  const auto records = read_records(undisturbed);
  CHECK(records.size() == 4);
  CHECK(serve(home, lines, {"-o", out}).ended.status == 2);
  CHECK(file_bytes(out) == undisturbed);
  // Cut anywhere, the rest is answered; so is what the cut tore.
  for (const double part : {0.0, 0.2, 0.5, 0.8, 1.0}) {
    const std::string cut = home.file("cut.jsonl");
    write_bytes(cut, undisturbed.substr(0, static_cast<std::size_t>(
                                               part * static_cast<double>(undisturbed.size()))));
    const Served rest = serve(home, lines, {"-o", cut, "--resume"});
    INFO(rest.ended.err);
    CHECK(rest.ended.status == 1);  // line 2 is tried again, and is as bad
    const auto joined = read_records(file_bytes(cut));
    REQUIRE(joined.size() == 4);
    for (const auto& [line, record] : joined) {
      CHECK(record.ids == records.at(line).ids);
      CHECK(record.event == records.at(line).event);
    }
  }
  // Another input, a file of something else, the input's own file.
  CHECK(serve(home, prompt_line("z", "What is 1 + 1?"), {"-o", out, "--resume"}).ended.status == 2);
  write_bytes(home.file("notes"), "buy milk\n");
  CHECK(serve(home, lines, {"-o", home.file("notes"), "--resume"}).ended.status == 2);
  CHECK(file_bytes(home.file("notes")) == "buy milk\n");
  CHECK(serve(home, lines, {"--resume"}).ended.status == 2);
}

TEST_CASE("serve-stdin: shards together answer each line once") {
  const ScratchFolder home;
  std::string lines;
  for (int i = 1; i <= 7; ++i) {
    lines += prompt_line(std::to_string(i), "What is " + std::to_string(i) + " + 51?",
                         ", \"think\": false");
  }
  const auto whole = serve(home, lines).records;
  CHECK(whole.size() == 7);
  std::map<std::int64_t, Record> joined;
  for (const char* shard : {"1/3", "2/3", "3/3"}) {
    for (const auto& [line, record] : serve(home, lines, {"--shard", shard}).records) {
      CHECK(joined.emplace(line, record).second);
    }
  }
  REQUIRE(joined.size() == 7);
  for (const auto& [line, record] : joined) CHECK(record.ids == whole.at(line).ids);
  // Slurm's variables: task 1 of 2 in the second job of an array 3, 5.
  Start slurm{.args = {"serve-stdin", "-q", "--shard", "slurm"}, .input = lines};
  slurm.env = {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}};
  const auto halves = read_records(run_bolt(home, slurm).out);
  CHECK(halves.size() == 3);
  CHECK(halves.contains(2));
  slurm.env.insert(slurm.env.end(), {{"SLURM_ARRAY_TASK_ID", "5"},
                                     {"SLURM_ARRAY_TASK_MIN", "3"},
                                     {"SLURM_ARRAY_TASK_MAX", "5"},
                                     {"SLURM_ARRAY_TASK_COUNT", "2"}});
  const auto quarters = read_records(run_bolt(home, slurm).out);
  CHECK(quarters.size() == 1);
  CHECK(quarters.contains(4));
  slurm.env.clear();
  CHECK(run_bolt(home, slurm).status == 2);
  for (const char* bad : {"0/3", "4/3", "1", "a/b", "1/0", "-1/2"}) {
    CHECK(serve(home, lines, {"--shard", bad}).ended.status == 2);
  }
}

TEST_CASE("serve-stdin: a terminal is told how far the job is, and nothing of it stays") {
  const ScratchFolder home;
  write_bytes(home.file("out"), "");
  Terminal serve(home, {"serve-stdin", "-n", "600"}, "dumb", home.file("out"));
  serve.type("{\"nonsense\": 1}\n" + prompt_line("a", kCount, ", \"ignore_eos\": true"));
  CHECK_FALSE(serve.wait_for("0 done  1 failed  1 running").empty());
  serve.type("\x04");  // end of input
  CHECK(serve.wait_for_end() == 1);
  const std::string& all = serve.all();
  const std::size_t cleared = all.rfind("\r\033[2K");
  REQUIRE(cleared != std::string::npos);
  CHECK(all.find(" running", cleared) == std::string::npos);
  CHECK(all.find("1 line answered, 1 failed", cleared) != std::string::npos);
  CHECK(read_records(file_bytes(home.file("out"))).size() == 2);

  Terminal quiet(home, {"serve-stdin", "-q", "-n", "600"}, "dumb", home.file("out"));
  quiet.type(prompt_line("a", kCount, ", \"ignore_eos\": true") + "\x04");
  CHECK(quiet.wait_for_end() == 0);
  CHECK(quiet.all().find(" running") == std::string::npos);
}

TEST_SUITE_END();

}  // namespace bolt::testing
