// `bolt run` as its users meet it: the real binary, its streams, exit statuses and receipts.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>

#include "cmd/testing/child.h"
#include "core/base/json.h"

namespace bolt::testing {
namespace {

int mode_of(const std::string& path) {
  struct stat st = {};
  REQUIRE(::stat(path.c_str(), &st) == 0);
  return static_cast<int>(st.st_mode & 0777);
}

// What `--json` answers to these arguments.
struct Answer {
  std::string text, finish_reason, stop, receipt;
  std::vector<int> ids;
};

Answer answer(const ScratchFolder& home, std::vector<std::string> args) {
  args.insert(args.begin(), {"run", "--json", "-q"});
  const Ended ended = run_bolt(home, args);
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  const JsonDocument document = JsonDocument::parse("answer", ended.out);
  const JsonValue root = document.root();
  Answer a{.text = std::string(root.at("text").string()),
           .finish_reason = std::string(root.at("finish_reason").string()),
           .stop = std::string(root.at("stop").string()),
           .receipt = std::string(root.at("receipt").string()),
           .ids = {}};
  for (const JsonValue& id : root.at("ids").items())
    a.ids.push_back(static_cast<int>(id.integer()));
  return a;
}

// The last attachment line of this kind, its "data" as JSON text.
std::string attachment(const std::string& receipt, const std::string& kind) {
  const std::size_t at = receipt.find("\"kind\":\"" + kind + "\",\"of\"");
  if (at == std::string::npos) return {};
  const std::size_t begin = receipt.rfind('\n', at) + 1;
  const JsonDocument line =
      JsonDocument::parse(kind, receipt.substr(begin, receipt.find('\n', at) - begin));
  const JsonValue data = line.root().at("data");
  if (data.is_string()) return std::string(data.string());
  std::string items;
  for (const JsonValue& item : data.items()) {
    items += items.empty() ? "" : ",";
    items += item.is_string() ? json_quote(item.string()) : std::to_string(item.integer());
  }
  return "[" + items + "]";
}

}  // namespace

TEST_SUITE_BEGIN("binary");

TEST_CASE("redirected output holds the reply's bytes and nothing else (case 82)") {
  const ScratchFolder home;
  const Ended ended = run_bolt(home, {"run", "--no-think", kCount});
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  CHECK(ended.out == answer(home, {"--no-think", kCount}).text);
  CHECK(ended.out.size() > 20);
  CHECK(ended.err.find("receipt ") != std::string::npos);
  CHECK(ended.err.find('\r') == std::string::npos);
  CHECK(ended.err.find('\033') == std::string::npos);
  const Ended quiet = run_bolt(home, {"run", "-q", "--no-think", kCount});
  CHECK(quiet.err.empty());
  CHECK(quiet.out == ended.out);
}

TEST_CASE("the prompt is the same from argument, option, file and stdin") {
  const ScratchFolder home;
  write_bytes(home.file("prompt"), kCount);
  const Answer by_argument = answer(home, {"-n", "12", kCount});
  CHECK(by_argument.ids.size() == 12);
  CHECK(answer(home, {"-n", "12", "-p", kCount}).ids == by_argument.ids);
  CHECK(answer(home, {"-n", "12", "-f", home.file("prompt")}).ids == by_argument.ids);
  Start piped{.args = {"run", "-q", "-n", "12"}, .input = kCount};
  CHECK(run_bolt(home, piped).out == by_argument.text);
  piped.args = {"run", "-q", "-n", "12", "-f", "-"};
  CHECK(run_bolt(home, piped).out == by_argument.text);
}

TEST_CASE("an empty prompt is a usage error (case 38)") {
  const ScratchFolder home;
  write_bytes(home.file("empty"), "");
  write_bytes(home.file("ids"), "[]");
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"run", "-p", ""},
                                             {"run", ""},
                                             {"run", "-f", home.file("empty")},
                                             {"run"},
                                             {"run", "--prompt-ids", home.file("ids")}}) {
    const Ended ended = run_bolt(home, args);
    CHECK(ended.status == 2);
    CHECK(ended.err.find("empty") != std::string::npos);
    CHECK(ended.out.empty());
  }
  CHECK(receipts_in(home).empty());
}

