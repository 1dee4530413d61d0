#include "receipts/compare.h"

#include <doctest/doctest.h>

#include "receipts/replay.h"
#include "receipts/test_facts.h"

using namespace bolt::receipts;

namespace {

// The receipt without its attachments, as after redaction.
Receipt bare(const RunFacts& facts) {
  const std::string body = body_of(sealed_text(facts));
  return read_receipt_text(resealed(body), "t");
}

std::string said(const Answer& answer) {
  std::string all;
  for (const Line& line : answer.lines) all += line.text + "\n";
  return all;
}

}  // namespace

TEST_CASE("compare: drafted and ordinary runs of one task are the same") {
  const Answer answer = compare(sealed(sample_run()), sealed(sample_speculative()), {});
  CHECK(answer.status == Status::holds);
  CHECK(said(answer).find("mode ordinary|speculative k7\ntokens same (40)  stop same") !=
        std::string::npos);
  CHECK(said(answer).find("counters not compared") != std::string::npos);
}

TEST_CASE("compare: case 13, one id changed at 1, 16, 17 and n is found in its window") {
  const RunFacts honest = sample_run();
  const std::int64_t windows[][3] = {{1, 1, 16}, {16, 1, 16}, {17, 17, 32}, {40, 33, 40}};
  for (const auto& [at, first, last] : windows) {
    RunFacts other = sample_run();
    other.out.ids[static_cast<std::size_t>(at - 1)] += 1;
    const Comparison exact = compare_runs(sealed(honest), sealed(other));
    CHECK(exact.status == Status::false_claim);
    CHECK(exact.first == at);
    CHECK(exact.last == at);
    const Comparison by_marks = compare_runs(bare(honest), bare(other));
    CHECK(by_marks.status == Status::false_claim);
    CHECK(by_marks.first == first);
    CHECK(by_marks.last == last);
  }
  CHECK(compare_runs(bare(honest), bare(honest)).status == Status::holds);
}

TEST_CASE("compare: case 14, the start of a longer run is a prefix, not the same") {
  for (const int n : {16, 20, 32}) {
    const RunFacts shorter = sample_run(n), longer = sample_run(40);
    const Comparison with_ids = compare_runs(sealed(shorter), sealed(longer));
    CHECK(with_ids.tokens == Tokens::prefix);
    CHECK(with_ids.status == Status::holds);
    // By marks alone, only what ends on a mark can be told to its end.
    const Comparison by_marks = compare_runs(bare(shorter), bare(longer));
    CHECK(by_marks.tokens == (n % 16 == 0 ? Tokens::prefix : Tokens::unknown));
    CHECK(by_marks.status == (n % 16 == 0 ? Status::holds : Status::unmet));
    CHECK(compare_runs(bare(shorter), sealed(longer)).tokens == Tokens::prefix);
  }
  // Under one limit a shorter reply is no prefix to be content with.
  RunFacts cut = sample_run(20);
  cut.task.max_new = 40;
  cut.stop.kind = "eos";
  cut.stop.id = 2;
  CHECK(compare_runs(sealed(cut), sealed(sample_run(40))).status == Status::false_claim);
  RunFacts wrong = sample_run(20);
  wrong.out.ids.back() += 1;
  CHECK(compare_runs(bare(wrong), sealed(sample_run(40))).status == Status::false_claim);
}

TEST_CASE("compare: other tasks are not comparable, other arithmetic is observed only") {
  const auto against = [](const std::function<void(RunFacts&)>& change) {
    RunFacts other = sample_run();
    change(other);
    return compare_runs(sealed(sample_run()), sealed(other));
  };
  CHECK(against([](RunFacts& f) { f.task.prompt_ids[0] = 9; }).status == Status::unmet);
  CHECK(against([](RunFacts& f) { f.package.vocab = sha256_hex("v2"); }).status == Status::unmet);
  CHECK(against([](RunFacts& f) { f.task.stop_ids = {7}; }).status == Status::unmet);
  CHECK(against([](RunFacts& f) { f.task.stop_texts = {"x"}; }).status == Status::unmet);
  CHECK(against([](RunFacts& f) { f.redaction.mode = Redaction::Mode::keyed; }).status ==
        Status::unmet);
  const Comparison kv = against([](RunFacts& f) { f.arith.kv = "f32"; });
  CHECK(kv.status == Status::holds);
  CHECK_FALSE(kv.promised);
  CHECK(against([](RunFacts& f) { f.common.build.exe = sha256_hex("2"); }).promised);
}

