// How a run ends when it is not let finish: full disks, closed streams, readers that go, signals.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "cmd/testing/child.h"

namespace bolt::testing {

TEST_SUITE_BEGIN("binary");

TEST_CASE("a full disk and a closed stdout are faults that name the cause (case 77)") {
  const ScratchFolder home;
  const Ended full = run_bolt(home, Start{.args = {"run", kCount}, .stdout_file = "/dev/full"});
  CHECK(full.status == 6);
  CHECK(full.err.find("stdout: cannot write: No space left on device") != std::string::npos);
  CHECK(says_stop(only_receipt(home), "cancelled"));
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"run", "--json", "-n", "2", kCount},
                                             {"--version"},
                                             {"--version", "--json"},
                                             {"--help"}}) {
    const Ended ended = run_bolt(home, Start{.args = args, .stdout_file = "/dev/full"});
    INFO(ended.err);
    CHECK(ended.status == 6);
    CHECK(ended.err.find("No space left on device") != std::string::npos);
  }
  const Ended logits = run_bolt(home, {"run", "-n", "2", "--logits", "/dev/full", kCount});
  CHECK(logits.status == 6);
  CHECK(logits.err.find("/dev/full") != std::string::npos);
  const Ended receipt = run_bolt(home, {"run", "-n", "2", "--receipt", "/dev/full", kCount});
  CHECK(receipt.status == 6);
  CHECK(receipt.err.find("No space left on device") != std::string::npos);

  const ScratchFolder fresh;
  const Ended closed = run_bolt(fresh, Start{.args = {"run", kCount}, .close_stdout = true});
  CHECK(closed.status == 6);
  CHECK(closed.err.find("stdout") != std::string::npos);
  CHECK(receipts_in(fresh).empty());
  CHECK(run_bolt(fresh, Start{.args = {"run", "-n", "2", kCount}, .close_stdin = true}).status ==
        0);
}

TEST_CASE("a reader that goes away ends the run quietly, with its receipt") {
  const ScratchFolder home;
  const Ended ended = run_bolt(
      home, Start{.args = {"run", "--ignore-eos", "-n", "100000", kCount}, .read_at_most = 1});
  CHECK(ended.signal == SIGPIPE);
  CHECK(ended.err.find("bolt:") == std::string::npos);
  CHECK(says_stop(only_receipt(home), "cancelled"));
}

TEST_CASE("an interrupt in decoding flushes the reply, seals the receipt, exits 130 (case 83)") {
  const ScratchFolder home;
  Start start{.args = {"run", "--ignore-eos", "-n", "1000000", kCount}};
  bool sent = false;
  start.watch = [&sent](pid_t pid, const std::string& out, const std::string&) {
    if (!sent && out.size() > 8) sent = ::kill(pid, SIGINT) == 0;
  };
  const Ended ended = run_bolt(home, start);
  CHECK(ended.status == 130);
  CHECK(ended.out.size() > 8);
  const std::string receipt = only_receipt(home);
  CHECK(says_stop(receipt, "interrupted"));
}

TEST_CASE("an interrupt in prefill seals a receipt without tokens; a second one ends at once") {
  const ScratchFolder home;
  std::string long_prompt;
  for (int i = 0; i < 1500; ++i) long_prompt += std::to_string(i) + " ";
  Start start{.args = {"run", "-v", "--chunk", "64", "-n", "4", "--raw"}, .input = long_prompt};
  bool sent = false;
  start.watch = [&sent](pid_t pid, const std::string&, const std::string& err) {
    if (!sent && err.find("sampler") != std::string::npos) sent = ::kill(pid, SIGINT) == 0;
  };
  const Ended once = run_bolt(home, start);
  CHECK(once.status == 130);
  CHECK(once.out.empty());
  CHECK(says_stop(only_receipt(home), "interrupted"));

  const ScratchFolder fresh;
  start.args = {"run",   "-v",       "--chunk",           "65536", "-n", "4",
                "--raw", "--logits", fresh.file("logits")};
  int n_sent = 0;
  start.watch = [&n_sent](pid_t pid, const std::string&, const std::string& err) {
    if (err.find("sampler") == std::string::npos || n_sent >= 2) return;
    ::usleep(30000);
    if (::kill(pid, SIGINT) == 0) ++n_sent;
  };
  const Ended twice = run_bolt(fresh, start);
  CHECK((twice.signal == SIGINT || twice.status == 130));
  CHECK(::access(fresh.file("logits").c_str(), F_OK) != 0);
  for (const std::string& text : receipts_in(fresh)) CHECK(says_stop(text, "interrupted"));
}

TEST_CASE("SIGKILL leaves no receipt, a payload rewritten in use a fault and none (21, 25)") {
  const ScratchFolder home;
  const std::vector<std::string> endless = {"run", "--ignore-eos", "-n", "1000000", kCount};
  Start start{.args = endless};
  bool done = false;
  start.watch = [&done](pid_t pid, const std::string& out, const std::string&) {
    if (!done && out.size() > 8) done = ::kill(pid, SIGKILL) == 0;
  };
  CHECK(run_bolt(home, start).signal == SIGKILL);
  CHECK(receipts_in(home).empty());

  // The weights by another name, as a second package that shares them has it.
  namespace fs = std::filesystem;
  const std::string package = home.file("copy.bolt"), link = home.file("link");
  fs::copy(BOLT_BINARY_DIR "/sample.bolt", package);
  fs::create_hard_link(package + "/weights-00001.bin", link);
  start.args.insert(start.args.end(), {"-m", package});
  done = false;
  start.watch = [&](pid_t pid, const std::string& out, const std::string&) {
    if (done || out.size() <= 8) return;
    std::fstream file(link, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
    file.close();
    done = ::kill(pid, SIGINT) == 0;  // the reply ends, and is not sealed
  };
  const Ended written = run_bolt(home, start);
  CHECK(written.status == 6);
  CHECK(written.err.find("was written to while it was in use") != std::string::npos);
  CHECK(receipts_in(home).empty());
}

TEST_CASE("an interrupt at any moment of the start ends with 130, never with a half-written file") {
  int n_sealed = 0;
  for (int delay_ms = 0; delay_ms <= 60; delay_ms += 4) {
    const ScratchFolder home;
    Start start{.args = {"run", "-q", "--ignore-eos", "-n", "1000000", kCount}};
    start.watch = [delay_ms](pid_t pid, const std::string&, const std::string&) {
      static pid_t last = 0;
      if (last == pid) return;
      last = pid;
      ::usleep(static_cast<useconds_t>(delay_ms) * 1000);
      ::kill(pid, SIGINT);
    };
    const Ended ended = run_bolt(home, start);
    INFO(delay_ms, " ms: ", ended.err);
    CHECK((ended.status == 130 || ended.signal == SIGINT));
    for (const std::string& text : receipts_in(home)) {
      CHECK(says_stop(text, "interrupted"));
      ++n_sealed;
    }
  }
  CHECK(n_sealed > 0);
}

TEST_SUITE_END();

}  // namespace bolt::testing
