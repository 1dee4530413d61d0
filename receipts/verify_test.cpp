// What verify must refuse; the numbers are those of the list of attacks in bolt-receipt(1).
#include "receipts/verify.h"

#include <doctest/doctest.h>

#include "receipts/invariants.h"
#include "receipts/show.h"
#include "receipts/test_facts.h"

using namespace bolt::receipts;

TEST_CASE("verify: an honest receipt holds, all nine invariants counted") {
  for (const RunFacts& facts :
       {sample_run(), sample_speculative(), sample_run(1), sample_run(16)}) {
    const Answer answer = verify(sealed(facts), {});
    CHECK(answer.status == Status::holds);
    CHECK(answer.lines[0].text.find(
              "invariants 9/9  prompt_ids, ids attached ok  signature none") != std::string::npos);
  }
}

TEST_CASE("verify: case 1, each byte of the body flipped is refused with 3") {
  const std::string text = sealed_text(sample_run());
  const std::size_t body = text.find('\n');
  for (std::size_t i = 0; i <= body; ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK_MESSAGE(verdict(changed) == 3, "byte ", i);
  }
  CHECK(verdict(text) == 0);
}

TEST_CASE(
    "verify: cases 1, 2 and 12, any byte of the file set to any of several values is refused") {
  const std::string text = sealed_text(sample_run(20));
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const char c : {'0', 'a', '"', ' ', '\n', '\0', '\x80'}) {
      if (text[i] == c) continue;
      std::string changed = text;
      changed[i] = c;
      if (verdict(changed) != 3) FAIL("byte " << i << " set to " << static_cast<int>(c));
    }
  }
}

TEST_CASE("verify: case 2, rid, bytes and alg of the seal") {
  const std::string text = sealed_text(sample_run());
  const std::string seal = text.substr(text.find('\n') + 1);
  const std::size_t rid = text.find("\"rid\":\"") + 7;
  std::string changed = text;
  changed[rid] = changed[rid] == '0' ? '1' : '0';
  CHECK(verdict(changed) == 3);
  CHECK(verdict(replaced(text, "\"alg\":\"sha256\"", "\"alg\":\"sha512\"")) == 3);
  CHECK(verdict(replaced(text, "\"bytes\":", "\"bytes\":1")) == 3);
  CHECK(verdict(replaced(text, "\"canon\":\"jcs-int/1\"", "\"canon\":\"jcs-int/2\"")) == 3);
  CHECK(verdict(replaced(text, ",\"rid\"", ",\"more\":1,\"rid\"")) == 3);
}

TEST_CASE("verify: case 3, a file cut at any byte is refused, but at line ends after the seal") {
  const std::string text = sealed_text(sample_run());
  const std::size_t seal_end = text.find('\n', text.find('\n') + 1) + 1;
  int held = 0;
  for (std::size_t n = 0; n < text.size(); ++n) {
    const bool whole_lines = n >= seal_end && text[n - 1] == '\n';
    CHECK_MESSAGE(verdict(text.substr(0, n)) == (whole_lines ? 0 : 3), "cut at ", n);
    held += whole_lines ? 1 : 0;
  }
  CHECK(held == 2);  // after the seal, and after the first attachment
  // A cut that leaves whole lines is redaction, and shown as such.
  const Answer answer = verify(read_receipt_text(text.substr(0, seal_end), "t"), {});
  CHECK(answer.lines[0].text.find("nothing attached") != std::string::npos);
}

TEST_CASE("verify: case 4, CRLF, BOM, trailing space, missing line feed") {
  const std::string text = sealed_text(sample_run());
  std::string crlf;
  for (const char c : text) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  CHECK(verdict(crlf) == 3);
  CHECK(verdict("\xef\xbb\xbf" + text) == 3);
  CHECK(verdict(replaced(text, "\n", " \n")) == 3);
  CHECK(verdict(text.substr(0, text.size() - 1)) == 3);
  CHECK(verdict(text + "\n") == 3);
  CHECK(verdict("\n" + text) == 3);
  CHECK(verdict("") == 3);
}

