// `bolt receipt` on receipts of real runs: compared, replayed and scored, honest and lying.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "cmd/testing/child.h"
#include "receipts/test_facts.h"

namespace bolt::testing {
namespace {

using receipts::Value;

// Runs a prompt; the receipt lies in home under `name` afterwards.
std::string run(const ScratchFolder& home, const std::string& name, std::vector<std::string> args) {
  const std::string path = home.file(name + ".bolt.jsonl");
  args.insert(args.begin(), {"run", "-q", "--receipt", path, "-n", "40"});
  const Ended ended = run_bolt(home, args);
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  return path;
}

// Writes what a liar would seal: the receipt with other ids, or another body, everything else made
// to fit.
void write_lie(const std::string& path, const receipts::Receipt& honest,
               const std::vector<int>& ids, const std::function<void(Value&)>& change = {}) {
  Value body = honest.body;
  if (change) change(body);
  const receipts::Binder plain;
  const receipts::Digest task = receipts::task_digest(body, plain);
  body.set("task.sha256", receipts::hex(task));
  body.set("out.ids", receipts::bind_hex(plain, "ids", {receipts::ids_bytes(ids)}));
  const auto marks = receipts::chain_marks(plain, task, ids, body.int_at("out.chain.stride"));
  body.set("out.chain.marks", Value::Array(marks.begin(), marks.end()));
  body.set("out.key", receipts::out_key(body, plain));
  receipts::RunFacts attached;
  attached.task.prompt_ids = *honest.attached.prompt_ids;
  attached.out.ids = ids;
  std::ofstream(path) << receipts::sealed_lines(
      body, receipts::attachment_lines(attached, receipts::rid_of(receipts::canonical(body))));
}

std::size_t count(const std::string& text, const std::string& words) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) ++n;
  return n;
}

