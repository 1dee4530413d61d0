// A batch's packs against its input: whole, sharded, killed and resumed, and every way of cheating.
#include "receipts/lines_audit.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "receipts/session.h"
#include "receipts/test_facts.h"

namespace bolt::receipts {
namespace {

namespace fs = std::filesystem;

struct Place {
  Place() {
    std::string name = (fs::temp_directory_path() / "bolt-lines-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Place() { fs::remove_all(path); }
  std::string path;
};

std::string line_text(int line) { return "{\"prompt\": \"" + std::to_string(line) + "\"}"; }

// A session that answers `lines`, fails `failed`, and is closed unless it was killed. stop: of
// every run; n: of tokens, so that replies can differ.
std::string session(const Place& place, const std::vector<int>& lines,
                    const std::vector<int>& failed = {}, bool closed = true,
                    const std::string& stop = "", int n = 20) {
  SessionFacts facts;
  const RunFacts model = sample_run();
  facts.common = model.common;
  facts.common.run_id.clear();
  facts.package = model.package;
  facts.arith = model.arith;
  PackWriter writer(facts, {place.path, ""});
  for (const int line : lines) {
    RunFacts run = sample_run(n);
    run.common.run_id.clear();
    if (!stop.empty()) {
      run.stop = Stop{};
      run.stop.kind = stop;
    }
    run.request = RequestFacts{line_text(line), line, ""};
    (void)writer.add(run);
  }
  for (const int line : failed) writer.add_failed(line);
  if (closed) (void)writer.close();
  return writer.pack_path();
}

Answer audited(const Place& place, int n_lines, const std::string& more = "") {
  const std::string input = place.path + "/batch";
  std::ofstream out(input, std::ios::binary);
  out << "\xEF\xBB\xBF";
  for (int line = 1; line <= n_lines; ++line) out << line_text(line) << "\r\n";
  out << more;
  out.close();
  LinesAuditOptions options;
  options.is_word = [](std::string_view text) { return text == "word"; };
  return audit_lines({place.path}, input, options);
}

int exit_of(const Answer& answer) { return static_cast<int>(answer.status); }

}  // namespace

TEST_CASE("lines audit: shards, failed lines, blank ones and words") {
  const Place place;
  session(place, {1, 3, 5});
  session(place, {4, 2}, {6});
  const Answer answer = audited(place, 6, "\n \nword");
  INFO(answer.lines[0].text);
  CHECK(exit_of(answer) == 0);
  CHECK(answer.json.int_at("lines") == 6);
  CHECK(answer.json.int_at("answered") == 5);
  CHECK(answer.json.int_at("failed") == 1);
}

TEST_CASE("lines audit: a killed session and its resumption, and replies that were cut short") {
  const Place place;
  session(place, {1, 2, 3}, {}, /*closed=*/false);
  session(place, {4}, {}, true, "interrupted");
  session(place, {3, 4, 5});
  CHECK(exit_of(audited(place, 5)) == 0);
  // The reply that was given again differs: the killed session's pack has another for it.
  const Place other;
  session(other, {1, 2}, {}, /*closed=*/false, "", 20);
  session(other, {2, 3}, {}, true, "", 24);
  CHECK(exit_of(audited(other, 3)) == 1);
}

TEST_CASE("lines audit: a line missing, twice, of another line, past the end, a pack broken") {
  {
    const Place place;
    session(place, {1, 3});
    CHECK(exit_of(audited(place, 3)) == 1);
    CHECK(exit_of(audited(place, 2)) == 1);  // and line 3 is not in the input
  }
  {
    const Place place;
    session(place, {1, 2});
    session(place, {2});
    CHECK(exit_of(audited(place, 2)) == 1);
  }
  {
    const Place place;
    session(place, {1}, {}, true, "interrupted");
    CHECK(exit_of(audited(place, 1)) == 1);
  }
  {
    const Place place;
    const std::string pack = session(place, {1, 2, 3});
    std::ifstream in(pack, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    CHECK(exit_of(audited(place, 3)) == 0);
    // One run left out: the root tells.
    const std::size_t second = text.find("{\"_type\":\"bolt.receipt/1\"", 10);
    std::ofstream(pack, std::ios::binary) << text.substr(second);
    CHECK(exit_of(audited(place, 3)) == 1);
  }
  {
    // The run of line 1 under the number of line 2.
    const Place place;
    SessionFacts facts;
    const RunFacts model = sample_run();
    facts.common = model.common;
    facts.package = model.package;
    facts.arith = model.arith;
    PackWriter writer(facts, {place.path, ""});
    for (const int line : {1, 2}) {
      RunFacts run = sample_run();
      run.common.run_id.clear();
      run.request = RequestFacts{line_text(1), line, ""};
      (void)writer.add(run);
    }
    (void)writer.close();
    CHECK(exit_of(audited(place, 2)) == 1);
  }
  const Place empty;
  CHECK_THROWS_AS((void)audited(empty, 2), Failure);  // nothing was checked
}

}  // namespace bolt::receipts
