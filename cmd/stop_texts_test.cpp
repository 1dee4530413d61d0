// Stop texts over every way of cutting a reply, against a search in the whole text.
#include "cmd/stop_texts.h"

#include <doctest/doctest.h>

#include <random>

namespace bolt {
namespace {

struct Answer {
  std::string text;
  bool matched = false;
  bool operator==(const Answer&) const = default;
};

// The definition, on whole prefixes: the first byte at which some stop text is complete ends it.
Answer search_whole(const std::string& reply, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= reply.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(reply).substr(0, end).ends_with(stop)) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return {reply.substr(0, end - longest), true};
  }
  return {reply, false};
}

// As a careless reader would: each piece is searched alone, nothing is held back.
Answer search_pieces_alone(const std::vector<std::string>& pieces,
                           const std::vector<std::string>& stops) {
  Answer answer;
  for (const std::string& piece : pieces) {
    const Answer one = search_whole(piece, stops);
    answer.text += one.text;
    if (one.matched) return {answer.text, true};
  }
  return answer;
}

Answer stream(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  StopTexts search(stops);
  Answer answer;
  for (const std::string& piece : pieces) {
    answer.text += search.push(piece);
    if (search.matched()) return {answer.text, true};
  }
  answer.text += search.finish();
  return answer;
}

}  // namespace

TEST_CASE("stop texts: every cut of a reply gives what the whole reply gives") {
  std::mt19937 random(1);
  int n_matched = 0, n_careless_wrong = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const auto text = [&random](int longest) {
      std::string s;
      for (int n = 1 + static_cast<int>(random() % static_cast<unsigned>(longest)); n > 0; --n) {
        s += static_cast<char>('a' + random() % 2);
      }
      return s;
    };
    std::vector<std::string> stops, pieces;
    for (unsigned n = 1 + random() % 3; n > 0; --n) stops.push_back(text(5));
    std::string reply;
    for (unsigned n = random() % 8; n > 0; --n) {
      pieces.push_back(text(3));
      reply += pieces.back();
    }
    const Answer whole = search_whole(reply, stops);
    REQUIRE(stream(pieces, stops) == whole);
    n_matched += whole.matched;
    n_careless_wrong += search_pieces_alone(pieces, stops) != whole;
  }
  CHECK(n_matched > 5000);
  CHECK(n_careless_wrong > 1000);  // the control: stop texts that span pieces are really there
}

TEST_CASE("stop texts: what cannot become one is shown at once") {
  StopTexts search({"END"});
  CHECK(search.push("a E") == "a ");
  CHECK(search.push("N") == "");
  CHECK(search.push("d") == "ENd");
  CHECK(search.push("xEND tail") == "x");
  CHECK(search.matched());
  CHECK(search.push("more") == "");
}

}  // namespace bolt