TEST_CASE("a prompt file's bytes are kept, byte order mark and line ends too (case 39)") {
  const ScratchFolder home;
  const std::string bytes =
      "\xEF\xBB\xBF"
      "one\r\ntwo\r\n";
  write_bytes(home.file("prompt"), bytes);
  run_bolt(home, {"run", "-q", "--raw", "-n", "1", "--attach", "ids,text", "-f",
                  home.file("prompt"), "--receipt", home.file("kept.bolt.jsonl")});
  CHECK(attachment(file_bytes(home.file("kept.bolt.jsonl")), "prompt_text") == bytes);
  write_bytes(home.file("bad"), "fine \xC4\xE3");
  const Ended ended = run_bolt(home, {"run", "-f", home.file("bad")});
  CHECK(ended.status == 3);
  CHECK(ended.err.starts_with("bolt: " + home.file("bad") + ": byte 5, 0xC4, is not UTF-8"));
  const Ended piped = run_bolt(home, Start{.args = {"run"}, .input = "fine \xC4\xE3"});
  CHECK(piped.status == 3);
  CHECK(piped.err.starts_with("bolt: stdin: byte 5"));
}

TEST_CASE("an unknown option is named before anything else, with the nearest known one") {
  const ScratchFolder home;
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"run", "--temperature", "1", "hi"},
       "--temperature: `bolt run` has no such option; perhaps --temp;"},
      {{"run", "hi", "--max-token=4"},
       "--max-token: `bolt run` has no such option; perhaps --max-tokens;"},
      {{"run", "hi", "there", "--sistem", "x"},
       "--sistem: `bolt run` has no such option; perhaps --system;"},
      {{"run", "--xyzzy", "hi"}, "--xyzzy: `bolt run` has no such option; see"},
      {{"convert", "--quantize", "q8"},
       "--quantize: `bolt convert` has no such option; perhaps --quant;"},
      {{"bench", "--formats", "q8"},
       "--formats: `bolt bench` has no such option; perhaps --format;"},
      {{"receipt", "verify", "--repaly", "x"},
       "--repaly: `bolt receipt verify` has no such option; perhaps --replay;"},
      {{"--versoin"}, "--versoin: `bolt` has no such option; perhaps --version;"}};
  for (const auto& [args, line] : wrong) {
    const Ended ended = run_bolt(home, args);
    INFO(ended.err);
    CHECK(ended.status == 2);
    CHECK(ended.err.starts_with("bolt: " + line));
  }
}

TEST_CASE("a cost table is written where none is and read where one is, and -v says which") {
  const ScratchFolder home;
  const std::vector<std::string> args = {"run", "-v", "-n", "2", "--cost-table", home.file("costs"),
                                         kCount};
  const Ended first = run_bolt(home, args);
  CHECK(first.status == 0);
  CHECK(first.err.find("measured now, kept in " + home.file("costs")) != std::string::npos);
  const std::string table = file_bytes(home.file("costs"));
  const Ended second = run_bolt(home, args);
  CHECK(second.err.find("read from " + home.file("costs")) != std::string::npos);
  CHECK(file_bytes(home.file("costs")) == table);
}