TEST_CASE("verify: cases 5 to 8, a body that is not canonical is refused even when sealed anew") {
  const std::string body = body_of(sealed_text(sample_run()));
  CHECK(verdict(resealed(body)) == 0);
  CHECK(verdict(resealed(
            replaced(body, "\"kind\":\"run\"", "\"kind\":\"run\",\"kind\":\"run\""))) == 3);
  CHECK(verdict(resealed(replaced(body, "\"n\":40", "\"n\":40,\"n\":40"))) == 3);
  CHECK(verdict(resealed(replaced(body, "\"kind\":\"run\"", "\"kind\":\"run\",\"kinds\":1"))) == 3);
  CHECK(verdict(resealed(replaced(body, "\"n\":40", "\"n\":40,\"zz\":1"))) == 3);
  for (const char* number :
       {"40.0", "4e1", "-0", "9007199254740992", "null", "NaN", "\"40\"", "-1"}) {
    CHECK_MESSAGE(
        verdict(resealed(replaced(body, "\"n\":40", std::string("\"n\":") + number))) == 3, number);
  }
  // Reordered keys, right hash.
  CHECK(verdict(resealed(
            replaced(body, R"("ignore_eos":false,"prompt_ids")", R"("prompt_ids")"))) == 3);
  const std::string swapped = replaced(replaced(body, "\"kv\":\"i16\",", ""), "\"scope\":\"any\",",
                                       "\"scope\":\"any\",\"kv\":\"i16\",");
  CHECK(verdict(resealed(swapped)) == 3);
  // A line that is neither attachment nor signature, and a second receipt in a file for one.
  const std::string text = sealed_text(sample_run());
  CHECK(verdict(text + "{\"_type\":\"bolt.extra/1\"}\n") == 3);
  CHECK(verdict(text + text) == 3);
}

TEST_CASE("verify: case 9, bad UTF-8 in a sealed body") {
  const std::string body = body_of(sealed_text(sample_run()));
  for (const std::string& bad : {std::string("\\ud800"), std::string("\xc0\xaf"),
                                 std::string("\xed\xa0\x80"), std::string("\xff")}) {
    CHECK(verdict(resealed(
              replaced(body, "\"source\":\"sample\"", "\"source\":\"" + bad + "\""))) == 3);
  }
}

TEST_CASE("verify: case 10, bombs of depth and size end early") {
  const std::string start = R"({"_type":"bolt.receipt/1","build":)";
  CHECK(verdict(resealed(start + std::string(100000, '['))) == 3);
  CHECK(verdict(start + std::string(3 << 20, '[')) == 3);
  CHECK(verdict(resealed(start + "\"" + std::string(2 << 20, 'a') + "\"}")) == 3);
}

TEST_CASE("verify: case 11, an outcome moved into another request does not fit its chain") {
  const RunFacts a = sample_run();
  RunFacts b = sample_run();
  b.task.prompt_ids = {9, 9, 9};
  // b's body with a's outcome: digest, marks and key as a sealed them, key derived anew.
  Value spliced = run_body(b);
  spliced.set("out", *run_body(a).find("out"));
  spliced.set("out.key", out_key(spliced, Binder()));
  const std::string text = sealed_lines(spliced, attachment_lines(b, rid_of(canonical(spliced))));
  CHECK(verdict(text) == 3);
  // Without the ids nothing ties marks to ids; the seal is sound, and score or replay must tell.
  CHECK(verdict(resealed(canonical(spliced))) == 0);
}