TEST_CASE("compare: runs of another package are observed, not promised, whatever they say") {
  const auto against = [](const std::function<void(RunFacts&)>& change) {
    RunFacts other = sample_run();
    change(other);
    return compare(sealed(sample_run()), sealed(other), {});
  };
  const auto has = [](const Answer& answer, const char* words) {
    return said(answer).find(words) != std::string::npos;
  };
  const Answer payload = against([](RunFacts& f) { f.package.files[1].sha256 = sha256_hex("q8"); });
  CHECK(payload.status == Status::holds);
  CHECK(has(payload, "package DIFFERS (payload)\n"));
  CHECK(has(payload, "\nobserved, not promised: package.sha256 differs (payload)\n"));
  CHECK(payload.json.string_at("package") == "differs");
  CHECK_FALSE(payload.json.bool_at("promised", true));
  const Answer other_tokens = against([](RunFacts& f) {
    f.package.files[1].sha256 = sha256_hex("q8");
    f.out.ids[3] += 1;
  });
  CHECK(other_tokens.status == Status::false_claim);
  CHECK(has(other_tokens, "observed, not promised"));
  CHECK(has(against([](RunFacts& f) {
              f.package.files[0].sha256 = sha256_hex("g2");
              f.package.files.push_back({"config.json", "config", 2, sha256_hex("c"), "stream", 1});
            }),
            "package DIFFERS (graph, config)"));
  CHECK(has(against([](RunFacts& f) { f.package.files[1].path = "weights-1.bin"; }),
            "package DIFFERS (file names)"));
  // How a file was hashed says nothing of the package.
  const Answer same = against([](RunFacts& f) { f.package.files[1].how = "stream"; });
  CHECK(has(same, "package same\n"));
  CHECK_FALSE(has(same, "not promised"));
  CHECK(same.json.bool_at("promised"));
}

TEST_CASE("compare: case 22, injected code drops the promise, other CUDA variables keep it") {
  RunFacts other = sample_run();
  other.common.env.push_back({"CUDA_LAUNCH_BLOCKING", "", sha256_hex("1")});
  CHECK(compare_runs(sealed(sample_run()), sealed(other)).promised);
  other.common.env.push_back({"LD_PRELOAD", "", sha256_hex("x.so")});
  CHECK_FALSE(compare_runs(sealed(sample_run()), sealed(other)).promised);
}

TEST_CASE("compare: case 25, broken-off and non-finite replies never equal anything") {
  RunFacts stopped = sample_run();
  stopped.task.max_new = 50;
  stopped.stop.kind = "interrupted";
  CHECK(compare_runs(sealed(stopped), sealed(stopped)).status == Status::unmet);
  stopped.stop.kind = "error";
  CHECK(compare_runs(sealed(stopped), sealed(stopped)).status == Status::unmet);
  RunFacts nan = sample_run();
  nan.out.nonfinite = 1;
  CHECK(compare_runs(sealed(nan), sealed(nan)).status == Status::unmet);
}

TEST_CASE("compare: stop, text, logits, state and counters count too") {
  const auto against = [](const std::function<void(RunFacts&)>& change) {
    RunFacts a = sample_run(), b = sample_run();
    for (RunFacts* f : {&a, &b}) {
      f->out.logits.assign(40, sha256_hex("l"));
      f->out.state = {sha256_hex("s")};
      f->out.state_boundary = "end";
      f->attach.logits = true;
    }
    change(b);
    return compare_runs(sealed(a), sealed(b));
  };
  CHECK(against([](RunFacts&) {}).status == Status::holds);
  CHECK(against([](RunFacts& f) { f.out.text += "!"; }).status == Status::false_claim);
  CHECK(against([](RunFacts& f) { f.out.state[0] = sha256_hex("t"); }).status ==
        Status::false_claim);
  const Comparison logits = against([](RunFacts& f) { f.out.logits[6] = sha256_hex("m"); });
  CHECK(logits.status == Status::false_claim);
  CHECK(logits.logits_first == 7);
  CHECK(against([](RunFacts& f) { f.count.prompt_passes = 9; }).status == Status::holds);
  RunFacts a = sample_speculative(), b = sample_speculative();
  b.count.drafted += 1;
  CHECK(compare_runs(sealed(a), sealed(b)).status == Status::false_claim);
}

TEST_CASE("compare: case 39, keyed within a key, salted by what is revealed") {
  RunFacts a = sample_run(), b = sample_speculative();
  a.redaction.mode = b.redaction.mode = Redaction::Mode::keyed;
  a.redaction.key.fill(1), b.redaction.key.fill(1);
  CHECK(compare_runs(bare(a), bare(b)).status == Status::holds);
  b.redaction.key.fill(2);
  CHECK(compare_runs(bare(a), bare(b)).status == Status::unmet);
  CHECK(compare_runs(sealed(a), sealed(sample_run())).status == Status::unmet);
  a.redaction.mode = b.redaction.mode = Redaction::Mode::salted;
  CHECK(compare_runs(bare(a), bare(b)).status == Status::unmet);
  CHECK(compare_runs(sealed(a), sealed(b)).status == Status::holds);
  b.out.ids[4] += 1;
  CHECK(compare_runs(sealed(a), sealed(b)).first == 5);
}