TEST_CASE("values out of range are usage errors that name the option (case 46)") {
  const ScratchFolder home;
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"--temp", "nan"},
      {"--temp", "inf"},
      {"--temp", "-1"},
      {"--temp", "1e999"},
      {"--temp", "1e-30"},
      {"--temp", "0x1p3"},
      {"--temp", "1,5"},
      {"--temp", ""},
      {"--top-p", "1.5"},
      {"--top-p", "nan"},
      {"--min-p", "-0.1"},
      {"--top-k", "-2"},
      {"--top-k", "4.5"},
      {"--max-tokens", "-2"},
      {"--max-tokens", "ten"},
      {"--seed", "-1"},
      {"--seed", "1e3"},
      {"--seed", "18446744073709551616"},
      {"--context", "0"},
      {"--threads", "0"},
      {"--threads", "100000"},
      {"--chunk", "0"},
      {"--window", "0"},
      {"--window", "33"},
      {"--drafts", "32"},
      {"--drafts", "-1"},
      {"--draft", "fast"},
      {"--kv", "bf16"},
      {"--isa", "neon"},
      {"--device", "tpu"},
      {"--device", "cuda:"},
      {"--attach", "ids,colour"},
      {"--attach", "none,ids"},
      {"--attach", ""},
      {"--challenge", "abc"},
      {"--color", "maybe"},
      {"--stop", ""}};
  for (const auto& [option, value] : wrong) {
    const Ended ended = run_bolt(home, {"run", option, value, "x"});
    INFO(option, " ", value, ": ", ended.err);
    CHECK(ended.status == 2);
    CHECK(ended.err.starts_with("bolt: " + option));
    CHECK(std::count(ended.err.begin(), ended.err.end(), '\n') == 1);
    CHECK(ended.out.empty());
  }
  CHECK(receipts_in(home).empty());
  // The control: the same options with values at their ends are taken.
  const Ended fine = run_bolt(
      home, {"run", "--temp", "0", "--top-p", "1", "--min-p", "0", "--top-k", "-1", "--seed",
             "18446744073709551615", "--window", "32", "--drafts", "31", "-n", "1", "x"});
  CHECK(fine.status == 0);
}

TEST_CASE("odd command lines are usage errors") {
  const ScratchFolder home;
  write_bytes(home.file("ids"), "[5,6]");
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {},
           {"walk"},
           {"run", "--nonsense", "x"},
           {"run", "-p"},
           {"run", "a", "b"},
           {"run", "a", "-p", "b"},
           {"run", "-f", home.file("ids"), "--prompt-ids", home.file("ids")},
           {"run", "--prompt-ids", home.file("ids"), "--system", "s"},
           {"run", "--prompt-ids", home.file("ids"), "--raw"},
           {"run", "--prompt-ids", home.file("ids"), "--no-think"},
           {"run", "--raw", "--system", "s", "x"},
           {"run", "--think", "--no-think", "x"},
           {"run", "-q", "-v", "x"},
           {"run", "--device", "cuda", "x"},
           {"--json", "run", "x"}}) {
    const Ended ended = run_bolt(home, args);
    const std::string last = args.empty() ? "" : args.back();
    INFO(last, ": ", ended.err);
    CHECK(ended.status == 2);
    CHECK(ended.out.empty());
    CHECK_FALSE(ended.err.empty());
  }
}

TEST_CASE("files that are not there or not what they should be are named") {
  const ScratchFolder home;
  const auto refused = [&home](const std::vector<std::string>& args, const std::string& named) {
    const Ended ended = run_bolt(home, args);
    INFO(ended.err);
    CHECK(ended.status == 3);
    CHECK(ended.err.find(named) != std::string::npos);
  };
  refused({"run", "-m", home.file("nano.bolt"), "x"}, "bolt convert");
  refused({"run", "-f", home.file("nothing")}, "nothing");
  const std::string nowhere = home.file("no-folder/logits");
  const Ended logits = run_bolt(home, {"run", "-n", "1", "--logits", nowhere, "x"});
  CHECK(logits.status == 2);
  CHECK(logits.err.starts_with("bolt: " + nowhere + ": cannot create"));
  write_bytes(home.file("ids"), "[1, 99999999]");
  refused({"run", "--prompt-ids", home.file("ids")}, "ids");
  write_bytes(home.file("ids"), "[1, \"two\"]");
  refused({"run", "--prompt-ids", home.file("ids")}, "ids");
}