TEST_CASE("verify: case 12, attached ids dropped, repeated or swapped") {
  const std::string text = sealed_text(sample_run());
  CHECK(verdict(replaced(text, ",101,", ",")) == 3);
  CHECK(verdict(replaced(text, ",101,", ",101,101,")) == 3);
  CHECK(verdict(replaced(text, ",101,102,", ",102,101,")) == 3);
  CHECK(verdict(replaced(text, "[3,1,4,1,5]", "[3,1,4,5,1]")) == 3);
  // Lines repeated, out of order, of another receipt.
  const std::size_t first = text.find("{\"_type\":\"bolt.attachment"),
                    second = text.find('\n', first) + 1;
  const std::string prompt_line = text.substr(first, second - first),
                    ids_line = text.substr(second);
  const std::string head = text.substr(0, first);
  CHECK(verdict(head + ids_line) == 0);
  CHECK(verdict(head + prompt_line + prompt_line) == 3);
  CHECK(verdict(head + ids_line + prompt_line) == 3);
  RunFacts other = sample_run();
  other.common.run_id[0] = '9';
  CHECK(verdict(body_of(sealed_text(other)) + "\n" + seal_line(body_of(sealed_text(other))) + "\n" +
                ids_line) == 3);
}

TEST_CASE("verify: case 15, no token, one token, a stop id first") {
  RunFacts none = sample_run(0);
  none.stop.kind = "interrupted";
  none.task.max_new = 10;
  CHECK(verdict(sealed_text(none)) == 0);
  RunFacts eos = sample_run(1);
  eos.out.ids = {2};
  eos.stop.kind = "eos";
  eos.stop.id = 2;
  CHECK(verdict(sealed_text(eos)) == 0);
  eos.stop.id = 7;
  CHECK(verdict(sealed_text(eos)) == 3);
}

TEST_CASE("verify: case 16, counters that lie") {
  const auto changed = [](const std::function<void(RunFacts&)>& lie) {
    RunFacts facts = sample_speculative();
    lie(facts);
    return verdict(sealed_text(facts));
  };
  CHECK(changed([](RunFacts&) {}) == 0);
  CHECK(changed([](RunFacts& f) { f.count.drafted = 10; }) == 3);
  CHECK(changed([](RunFacts& f) { f.count.target -= 1; }) == 3);
  CHECK(changed([](RunFacts& f) { f.count.segments += 1; }) == 3);
  CHECK(changed([](RunFacts& f) { f.count.accepted_at[3] += 1; }) == 3);
  CHECK(changed([](RunFacts& f) { f.count.cut += 1; }) == 3);
  CHECK(changed([](RunFacts& f) { f.count.bonus += 1; }) == 3);
  CHECK(changed([](RunFacts& f) { f.mode.kind = "ordinary"; }) == 3);
  CHECK(changed([](RunFacts& f) { f.task.max_new += 1; }) == 3);
  CHECK(changed([](RunFacts& f) { f.stop.kind = "eos"; }) == 3);
  CHECK(changed([](RunFacts& f) { f.sched.cached_n = 2; }) == 3);
  // Counts that add up and still cannot be.
  CHECK(changed([](RunFacts& f) { f.count.copy_accepted = f.count.copy_drafted + 1; }) == 3);
  CHECK(changed([](RunFacts& f) { f.count.copy_drafted = f.count.drafted + 1; }) == 3);
  CHECK(changed([](RunFacts& f) { f.count.copy_rounds = f.count.rounds + 1; }) == 3);
  CHECK(changed([](RunFacts& f) { f.count.drafted = 32 * f.count.rounds; }) == 3);
  CHECK(changed([](RunFacts& f) { f.mode.depth = 1; }) == 3);
  CHECK(changed([](RunFacts& f) { f.count.prompt_passes = 0; }) == 3);
  CHECK(changed([](RunFacts& f) { f.task.context = 44; }) == 3);
  CHECK(changed([](RunFacts& f) { f.sched.slots = 0; }) == 3);
  // A sum that would overflow is refused, not wrapped.
  CHECK(changed([](RunFacts& f) { f.count.accepted_at.assign(4, kIntMax); }) == 3);
}

