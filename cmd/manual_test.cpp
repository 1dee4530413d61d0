// The man pages and --help name the same options.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "cmd/testing/child.h"

namespace bolt::testing {
namespace {

using Names = std::set<std::string>;

Names options_of_help(const ScratchFolder& home, const std::vector<std::string>& args) {
  const Ended ended = run_bolt(home, args);
  REQUIRE(ended.status == 0);
  Names names;
  // Options stand at the beginning of a line, before their help; examples begin with a word.
  const std::regex line("(^|\n)  (-[^\n]*?)(?=  |\n)"), name("--[a-z][a-z-]*");
  for (std::sregex_iterator it(ended.out.begin(), ended.out.end(), line), end; it != end; ++it) {
    const std::string spec = (*it)[2];
    for (std::sregex_iterator at(spec.begin(), spec.end(), name); at != end; ++at) {
      names.insert(at->str());
    }
  }
  return names;
}

Names options_of_page(const std::string& page) {
  std::ifstream file(BOLT_SOURCE_DIR "/man/" + page);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  REQUIRE_FALSE(text.empty());
  Names names;
  const std::regex flag("Fl Fl ([a-z-]+)");
  for (std::sregex_iterator it(text.begin(), text.end(), flag), end; it != end; ++it) {
    names.insert("--" + (*it)[1].str());
  }
  return names;
}

}  // namespace

TEST_SUITE_BEGIN("binary");

TEST_CASE("the page of a subcommand names the options that its --help names, and no other") {
  const ScratchFolder home;
  for (const std::string command : {"run", "serve-stdin", "convert", "bench"}) {
    Names help = options_of_help(home, {command, "--help"});
    CHECK(help.size() > 5);
    if (command != "convert")
      help.insert("--no-graphs");  // in builds with CUDA alone; the page says so
    const Names page = options_of_page("bolt-" + command + ".1");
    for (const std::string& name : help) {
      CHECK_MESSAGE((page.contains(name) || name == "--help"), command, " ", name);
    }
    for (const std::string& name : page) {
      CHECK_MESSAGE((help.contains(name) || name == "--help"), command, " ", name);
    }
  }
}

TEST_CASE("bolt-receipt(1) names the options of all verbs, and no other") {
  const ScratchFolder home;
  Names help;
  for (const std::string verb :
       {"show", "verify", "compare", "plan", "audit", "sign", "export", "prune"}) {
    help.merge(options_of_help(home, {"receipt", verb, "--help"}));
  }
  CHECK(help.size() > 20);
  const Names page = options_of_page("bolt-receipt.1");
  for (const std::string& name : help)
    CHECK_MESSAGE((page.contains(name) || name == "--help"), name);
  for (const std::string& name : page) {
    // --cell is run's.
    CHECK_MESSAGE((help.contains(name) || name == "--cell"), name);
  }
}

TEST_CASE("bolt(1) names the common options and bolt's own") {
  const ScratchFolder home;
  const Names page = options_of_page("bolt.1");
  for (const std::string& name : options_of_help(home, {"--help"})) {
    CHECK_MESSAGE(page.contains(name), name);
  }
  Names known = options_of_help(home, {"run", "--help"});
  known.merge(options_of_help(home, {"--help"}));
  known.insert("--no-graphs");
  for (const std::string& name : page) CHECK_MESSAGE(known.contains(name), name);
}

TEST_SUITE_END();

}  // namespace bolt::testing