TEST_CASE("the limit and the context's end are told apart (case 44)") {
  const ScratchFolder home;
  const Answer limit = answer(home, {"-n", "3", "--ignore-eos", kCount});
  CHECK(limit.finish_reason == "length");
  CHECK(limit.stop == "limit");
  CHECK(limit.ids.size() == 3);
  const Answer context = answer(home, {"-c", "48", "--ignore-eos", kCount});
  CHECK(context.finish_reason == "context");
  CHECK(context.ids.size() > 3);
  const Answer longer = answer(home, {"-c", "49", "--ignore-eos", kCount});
  CHECK(longer.ids.size() == context.ids.size() + 1);
  const Ended full = run_bolt(home, {"run", "-c", "8", kCount});
  CHECK(full.status == 2);
  CHECK(full.err.find("--context") != std::string::npos);
}

TEST_CASE("a huge temperature is legal, and the chain it leaves is said and sealed (case 48)") {
  const ScratchFolder home;
  const Ended ended = run_bolt(home, {"run", "-v", "--temp", "1e6", "--top-k", "0", "-s", "7", "-n",
                                      "4", "--ignore-eos", kCount});
  INFO(ended.err);
  CHECK(ended.status == 0);
  CHECK(ended.err.find("temperature 1000000, draw philox4x32-10 seed 7") != std::string::npos);
  CHECK(only_receipt(home).find("49742400") != std::string::npos);  // 1e6 as IEEE bits
}

TEST_CASE("sampling without a seed draws one, prints it, and it repeats the reply") {
  const ScratchFolder home;
  const std::vector<std::string> args = {"run", "--temp", "8", "-n", "24", "--ignore-eos", kCount};
  const Ended first = run_bolt(home, args), second = run_bolt(home, args);
  const auto printed_seed = [](const Ended& ended) {
    const std::size_t at = ended.err.find("seed ");
    REQUIRE(at != std::string::npos);
    return ended.err.substr(at + 5, ended.err.find('\n', at) - at - 5);
  };
  const std::string seed = printed_seed(first);
  CHECK(seed != printed_seed(second));
  CHECK(first.out != second.out);  // at this temperature equal replies would be a fixed seed
  std::vector<std::string> again = args;
  again.insert(again.end(), {"-s", seed});
  CHECK(run_bolt(home, again).out == first.out);
}

TEST_CASE("a stop text ends the text before it and the ids at the token that completed it") {
  const ScratchFolder home;
  const Answer whole = answer(home, {"--no-think", kCount});
  REQUIRE(whole.text.size() > 24);
  for (const std::size_t length : {1u, 3u, 9u}) {
    const std::string stop = whole.text.substr(9, length);
    const Answer cut = answer(home, {"--no-think", "--stop", stop, "--stop", "never", kCount});
    CHECK(cut.text == whole.text.substr(0, whole.text.find(stop)));
    CHECK(cut.stop == "stop_text");
    CHECK(cut.finish_reason == "stop");
    REQUIRE(cut.ids.size() < whole.ids.size());
    CHECK(std::equal(cut.ids.begin(), cut.ids.end(), whole.ids.begin()));
    const Ended streamed = run_bolt(home, {"run", "-q", "--no-think", "--stop", stop, kCount});
    CHECK(streamed.out == cut.text);
  }
}

TEST_CASE("prompt ids give what their text gave") {
  const ScratchFolder home;
  const Answer by_text =
      answer(home, {"-n", "16", "--receipt", home.file("text.bolt.jsonl"), kCount});
  write_bytes(home.file("ids"), attachment(file_bytes(home.file("text.bolt.jsonl")), "prompt_ids"));
  CHECK(answer(home, {"-n", "16", "--prompt-ids", home.file("ids")}).ids == by_text.ids);
  const Ended piped = run_bolt(home, Start{.args = {"run", "-q", "-n", "16", "--prompt-ids", "-"},
                                           .input = file_bytes(home.file("ids"))});
  CHECK(piped.out == by_text.text);
}