namespace {

// An engine that says what it is told to say.
struct Puppet : Replayer {
  ReplayerFacts here;
  std::vector<int> ids, chosen;
  std::string stop = "limit";
  std::int64_t nonfinite = 0;
  explicit Puppet(const RunFacts& f) : ids(f.out.ids), chosen(f.out.ids) {
    here = {
        f.common.build.exe, package_digest(f.package.files), f.package.vocab, f.arith, "avx2", 0};
  }
  ReplayerFacts facts() const override { return here; }
  Replayed run(const ReplayTask&) override { return {ids, stop, {}}; }
  Scored score(const ReplayTask&, const std::vector<int>&) override {
    return {chosen, {}, nonfinite, 1, 1000};
  }
};

template <class F>
int status_of(const F& work) {
  try {
    return static_cast<int>(work().status);
  } catch (const Failure& failure) {
    return static_cast<int>(failure.status);
  }
}

}  // namespace

TEST_CASE("replay: same holds, other tokens or stop are false, another engine is not comparable") {
  const RunFacts facts = sample_run();
  const Receipt receipt = sealed(facts);
  Puppet puppet(facts);
  const auto run = [&](const ReplayOptions& options = {}) {
    return status_of([&] { return replay(receipt, puppet, options); });
  };
  CHECK(run() == 0);
  puppet.ids[20] += 1;
  CHECK(run() == 1);
  CHECK(said(replay(receipt, puppet, {})).find("first at 21") != std::string::npos);
  puppet = Puppet(facts);
  puppet.stop = "eos";
  CHECK(run() == 1);
  puppet = Puppet(facts);
  ReplayOptions same_build;
  same_build.same_build = true;
  CHECK(run(same_build) == 0);
  puppet.here.exe = sha256_hex("other");
  CHECK(run() == 0);
  CHECK(run(same_build) == 4);
  puppet = Puppet(facts);
  puppet.here.arith.kv = "f32";
  CHECK(run() == 4);
  puppet = Puppet(facts);
  puppet.here.package_sha256 = sha256_hex("other");
  CHECK(run() == 4);
  puppet = Puppet(facts);
  CHECK(status_of([&] { return replay(bare(facts), puppet, {}); }) == 4);
}

TEST_CASE("replay, score: cases 25 and 38, a device that is lost or absent is a fault, no answer") {
  struct Lost final : Puppet {
    using Puppet::Puppet;
    Replayed run(const ReplayTask&) override { throw Failure(Status::fault, "cuda: device lost"); }
    Scored score(const ReplayTask&, const std::vector<int>&) override {
      throw Failure(Status::fault, "cuda: no device");
    }
  };
  const RunFacts facts = sample_run();
  const Receipt receipt = sealed(facts);
  Lost lost(facts);
  CHECK(status_of([&] { return replay(receipt, lost, {}); }) == 6);
  CHECK(status_of([&] { return score(receipt, lost, {}); }) == 6);
  // A replay that met logits that are not finite is none, either.
  Puppet puppet(facts);
  puppet.stop = "error";
  CHECK(status_of([&] { return replay(receipt, puppet, {}); }) == 6);
  // Runs that were broken off are never replayed to an equality.
  for (const char* kind : {"error", "interrupted", "cancelled"}) {
    RunFacts broken = sample_run();
    broken.stop.kind = kind;
    broken.task.max_new = 41;
    puppet = Puppet(broken);
    puppet.stop = kind;
    CHECK(status_of([&] { return replay(sealed(broken), puppet, {}); }) == 4);
    CHECK(status_of([&] { return score(sealed(broken), puppet, {}); }) == 4);
    CHECK(compare_runs(sealed(broken), sealed(broken)).status == Status::unmet);
  }
}

TEST_CASE("score: any miss at any position is false; NaN is a fault, not a difference (case 37)") {
  const RunFacts facts = sample_run();
  const Receipt receipt = sealed(facts);
  Puppet puppet(facts);
  CHECK(status_of([&] { return score(receipt, puppet, {}); }) == 0);
  for (std::size_t i = 0; i < facts.out.ids.size(); ++i) {
    puppet = Puppet(facts);
    puppet.chosen[i] += 1;
    CHECK(status_of([&] { return score(receipt, puppet, {}); }) == 1);
  }
  puppet = Puppet(facts);
  CHECK(said(score(receipt, puppet, {})).find("40/40 positions, 0 misses, 1 pass in") !=
        std::string::npos);
  puppet.chosen[2] += 1;
  CHECK(said(score(receipt, puppet, {})).find("40/40 positions, 1 miss at 3, 1 pass in") !=
        std::string::npos);
  puppet = Puppet(facts);
  puppet.nonfinite = 1;
  CHECK(status_of([&] { return score(receipt, puppet, {}); }) == 6);
  puppet = Puppet(facts);
  puppet.chosen.pop_back();
  CHECK(status_of([&] { return score(receipt, puppet, {}); }) == 6);
  // A stop that the ids contradict.
  RunFacts eos = sample_run();
  eos.task.stop_ids = {120};
  CHECK(status_of([&] { return score(sealed(eos), puppet = Puppet(eos), {}); }) == 1);
}