TEST_CASE("verify: sampling is complete or greedy") {
  RunFacts facts = sample_run();
  facts.task.sampling.kind = "sample";
  facts.task.sampling.rng = "philox4x32-10";
  facts.task.sampling.seed = 0xffffffffffffffffu;
  const std::string body = body_of(sealed_text(facts));
  CHECK(verdict(resealed(body)) == 0);
  CHECK(body.find(R"("seed":"ffffffffffffffff")") != std::string::npos);
  CHECK(verdict(resealed(replaced(body, R"("rng":"philox4x32-10",)", ""))) == 3);
  CHECK(verdict(resealed(replaced(body, R"("kind":"sample")", R"("kind":"greedy")"))) == 3);
}

TEST_CASE("verify: derived digests are recomputed") {
  const std::string body = body_of(sealed_text(sample_run()));
  for (const char* field : {"task.sha256", "out.key", "package.sha256"}) {
    Value changed = read_canonical(body, "t");
    changed.set(field, sha256_hex("another"));
    CHECK_MESSAGE(verdict(resealed(canonical(changed))) == 3, field);
  }
  // A task field changed without its digest.
  Value changed = read_canonical(body, "t");
  changed.set("task.ignore_eos", true);
  CHECK(verdict(resealed(canonical(changed))) == 3);
}

TEST_CASE("verify: case 19, package paths that lead out or clash") {
  const auto with_path = [](const std::string& path) {
    RunFacts facts = sample_run();
    facts.package.files[0].path = path;
    try {
      return verdict(sealed_text(facts));
    } catch (const Failure& failure) {  // our own writer refuses to seal it
      return static_cast<int>(failure.status);
    }
  };
  CHECK(with_path("graph.json") == 0);
  CHECK(with_path("sub/graph.json") == 0);
  for (const char* path : {"../x", "/etc/passwd", "a/../../x", "a\\b", "a//b", "./a", "a/", "a\nb",
                           "..", "Weights-00000.bin"}) {
    CHECK_MESSAGE(with_path(path) == 3, path);
  }
  CHECK(with_path(std::string("a\0b", 3)) == 3);
}

TEST_CASE("verify: case 27, an old receipt for a new challenge is not comparable") {
  RunFacts facts = sample_run();
  VerifyOptions options;
  options.challenge = "c0ffee";
  CHECK(verdict(sealed_text(facts), options) == 4);
  facts.common.challenge = "0ddba11a";
  CHECK(verdict(sealed_text(facts), options) == 4);
  facts.common.challenge = "c0ffee";
  CHECK(verdict(sealed_text(facts), options) == 0);
}

TEST_CASE("verify: case 35, a receipt of one kind does not pass for another") {
  const std::string body = body_of(sealed_text(sample_run()));
  for (const char* kind : {"session", "conversion", "bench", "plan", "audit", "other", "RUN"}) {
    CHECK_MESSAGE(verdict(resealed(replaced(body, "\"kind\":\"run\"",
                                            std::string("\"kind\":\"") + kind + "\""))) == 3,
                  kind);
  }
  CHECK(verdict(resealed(replaced(body, "bolt.receipt/1", "bolt.receipt/2"))) == 3);
}

TEST_CASE("show: case 36, control and bidirectional characters come out inert") {
  RunFacts facts = sample_run();
  facts.package.source = "a\x1b[31mred\u202egnp.exe\u2066\x07";
  for (const bool whole : {false, true}) {
    std::string all;
    for (const Line& line : show(sealed(facts), whole)) all += line.text;
    CHECK(all.find('\x1b') == std::string::npos);
    CHECK(all.find('\x07') == std::string::npos);
    CHECK(all.find("\u202e") == std::string::npos);
    CHECK(all.find("\\u{1b}[31mred\\u{202e}gnp.exe\\u{2066}\\u{7}") != std::string::npos);
  }
  CHECK(inert("caf\u00e9 \u4e2d\u6587 \U0001f600") == "caf\u00e9 \u4e2d\u6587 \U0001f600");
  CHECK(inert("\xff\xc0") == "\\x{ff}\\x{c0}");
}

