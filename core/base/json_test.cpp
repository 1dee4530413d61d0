#include "core/base/json.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/base/printable.h"
#include "core/base/testing/caught.h"

namespace bolt {
namespace {

using testing::error_of;

JsonDocument parse(const std::string& text, const JsonOptions& options = {}) {
  return JsonDocument::parse("f.json", text, options);
}

TEST_CASE("json: errors name file, field, what is there and what should be") {
  const JsonDocument d = parse(R"({"a": {"b": [1, "x", {"c": 70000}]}, "n": null})");
  const JsonValue b = d.root().at("a").at("b");
  CHECK(error_of([&] { b.items()[1].integer(); }) ==
        "3 f.json: field \"a.b[1]\" is \"x\", expected an integer");
  CHECK(error_of([&] { b.items()[2].at("c").integer(1, 65536); }) ==
        "3 f.json: field \"a.b[2].c\" is 70000, expected an integer in [1, 65536]");
  CHECK(error_of([&] { d.root().at("a").at("q"); }) == "3 f.json: field \"a.q\" is missing");
  CHECK(error_of([&] { d.root().at("n").string(); }) ==
        "3 f.json: field \"n\" is null, expected a string");
  CHECK(!d.root().find_set("n"));
  CHECK(d.root().find("n")->is_null());
}

TEST_CASE("json: names of strangers are escaped and shortened where errors show them") {
  CHECK(printable("a\"\n\x1b[2J\xff") == "a\\\"\\n\\u001b[2J\xef\xbf\xbd");
  CHECK(printable(std::string(100, 'x')) == std::string(100, 'x'));
  CHECK(printable(std::string(101, 'x')) == std::string(100, 'x') + "...");
  CHECK(printable(std::string(99, 'x') + "\xc3\xa9") == std::string(99, 'x') + "...");
  const std::string key(5000, 'k');
  CHECK(error_of([&] { parse("{\"" + key + "\": 1}").root().only({"a"}); }).size() < 200);
  CHECK(error_of([&] { parse("{\"" + key + "\": 1, \"" + key + "\": 1}"); }).size() < 200);
}

TEST_CASE("json: integers are exact or refused") {
  const JsonDocument d =
      parse(R"([9223372036854775807, 9223372036854775808, 1e3, 1.5, -1, 1e300])");
  const auto items = d.root().items();
  CHECK(items[0].integer() == 9223372036854775807);
  CHECK(error_of([&] { items[1].integer(); }) != "nothing");
  CHECK(items[1].unsigned_integer() == 9223372036854775808u);
  CHECK(items[2].integer() == 1000);
  CHECK(error_of([&] { items[3].integer(); }) != "nothing");
  CHECK(error_of([&] { items[4].unsigned_integer(); }) != "nothing");
  CHECK(error_of([&] { items[5].integer(); }) != "nothing");
}

TEST_CASE("json: a key given twice is refused at any depth, in small and large objects") {
  CHECK(error_of([] { parse(R"({"a": 1, "a": 1})"); }) ==
        "3 f.json: field \"a\" is given twice, expected once");
  CHECK(error_of([] { parse(R"({"x": [{"y": {"a": 1, "a": 2}}]})"); }) ==
        "3 f.json: field \"x[].y.a\" is given twice, expected once");
  std::string many = "{";
  for (int i = 0; i < 40; ++i) many += "\"k" + std::to_string(i) + "\": 0, ";
  CHECK(error_of([&] { parse(many + "\"k40\": 1}"); }) == "nothing");
  CHECK(error_of([&] { parse(many + "\"k3\": 1}"); }) ==
        "3 f.json: field \"k3\" is given twice, expected once");
  CHECK(error_of([&] { parse(R"({"a": 1, "a": 1})", {.unique_keys = false}); }) == "nothing");
}

TEST_CASE("json: Python's Infinity and NaN are read outside strings only, where asked for") {
  const std::string text = R"({"a": [0.0, Infinity, -Infinity, NaN], "s": "x \" Infinity NaN"})";
  CHECK(error_of([&] { parse(text); }) != "nothing");
  const JsonDocument d = parse(text, {.python_numbers = true});
  const auto items = d.root().at("a").items();
  CHECK(items[1].number() == HUGE_VAL);
  CHECK(items[2].number() == -HUGE_VAL);
  CHECK(std::isnan(items[3].number()));
  CHECK(d.root().at("s").string() == "x \" Infinity NaN");
}

TEST_CASE("json: what is no JSON is refused") {
  for (const char* text : {"", "{", "{\"a\": }", "[1,]", "\"\xff\"", "nul", "{} {}", "01"}) {
    CAPTURE(text);
    CHECK(error_of([&] { parse(text); }).starts_with("3 f.json: not valid JSON"));
  }
  CHECK(error_of([&] { parse(std::string(5000, '[')); }).starts_with("3 f.json: not valid JSON"));
}

TEST_CASE("json: the writer escapes strings and replaces bytes that are not UTF-8") {
  CHECK(json_quote("a\"b\\c\n\t\r\x01\x7f") == R"("a\"b\\c\n\t\r\u0001\u007f")");
  CHECK(json_quote("h\xc3\xa9") == "\"h\xc3\xa9\"");
  // Unicode 3.9: one U+FFFD for each maximal ill-formed part.
  CHECK(json_quote("\xe2\x82") == "\"\xef\xbf\xbd\"");
  CHECK(json_quote("\xc0\xaf") == "\"\xef\xbf\xbd\xef\xbf\xbd\"");
  CHECK(json_quote("\xed\xa0\x80") == "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
  CHECK(json_quote("\xf0\x9f\x98z") == "\"\xef\xbf\xbdz\"");
  CHECK(json_quote("\xf4\x90\x80\x80") == "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

TEST_CASE("json: numbers are the shortest that read back equal") {
  JsonWriter json;
  json.begin_array().value(0.1).value(0.1f).value(1e-5f).value(1e300).value(-0.0).value(3.0);
  json.value(std::int64_t{-9223372036854775807 - 1}).value(~std::uint64_t{0}).value(true);
  json.value(HUGE_VAL).value(std::nan("")).end_array();
  CHECK(json.take() ==
        "[0.1,0.1,1e-05,1e+300,-0,3,-9223372036854775808,18446744073709551615,true,null,null]");
  for (const float x : {1.0f / 3.0f, 3.4028235e38f, 1.1754944e-38f, 1e-45f, 16777217.0f}) {
    JsonWriter one;
    one.begin_array().value(x).end_array();
    const JsonDocument d = parse(one.take());
    CHECK(static_cast<float>(d.root().items()[0].number()) == x);
  }
}

TEST_CASE("json: indented text keeps innermost arrays on a line and reads back") {
  JsonWriter json(1);
  json.begin_object().member("a", std::vector<int>{1, 2}).key("b").begin_array();
  json.begin_object().member("c", "d").end_object().end_array();
  json.key("e").begin_object().end_object();
  const std::string text = json.end_object().take();
  CHECK(text == "{\n \"a\": [1, 2],\n \"b\": [\n  {\n   \"c\": \"d\"\n  }\n ],\n \"e\": {}\n}");
  CHECK(error_of([&] { parse(text); }) == "nothing");
}

TEST_CASE("json: the writer refuses nesting that does not close") {
  CHECK(error_of([] { JsonWriter().begin_object().end_array(); }).starts_with("6 internal"));
  CHECK(error_of([] { JsonWriter().begin_object().take(); }).starts_with("6 internal"));
  CHECK(error_of([] { JsonWriter().begin_array().key("a"); }).starts_with("6 internal"));
}

}  // namespace
}  // namespace bolt