TEST_CASE("any number of ranks leaves the same logit file, and its receipt says how many") {
  const ScratchFolder home;
  int n_runs = 0;
  std::string receipt;  // of the last run
  const auto logits = [&](std::vector<std::string> args) {
    receipt = home.file(std::to_string(n_runs++) + ".bolt.jsonl");
    args.insert(args.begin(),
                {"run", "-q", "-n", "24", "--logits", home.file("logits"), "--receipt", receipt});
    REQUIRE(run_bolt(home, args).status == 0);
    return file_bytes(home.file("logits"));
  };
  const std::string plain = logits({"--device", "cpu", "--draft", "off", kCount});
  for (const std::string n : {"1", "2", "4"}) {
    CHECK(logits({"--device", "cpu:" + n, "--draft", "mtp", "--drafts", "5", kCount}) == plain);
    CHECK(file_bytes(receipt).find("\"ranks\":" + n + ",") != std::string::npos);
    const Ended shown = run_bolt(home, {"receipt", "show", receipt});
    CHECK((shown.out.find(" on cpu ") != std::string::npos));
    CHECK((shown.out.find(", " + n + " ranks\n") != std::string::npos) == (n != "1"));
  }
  // A rank has a thread, also where fewer were asked for.
  for (const auto& [asked, n] : {std::pair("1", "4"), std::pair("4", "4"), std::pair("5", "5")}) {
    (void)logits({"--device", "cpu:4", "-t", asked, kCount});
    CHECK(file_bytes(receipt).find("\"threads\":" + std::string(n) + "}") != std::string::npos);
  }
  // A run of two ranks, run again by one, is the run that the receipt says.
  (void)logits({"--device", "cpu:2", kCount});
  const Ended again = run_bolt(home, {"receipt", "verify", "--replay", "--device", "cpu", receipt});
  INFO(again.out, again.err);
  CHECK(again.status == 0);
  // The control: another limit, another file.
  CHECK(logits({"--device", "cpu:2", "-n", "23", kCount}) != plain);

  const Ended verbose = run_bolt(home, {"run", "-v", "-n", "1", "--device", "cpu:2", kCount});
  CHECK(verbose.err.find("ranks     2, exchange by copies; weights ") != std::string::npos);
  const Ended refused = run_bolt(home, {"run", "--device", "cpu:3", kCount});
  CHECK(refused.status == 2);
  CHECK(refused.err ==
        "bolt: --device cpu:3: layers.0 has 8 Mamba heads, which 3 ranks do not divide; this "
        "package runs on 1, 2 or 4\n");
  for (const std::string device : {"cpu:0", "cpu:65", "cpu:2+2", "cuda:0+", "cuda:0,,1"}) {
    const Ended odd = run_bolt(home, {"run", "--device", device, kCount});
    CHECK(odd.status == 2);
    CHECK(odd.err.starts_with("bolt: --device"));
  }
}

TEST_CASE("logit files are equal whatever the way, and only then") {
  const ScratchFolder home;
  const auto logits = [&home](std::vector<std::string> args) {
    args.insert(args.begin(), {"run", "-q", "-n", "24", "--logits", home.file("logits")});
    REQUIRE(run_bolt(home, args).status == 0);
    return file_bytes(home.file("logits"));
  };
  const std::string plain = logits({"--draft", "off", kCount});
  CHECK(plain.size() > 24u * 3200u * 4u);
  CHECK(logits({kCount}) == plain);
  CHECK(logits({"--draft", "copy", "--drafts", "7", kCount}) == plain);
  CHECK(logits({"--chunk", "5", "--window", "3", "-t", "1", "--isa", "scalar", kCount}) == plain);
  // The control: another variant of the contract has other bits.
  CHECK(logits({"--kv", "f32", kCount}) != plain);
}