TEST_SUITE("binary") {
  TEST_CASE(
      "receipt: ordinary, drafted and sampled runs verify, compare and replay as each other") {
    const ScratchFolder home;
    const std::string prompt = "Count from 1 to 20.";
    const std::string ordinary =
        run(home, "ordinary", {prompt, "--draft", "off", "--attach", "ids,logits"});
    const std::string drafted =
        run(home, "drafted", {prompt, "--drafts", "7", "--attach", "ids,logits"});
    const std::string sampled = run(home, "sampled", {prompt, "--temp", "0.9", "--seed", "7"});
    Ended ended = run_bolt(home, {"receipt", "compare", ordinary, drafted});
    CHECK(ended.status == 0);
    CHECK(ended.out.find("mode ordinary|speculative k7") != std::string::npos);
    CHECK(ended.out.find("logits same") != std::string::npos);
    CHECK(run_bolt(home, {"receipt", "compare", ordinary, sampled}).status == 4);
    ended =
        run_bolt(home, {"receipt", "verify", "--replay", "--as", "ordinary", "--score", drafted});
    CHECK(ended.status == 0);
    CHECK(ended.out.find("tokens same, stop same, logits same") != std::string::npos);
    CHECK(run_bolt(home, {"receipt", "verify", "--replay", "--as", "k7", ordinary}).status == 0);
    for (const char* mode : {"ordinary", "k3", "auto", "copy"}) {
      CHECK(run_bolt(home, {"receipt", "verify", "--replay", "--as", mode, "--score", sampled})
                .status == 0);
    }
    const std::string undrafted =
        run(home, "undrafted", {prompt, "--temp", "0.9", "--seed", "7", "--draft", "off"});
    CHECK(run_bolt(home, {"receipt", "compare", sampled, undrafted}).status == 0);
    CHECK(run_bolt(home, {"receipt", "verify", "--replay", "--as", "k7", undrafted}).status == 0);
    ended = run_bolt(home, {"receipt", "verify", "--replay", "--kv", "f32", drafted});
    CHECK(ended.status == 4);
    CHECK(ended.err.find("made under kv i16, this is f32") != std::string::npos);
    ended = run_bolt(home, {"receipt", "verify", "--json", "--replay", "--kv", "f32", drafted});
    CHECK(ended.status == 4);
    CHECK(ended.out.find("\"exit\":4") != std::string::npos);
  }

  TEST_CASE(
      "receipt: score finds one changed id at every position, another seed, stop or package") {
    const ScratchFolder home;
    // All 512 positions of a long reply with BOLT_FULL_TESTS=1: some minutes.
    const bool full = std::getenv("BOLT_FULL_TESTS") != nullptr;
    const receipts::Receipt honest =
        receipts::read_receipt(run(home, "honest",
                                   {"Count from 1 to 20.", "--temp", "0.7", "--seed", "3",
                                    "--ignore-eos", "-n", full ? "512" : "40"}));
    const std::vector<int> ids = *honest.attached.ids;
    REQUIRE(ids.size() == (full ? 512 : 40));
    std::vector<std::string> args = {"receipt", "verify", "--score"};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::vector<int> other = ids;
      other[i] += 1;
      args.push_back(home.file("lie" + std::to_string(i) + ".bolt.jsonl"));
      write_lie(args.back(), honest, other);
    }
    const Ended ended = run_bolt(home, Start{.args = args, .limit_s = 3600});
    CHECK(ended.status == 1);
    CHECK(count(ended.out, "NOT what this package says") == ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {  // each names its position first
      const std::string at = " at " + std::to_string(i + 1);
      CHECK(count(ended.out, at + " ") + count(ended.out, at + ",") > 0);
    }
    CHECK(count(ended.out, "seal ok") == ids.size());  // the seals are sound: only the score tells
    const std::string lie = home.file("lie.bolt.jsonl");
    const auto scored = [&](const std::function<void(Value&)>& change) {
      write_lie(lie, honest, ids, change);
      return run_bolt(home, {"receipt", "verify", "--score", lie}).status;
    };
    CHECK(scored({}) == 0);
    CHECK(scored([](Value& b) { b.set("task.sampling.seed", "0000000000000004"); }) == 1);
    CHECK(scored([](Value& b) { b.set("stop", Value()), b.set("stop.kind", "context"); }) == 1);
    CHECK(scored([&](Value& b) {
            b.set("task.stop_ids", Value::Array{Value(ids[4])});
            b.set("stop", Value());
            b.set("stop.kind", "context");
          }) == 1);
    CHECK(scored([](Value& b) {
            b.object().at("package").object().erase("files");
            b.set("package.sha256", receipts::sha256_hex("another"));
            Value parent;
            parent.set("role", "session");
            parent.set("rid", receipts::sha256_hex("session"));
            b.set("parents", Value::Array{parent});
          }) == 4);
    // What another package said, with this one's name on it.
    const std::string q8 = home.file("q8.bolt");
    REQUIRE(run_bolt(home, {"convert", "-q", "--quant", "q8",
                            BOLT_SOURCE_DIR "/testdata/sample-model", q8})
                .status == 0);
    const receipts::Receipt foreign = receipts::read_receipt(run(
        home, "foreign",
        {"Tell a story.", "-m", q8, "--temp", "6", "--seed", "6", "--ignore-eos", "-n", "100"}));
    write_lie(lie, foreign, *foreign.attached.ids,
              [&](Value& b) { b.set("package", *honest.body.find("package")); });
    CHECK(run_bolt(home, {"receipt", "verify", "--score", foreign.what}).status == 4);
    const Ended named = run_bolt(home, {"receipt", "verify", "--score", lie});
    CHECK(named.status == 1);
    CHECK(named.out.find("NOT what this package says") != std::string::npos);
  }

  TEST_CASE("receipt: a build with one reduction reversed is caught three ways, by its token") {
    const ScratchFolder home;
    // In 8 bits a sum's last bit may tip a rounding, and a rounding, in time, a token.
    const std::string package = home.file("q8.bolt");
    REQUIRE(run_bolt(home, {"convert", "-q", "--quant", "q8",
                            BOLT_SOURCE_DIR "/testdata/sample-model", package})
                .status == 0);
    const std::vector<std::string> args = {
        "Tell a story.", "-m", package, "--draft", "off",          "--temp",   "6",
        "--seed",        "6",  "-n",    "100",     "--ignore-eos", "--attach", "ids,text,logits"};
    const std::string right = run(home, "right", args);
    Start start{.args = {"run", "-q", "--receipt", home.file("wrong.bolt.jsonl")}};
    start.args.insert(start.args.end(), args.begin(), args.end());
    start.program = BOLT_BINARY_DIR "/testing/bolt_reversed";
    REQUIRE(run_bolt(home, start).status == 0);
    const std::string wrong = start.args[3], first = "69";
    CHECK(run_bolt(home, {"receipt", "verify", wrong}).status == 0);  // its seal is sound
    const Ended compared = run_bolt(home, {"receipt", "compare", right, wrong});
    CHECK(compared.status == 1);
    CHECK(compared.out.find("build differs") != std::string::npos);
    CHECK(compared.out.find("DIFFER first at " + first) != std::string::npos);
    CHECK(compared.out.find("logits differs first at 1") != std::string::npos);
    const Ended replayed = run_bolt(home, {"receipt", "verify", "-m", package, "--replay", wrong});
    CHECK(replayed.status == 1);
    CHECK(replayed.out.find("tokens DIFFER first at " + first) != std::string::npos);
    const Ended scored = run_bolt(home, {"receipt", "verify", "-m", package, "--score", wrong});
    CHECK(scored.status == 1);
    CHECK(scored.out.find(" at " + first) != std::string::npos);
    // The wrong build finds the right receipt wrong: a check is worth what its build is.
    start.args = {"receipt", "verify", "-m", package, "--score", right};
    CHECK(run_bolt(home, start).status == 1);
  }

  TEST_CASE("receipt: redaction: who can check, compare and replay what run sealed") {
    const ScratchFolder home;
    const std::string key = home.file("key"), other = home.file("other");
    for (const std::string& path : {key, other}) {
      write_bytes(path, std::string(64, path == key ? 'a' : 'b') + "\n");
      REQUIRE(::chmod(path.c_str(), 0600) == 0);
    }
    const std::string plain = run(home, "plain", {"Count to 5."});
    const std::string keyed = run(home, "keyed", {"Count to 5.", "--redaction-key", key});
    const std::string again =
        run(home, "again",
            {"Count to 5.", "--redact", "keyed", "--redaction-key", key, "--drafts", "3"});
    const std::string salted = run(home, "salted", {"Count to 5.", "--redact", "salted"});
    const std::string salted2 = run(home, "salted2", {"Count to 5.", "--redact", "salted"});
    const std::string dropped = run(home, "dropped", {"Count to 5.", "--drop-info"});
    const auto status = [&](std::vector<std::string> args) {
      args.insert(args.begin(), "receipt");
      return run_bolt(home, args).status;
    };
    CHECK(status({"verify", "--redaction-key", key, keyed}) == 0);
    CHECK(status({"verify", "--redaction-key", other, keyed}) == 4);
    CHECK(status({"verify", salted}) == 0);
    CHECK(status({"compare", keyed, again}) == 0);  // by anyone
    CHECK(status({"compare", plain, keyed}) == 4);
    CHECK(status({"compare", salted, salted2}) == 0);  // by their ids, the salts revealed
    CHECK(status({"verify", "--replay", keyed}) == 4);
    CHECK(status({"verify", "--replay", "--score", "--redaction-key", key, keyed}) == 0);
    CHECK(status({"verify", "--replay", "--score", salted}) == 0);
    CHECK(status({"verify", "--replay", "--score", dropped}) == 0);
    CHECK(file_bytes(dropped).find("\"time\"") == std::string::npos);
    // Published: the first two lines alone.
    const auto publish = [&](const std::string& path) {
      const std::string text = file_bytes(path);
      const std::string cut = path.substr(0, path.size() - 11) + "-cut.bolt.jsonl";
      write_bytes(cut, text.substr(0, text.find('\n', text.find('\n') + 1) + 1));
      return cut;
    };
    CHECK(status({"compare", publish(keyed), publish(again)}) == 0);
    CHECK(status({"compare", publish(salted), publish(salted2)}) == 4);
    CHECK(
        file_bytes(publish(keyed)).find(receipts::read_receipt(plain).body.string_at("out.ids")) ==
        std::string::npos);
    CHECK(run_bolt(home, {"run", "--redact", "keyed", "x"}).status == 2);
    CHECK(run_bolt(home, {"run", "--redact", "salted", "--redaction-key", key, "x"}).status == 2);
    CHECK(run_bolt(home, {"run", "--redact", "some", "x"}).status == 2);
    REQUIRE(::chmod(key.c_str(), 0644) == 0);
    CHECK(run_bolt(home, {"run", "--redaction-key", key, "x"}).status == 5);
  }

  TEST_CASE(
      "receipt: the digits of a file name or a rid find a receipt, and say so if several fit") {
    const ScratchFolder home;
    CHECK(run_bolt(home, {"run", "-q", "-n", "2", "Hello"}).status == 0);
    const std::string folder = home.file("receipts");
    std::string name;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      name = entry.path().filename().string();
    }
    const std::string digits = name.substr(name.find('-') + 1, 8);
    const receipts::Receipt receipt = receipts::read_receipt(folder + "/" + name);
    for (const std::string& prefix : {digits, receipt.rid.substr(0, 8)}) {
      const Ended ended = run_bolt(home, {"receipt", "show", prefix});
      INFO(prefix, ended.err);
      CHECK(ended.status == 0);
      CHECK(ended.out.starts_with(receipt.rid.substr(0, 8) + " run  SEALED"));
    }
    // Another of the same run_id.
    receipts::Value body = receipt.body;
    body.set("challenge", "00");
    std::ofstream(folder + "/twin.bolt.jsonl") << receipts::sealed_lines(body, "");
    const Ended several = run_bolt(home, {"receipt", "show", digits});
    CHECK(several.status == 4);
    CHECK(several.err.find("the start of 2 receipts") != std::string::npos);
    CHECK(several.err.find(receipt.rid.substr(0, 16)) != std::string::npos);
    CHECK(several.err.find("twin.bolt.jsonl") != std::string::npos);
    CHECK(run_bolt(home, {"receipt", "show", receipt.rid.substr(0, 8)}).status == 0);
  }

  TEST_CASE("receipt: a plan names a package by its files, with or without a receipt beside it") {
    const ScratchFolder home;
    const std::string sample = BOLT_BINARY_DIR "/sample.bolt";
    std::filesystem::copy(sample, home.file("bare.bolt"));
    write_bytes(home.file("prompts"), "Hello\n");
    const auto planned = [&](const std::string& package, const std::string& name) {
      const std::string path = home.file(name + ".bolt.jsonl");
      const Ended ended =
          run_bolt(home, {"receipt", "plan", "-o", path, "--package", package, "--modes",
                          "ordinary", "--passes", "1", "--prompts", home.file("prompts")});
      INFO(ended.err);
      REQUIRE(ended.status == 0);
      CHECK(ended.out.find("1 build x 1 mode x 1 prompt x 1 pass = 1 cell\n") != std::string::npos);
      return receipts::read_receipt(path).body.find("plan.packages")->array()[0].as_string();
    };
    const std::string digest = planned(sample, "p1");
    CHECK(planned(home.file("bare.bolt/"), "p2") == digest);
    const std::string made = run(home, "run", {"Hello", "-m", home.file("bare.bolt")});
    CHECK(receipts::read_receipt(made).body.string_at("package.sha256") == digest);
    CHECK(planned(made, "p3") == digest);
    const Ended none =
        run_bolt(home, {"receipt", "plan", "-o", home.file("p4.bolt.jsonl"), "--package",
                        home.file("none.bolt"), "--prompts", home.file("prompts")});
    CHECK(none.status == 4);
    CHECK(none.err.find("name a package's folder, its receipt or its package.sha256") !=
          std::string::npos);
    const Ended value = run_bolt(home, {"receipt", "plan", "--passes"});
    CHECK(value.status == 2);
    CHECK(value.err.find("--passes needs a value") != std::string::npos);
  }

  TEST_CASE("receipt: show, sign, prune and what they refuse, as a shell sees it") {
    const ScratchFolder home;
    const std::string path = run(home, "r", {"Hello"});
    CHECK(run_bolt(home, {"receipt", "show", path}).status == 0);
    const Ended body = run_bolt(home, {"receipt", "show", "--json", path});
    CHECK(receipts::sha256_hex(body.out.substr(0, body.out.size() - 1)) ==
          receipts::read_receipt(path).rid);
    std::string text = file_bytes(path);
    text[100] ^= 1;
    const std::string broken = home.file("broken.bolt.jsonl");
    std::ofstream(broken) << text;
    for (const char* verb : {"show", "verify"}) {
      const Ended ended = run_bolt(home, {"receipt", verb, broken});
      CHECK(ended.status == 3);
      CHECK(ended.out.empty());
    }
    CHECK(run_bolt(home, {"receipt", "verify", home.file("none")}).status == 4);
    CHECK(run_bolt(home, {"receipt", "verify"}).status == 2);
    CHECK(run_bolt(home, {"receipt", "verify", "--as", "k99", path}).status == 2);
    CHECK(run_bolt(home, {"receipt", "prune", "--older-than", "soon"}).status == 2);
    CHECK(run_bolt(home, {"receipt", "verify", "--require-signed", path}).status == 5);
  }
}

}  // namespace
}  // namespace bolt::testing