TEST_CASE("show: says in words why a reply ended and what was set, and quotes attached texts") {
  const auto shown = [](const RunFacts& facts, int columns) {
    std::string all;
    for (const Line& line : show(sealed(facts), false, columns)) all += line.text + "\n";
    return all;
  };
  const auto has = [](const std::string& all, const std::string& words) {
    return all.find(words) != std::string::npos;
  };
  RunFacts facts = sample_run();
  facts.common.env.push_back({"CUDA_HOME", "", sha256_hex("1")});
  facts.common.env.push_back({"CUDA_VISIBLE_DEVICES", "0", ""});
  facts.attach.text = true;
  facts.out.text = "one\ntwo \x1b[2J\u202e\n" + std::string(200, 'x');
  std::string all = shown(facts, 0);
  CHECK(has(all,
            "ordinary, 5 prompt tokens -> 40 tokens, ended by the token limit, 39 rounds, 39 "
            "target passes\n"));
  CHECK(has(
      all, "\nenv CUDA_HOME set (value kept as a digest, " + sha256_hex("1").substr(0, 8) + ")\n"));
  CHECK(has(all, "\nenv CUDA_VISIBLE_DEVICES=0\n"));
  CHECK(has(all, "\n  | one\n  | two \\u{1b}[2J\\u{202e}\n  | " + std::string(200, 'x') + "\n"));
  CHECK_FALSE(has(all, "shortened"));
  all = shown(facts, 80);
  CHECK(has(all, "\n  | " + std::string(73, 'x') + "...\n  shortened"));
  facts.out.text = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
  CHECK(has(shown(facts, 80), "\n  | 8\n  shortened"));
  CHECK(has(shown(facts, 0), "\n  | 9\n"));
  RunFacts one = sample_run(2);
  one.stop.kind = "eos";
  one.stop.id = 101;
  one.task.stop_ids = {101};
  one.task.max_new = 9;
  CHECK(has(shown(one, 0), "-> 2 tokens, ended by stop token 101, 1 round, 1 target pass\n"));
  // What is quoted is what the body binds.
  Receipt other = sealed(facts);
  other.attached.text = "another";
  CHECK_THROWS_AS((void)show(other, false), Failure);
}

TEST_CASE("verify: bytes that changed since sealing are said to have, before what else is wrong") {
  const std::string text = sealed_text(sample_run());
  const std::string body = body_of(text), rest = text.substr(body.size());
  const auto refusal = [](const std::string& changed) -> std::string {
    try {
      (void)read_receipt_text(changed, "t");
    } catch (const Failure& failure) {
      CHECK(failure.status == Status::malformed);
      return failure.what();
    }
    return "accepted";
  };
  const auto said = [&](const std::string& changed) {
    return "t: changed since sealing: the seal names rid " + rid_of(body) + ", these bytes have " +
           rid_of(changed);
  };
  // Still a good body: only the seal tells.
  std::string changed = replaced(body, R"("n":40)", R"("n":41)");
  CHECK(refusal(changed + rest) == said(changed));
  // No JSON any more, an unknown field, no body at all.
  changed = replaced(body, R"("n":40)", R"("n":4O)");
  CHECK(refusal(changed + rest).starts_with(said(changed) + "; also line 1 (body)"));
  changed = replaced(body, R"("run_id")", R"("run_ie")");
  CHECK(refusal(changed + rest).starts_with(said(changed) + "; also "));
  changed = replaced(body, "bolt.receipt", "bolt.deceipt");
  CHECK(refusal(changed + rest).starts_with(said(changed) + "; also line 1 is no receipt's body"));
  // Resealed, nothing changed since; the fault is the body's own.
  CHECK(refusal(resealed(replaced(body, R"("run_id")", R"("run_ie")"))).find("changed since") ==
        std::string::npos);
  CHECK(refusal(text) == "accepted");
}