TEST_CASE(
    "receipts: private folder and file, refused before the work where they cannot be written") {
  const ScratchFolder home;
  REQUIRE(run_bolt(home, {"run", "-q", "-n", "4", "--challenge", "C0FFEE", kCount}).status == 0);
  CHECK(mode_of(home.file("receipts")) == 0700);
  CHECK(only_receipt(home).find("\"challenge\":\"c0ffee\"") != std::string::npos);

  write_bytes(home.file("plain"), "");
  const Ended blocked =
      run_bolt(home, {"run", "--receipts", home.file("plain") + "/folder", kCount});
  CHECK(blocked.status != 0);
  CHECK(blocked.out.empty());
  const Ended taken = run_bolt(home, {"run", "--receipt", home.file("plain"), kCount});
  CHECK(taken.status == 2);
  CHECK(taken.out.empty());
  CHECK(file_bytes(home.file("plain")).empty());

  const std::string path = home.file("all.bolt.jsonl");
  REQUIRE(run_bolt(home, {"run", "-q", "-n", "4", "--attach", "ids,text,logits,state", "--receipt",
                          path, kCount})
              .status == 0);
  CHECK(mode_of(path) == 0600);
  for (const char* kind : {"prompt_ids", "ids", "prompt_text", "text", "logits", "state"}) {
    CHECK_FALSE(attachment(file_bytes(path), kind).empty());
  }
  CHECK(run_bolt(home, {"receipt", "verify", path}).status == 0);
}

TEST_CASE("a planned run says which cell it is, and one that is not as planned is told") {
  const ScratchFolder home;
  write_bytes(home.file("prompts"), kCount + "\n");
  const std::string plan = home.file("plan.bolt.jsonl");
  const Ended planned =
      run_bolt(home, {"receipt", "plan", "-o", plan, "--build", "this=" BOLT_BINARY_DIR "/bolt",
                      "--package", BOLT_BINARY_DIR "/sample.bolt", "--modes", "ordinary,k7",
                      "--passes", "1", "--prompts", home.file("prompts"), "-n", "6"});
  INFO(planned.err);
  REQUIRE(planned.status == 0);
  const auto run = [&](const std::string& cell, const std::vector<std::string>& mode,
                       const std::string& prompt) {
    std::vector<std::string> args = {"run", "-q", "-n", "6", "--plan", plan, "--cell", cell};
    args.insert(args.end(), mode.begin(), mode.end());
    args.push_back(prompt);
    return run_bolt(home, args);
  };
  CHECK(run("0", {"--draft", "off"}, kCount).status == 0);
  CHECK(run("1", {"--drafts", "7"}, kCount).status == 0);
  CHECK(run_bolt(home, {"receipt", "audit", home.file("receipts"), "--plan", plan}).status == 0);
  CHECK(run("0", {"--drafts", "7"}, kCount).status == 1);
  CHECK(run("1", {"--drafts", "7"}, "Something else.").status == 1);
  CHECK(run("2", {}, kCount).status == 2);
  CHECK(run_bolt(home, {"run", "--plan", plan, "x"}).status == 2);
  CHECK(run_bolt(home, {"receipt", "audit", home.file("receipts"), "--plan", plan}).status == 1);
}

TEST_CASE("--version says what this executable is") {
  const ScratchFolder home;
  const Ended line = run_bolt(home, {"--version"});
  CHECK(line.status == 0);
  CHECK(line.out.starts_with("bolt 0."));
  const Ended json = run_bolt(home, {"--version", "--json"});
  const JsonDocument document = JsonDocument::parse("--version", json.out);
  CHECK(document.root().at("name").string() == "bolt");
  CHECK(document.root().at("contract").at("id").string() == "bolt-exact/1");
  CHECK(document.root().at("executable_sha256").string().size() == 64);
  const std::vector<JsonValue> devices = document.root().at("devices").items();
  REQUIRE_FALSE(devices.empty());
  CHECK(devices[0].at("vectors_sha256").string() ==
        document.root().at("contract").at("sha256").string());
}

TEST_SUITE_END();

}  // namespace bolt::testing
