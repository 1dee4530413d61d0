// The chat on a pseudo-terminal: lines, commands, Ctrl-C, resumed turns, history.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "cmd/testing/child.h"

namespace bolt::testing {

TEST_SUITE_BEGIN("binary");

TEST_CASE("chat: turns, commands, a resumed state, a receipt a turn (case 41)") {
  const ScratchFolder home;
  Terminal chat(home, {"run", "--no-think"});
  REQUIRE_FALSE(chat.wait_for("> ").empty());
  chat.type("Count from 1 to 10.\r");
  chat.wait_for("\n");
  CHECK(chat.wait_for("tokens/pass, eos, receipt").find("9") != std::string::npos);
  chat.wait_for("> ");
  chat.type("Count from 3 to 9.\r");
  CHECK_FALSE(chat.wait_for("eos, receipt").empty());
  chat.wait_for("> ");
  chat.type("/stats\r");
  const std::string stats = chat.wait_for(" reused");
  CHECK(stats.find(" 0 reused") == std::string::npos);  // the second turn went on from the first
  chat.wait_for("> ");
  chat.type("/receipt\r");
  CHECK_FALSE(chat.wait_for(".bolt.jsonl").empty());
  chat.wait_for("> ");
  chat.type("/reset\r");
  chat.wait_for("afresh");
  chat.wait_for("> ");
  chat.type("Count from 3 to 9.\r");
  chat.wait_for("eos, receipt");
  chat.wait_for("> ");
  chat.type("/stats\r");
  CHECK(chat.wait_for(" reused").find(" 0 reused") != std::string::npos);
  chat.wait_for("> ");
  chat.type("/nonsense\r");
  CHECK_FALSE(chat.wait_for("unknown command /nonsense").empty());
  chat.wait_for("> ");
  chat.type("/help\r");
  CHECK_FALSE(chat.wait_for("/system TEXT").empty());
  chat.wait_for("> ");
  chat.type("/quit\r");
  CHECK(chat.wait_for_end() == 0);
  CHECK(receipts_in(home).size() == 3);
}

TEST_CASE("chat: Ctrl-C stops the reply, clears the line, and never leaves; Ctrl-D does") {
  const ScratchFolder home;
  Terminal chat(home, {"run", "-q", "--no-think", "--ignore-eos"});
  chat.wait_for("> ");
  chat.type("half a thou\003");
  chat.wait_for("> ");
  chat.type("\003");
  CHECK_FALSE(chat.wait_for("/quit or Ctrl-D leaves").empty());
  chat.wait_for("> ");
  chat.type("Count from 1 to 20.\r");
  CHECK_FALSE(chat.wait_for("5, 6").empty());
  chat.type("\003");
  chat.wait_for("> ");
  chat.type("/stats\r");
  CHECK_FALSE(chat.wait_for("interrupted, receipt").empty());
  chat.wait_for("> ");
  // A Ctrl-D that the terminal takes before the line editor listens is lost, as at any prompt, and
  // leaves nothing where the line holds text: clear it and press again.
  int ended = -1;
  for (int press = 0; press < 4 && ended == -1; ++press) {
    if (press > 0) chat.type("\003");
    (void)chat.wait_for_end(press > 0 ? 1 : 0);
    chat.type("\004");
    ended = chat.wait_for_end(5);
  }
  CHECK(ended == 0);
  const std::vector<std::string> receipts = receipts_in(home);
  REQUIRE(receipts.size() == 1);
  CHECK(receipts[0].find("interrupted") != std::string::npos);
}

TEST_CASE("chat: editing, pasted and continued lines, wide characters, history") {
  const ScratchFolder home;
  {
    Terminal chat(home, {"run", "--no-think", "-n", "4"});
    chat.wait_for("> ");
    chat.type("/xhelp\033[D\033[D\033[D\033[D\177\r");  // back over "help", delete the x
    CHECK_FALSE(chat.wait_for("/system TEXT").empty());
    chat.wait_for("> ");
    chat.type("/system \u4f60\u597d\u00fc\r");
    CHECK_FALSE(chat.wait_for("system turn set").empty());
    chat.wait_for("> ");
    chat.type("/system\r");
    CHECK_FALSE(chat.wait_for("\u4f60\u597d\u00fc\r\n").empty());
    chat.wait_for("> ");
    chat.type("/system one\\\r");
    chat.wait_for(". ");
    chat.type("two\r");
    chat.wait_for("system turn set");
    chat.wait_for("> ");
    chat.type("/system\r");
    CHECK_FALSE(chat.wait_for("one\r\ntwo\r\n").empty());
    chat.wait_for("> ");
    chat.type("\033[200~/system three\nfour\033[201~\r");
    chat.wait_for("system turn set");
    chat.wait_for("> ");
    chat.type("/system\r");
    CHECK_FALSE(chat.wait_for("three\r\nfour\r\n").empty());
    chat.wait_for("> ");
    chat.type("/quit\r");
    CHECK(chat.wait_for_end() == 0);
  }
  struct stat st = {};
  REQUIRE(::stat(home.file("state/bolt/history").c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0600);
  Terminal chat(home, {"run"});
  chat.wait_for("> ");
  chat.type("\033[A\r");  // the last line of the last chat
  CHECK(chat.wait_for_end() == 0);
}

TEST_CASE("chat: a terminal that can do nothing still works, and SIGTERM ends it") {
  const ScratchFolder home;
  Terminal chat(home, {"run", "--no-think"}, "dumb");
  CHECK_FALSE(chat.wait_for("no line editing").empty());
  chat.wait_for("> ");
  chat.type("Count from 1 to 5.\n");
  CHECK_FALSE(chat.wait_for("eos, receipt").empty());
  CHECK(chat.all().find("\033[2m") == std::string::npos);
  chat.wait_for("> ");
  ::kill(chat.pid(), SIGTERM);
  CHECK(chat.wait_for_end() == 130);
}

TEST_CASE("chat: keys typed during a reply stay out of its text and become the next line") {
  for (const std::string term : {"xterm", "dumb"}) {
    const ScratchFolder home;
    Terminal chat(home, {"run", "-q", "--no-think", "--ignore-eos", "-n", "600"}, term);
    chat.wait_for("> ");
    // libedit shows keys itself, from a moment after its prompt on.
    for (int i = 0; i < 50 && chat.echoes() != (term == "dumb"); ++i) (void)chat.wait_for_end(0);
    CHECK(chat.echoes() == (term == "dumb"));
    chat.type("Count from 1 to 20.\n");
    CHECK_FALSE(chat.wait_for("5, 6").empty());
    CHECK_FALSE(chat.echoes());
    chat.type("/receipt\n");
    CHECK(chat.wait_for("> ").find("/receipt") == std::string::npos);
    CHECK_FALSE(chat.wait_for(".bolt.jsonl").empty());
    chat.wait_for("> ");
    // The control: on a plain terminal the very same keys show when no reply runs.
    chat.type("/receipt\n");
    CHECK_FALSE(chat.wait_for("/receipt").empty());
  }
}

TEST_CASE("chat: signals that end a reply leave the terminal's echo on") {
  for (const int signal : {SIGTERM, SIGQUIT}) {
    const ScratchFolder home;
    Terminal chat(home, {"run", "-q", "--no-think", "--ignore-eos"});
    chat.wait_for("> ");
    chat.type("Count from 1 to 20.\r");
    CHECK_FALSE(chat.wait_for("5, 6").empty());
    CHECK_FALSE(chat.echoes());
    ::kill(chat.pid(), signal);
    CHECK(chat.wait_for_end() == (signal == SIGTERM ? 130 : -1));
    CHECK(chat.echoes());
  }
}

TEST_CASE("chat: blank messages are not sent, blanks clear the system turn, extra words refused") {
  const ScratchFolder home;
  Terminal chat(home, {"run", "-q", "--no-think", "-n", "2"}, "dumb");
  chat.wait_for("> ");
  chat.type(" \t \n");
  chat.wait_for("> ");
  for (const std::string name : {"/reset", "/stats", "/quit"}) {
    chat.type(name + " now\n");
    CHECK_FALSE(chat.wait_for(name + " takes no words after it").empty());
    chat.wait_for("> ");
  }
  chat.type("/system Be brief.\n");
  CHECK_FALSE(chat.wait_for("system turn set").empty());
  chat.wait_for("> ");
  chat.type("/system  \n");
  CHECK_FALSE(chat.wait_for("no system turn now").empty());
  chat.wait_for("> ");
  chat.type("/system\n");
  CHECK_FALSE(chat.wait_for("no system turn\r").empty());
  chat.wait_for("> ");
  chat.type("/quit\n");
  CHECK(chat.wait_for_end() == 0);
  CHECK(receipts_in(home).empty());  // nothing was sent
}

TEST_CASE("one-shot, stdout a pipe: the last line begins on a line of its own") {
  const ScratchFolder home;
  REQUIRE(::mkfifo(home.file("pipe").c_str(), 0600) == 0);
  Terminal piped(home, {"run", "--no-think", "-n", "12", kCount}, "xterm", home.file("pipe"));
  CHECK(piped.wait_for_end() == 0);
  CHECK(piped.all().find("\n12 tokens, first after") != std::string::npos);
  // A file's text is never on the terminal, and needs no line to keep apart from.
  write_bytes(home.file("file"), "");
  Terminal filed(home, {"run", "--no-think", "-n", "12", kCount}, "xterm", home.file("file"));
  CHECK(filed.wait_for_end() == 0);
  CHECK(filed.all().find("12 tokens, first after") != std::string::npos);
  CHECK(filed.all().find("\n12 tokens") == std::string::npos);
}

TEST_CASE("one-shot on a terminal: dimmed thinking, a last newline, a status line that goes away") {
  const ScratchFolder home;
  Terminal run(home, {"run", "-n", "12", "Count from 1 to 20."});
  CHECK(run.wait_for_end() == 0);
  CHECK(run.all().find("\033[2m") != std::string::npos);
  CHECK(run.all().find("12 tokens, first after") != std::string::npos);
  Terminal plain(home, {"run", "--color", "never", "-q", "-n", "12", "Count from 1 to 20."});
  CHECK(plain.wait_for_end() == 0);
  CHECK(plain.all().find('\033') == std::string::npos);
}

TEST_SUITE_END();

}  // namespace bolt::testing