TEST_CASE("verify: case 36, what is refused is named without letting it speak") {
  const std::string body = body_of(sealed_text(sample_run()));
  // A choice that is none, with a bidirectional control, cut within a character.
  const std::string hostile = "\u202e" + std::string(76, 'x') + "\u4e2d\u4e2d";
  try {
    (void)read_receipt_text(resealed(replaced(body, R"("kv":"i16")", "\"kv\":\"" + hostile + '"')),
                            "t");
    FAIL("accepted");
  } catch (const Failure& failure) {
    CHECK(failure.status == Status::malformed);
    CHECK(std::string(failure.what()).find("arith.kv is \"\\u{202e}xxx") != std::string::npos);
  }
}

TEST_CASE("redaction: case 39, attachments dropped change nothing, keys decide who can check") {
  RunFacts facts = sample_run();
  facts.redaction.mode = Redaction::Mode::keyed;
  facts.redaction.key.fill(7);
  const std::string text = sealed_text(facts);
  const Answer without = verify(read_receipt_text(text, "t"), {});
  CHECK(without.json.int_at("invariants") == 8);
  CHECK(without.lines[0].text.find("UNCHECKED") != std::string::npos);
  VerifyOptions with;
  with.redaction_key = facts.redaction.key;
  CHECK(verify(read_receipt_text(text, "t"), with).json.int_at("invariants") == 9);
  with.redaction_key->fill(8);
  CHECK(verdict(text, with) == 4);
  with.redaction_key = facts.redaction.key;
  CHECK(verdict(replaced(text, ",101,102,", ",102,101,"), with) == 3);
  // The digests of a keyed receipt are none that a guess can reproduce.
  CHECK(run_body(facts).string_at("out.ids") != run_body(sample_run()).string_at("out.ids"));

  facts.redaction.mode = Redaction::Mode::salted;
  const std::string salted = sealed_text(facts);
  CHECK(verify(read_receipt_text(salted, "t"), {}).json.int_at("invariants") == 9);
  CHECK(verdict(replaced(salted, "\"data_hex\":\"07", "\"data_hex\":\"08")) == 3);

  facts = sample_run();
  facts.redaction.drop_info = true;
  facts.out.margin = Margin{0.5f, 3};
  const Receipt dropped = sealed(facts);
  CHECK(dropped.body.find("time") == nullptr);
  CHECK(dropped.body.find("count") == nullptr);
  CHECK(dropped.body.find("device") == nullptr);
  CHECK(verdict(sealed_text(facts)) == 0);
}

TEST_CASE("attachments: texts that are not UTF-8 travel as hex, and lists bind their digests") {
  RunFacts facts = sample_run(3);
  facts.attach.text = facts.attach.logits = facts.attach.state = true;
  facts.out.text = "a\xff\"b";
  facts.task.prompt_text = R"(quote ","kind":"ids" inside)";
  facts.out.logits = {sha256_hex("1"), sha256_hex("2"), sha256_hex("3")};
  facts.out.state = {sha256_hex("layer 0"), sha256_hex("layer 1")};
  facts.out.state_boundary = "end";
  const std::string text = sealed_text(facts);
  const Receipt receipt = read_receipt_text(text, "t");
  CHECK(receipt.attached.text == facts.out.text);
  CHECK(receipt.attached.prompt_text == facts.task.prompt_text);
  CHECK(receipt.attached.list() == "prompt_ids, ids, prompt_text, text, logits, state");
  CHECK(verdict(text) == 0);
  CHECK(verdict(replaced(text, sha256_hex("2"), sha256_hex("4"))) == 3);
  CHECK(verdict(replaced(text, sha256_hex("layer 1"), sha256_hex("layer 2"))) == 3);
  CHECK(verdict(replaced(text, "data_hex\":\"61", "data_hex\":\"62")) == 3);
}
