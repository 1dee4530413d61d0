#include "receipts/canonical.h"

#include <doctest/doctest.h>

#include "receipts/status.h"

using namespace bolt::receipts;

namespace {

bool refused(std::string_view text) {
  try {
    (void)read_canonical(text, "t");
    return false;
  } catch (const Failure& failure) {
    CHECK(failure.status == Status::malformed);
    return true;
  }
}

}  // namespace

TEST_CASE("canonical: what is read is written back byte for byte") {
  for (const char* text :
       {R"({"_type":"x","a":[1,-2,[],{}],"b":true,"c_9":"\"\\\b\t\n\f\r\u0001\u001fé😀"})", "[]",
        "9007199254740991", "-9007199254740991", "0", "false", R"("")"}) {
    CHECK(canonical(read_canonical(text, "t")) == text);
  }
}

TEST_CASE("canonical: case 7, numbers that are no plain integers") {
  for (const char* text :
       {"1.0", "1e2", "1E2", "-0", "01", "-01", "9007199254740992", "-9007199254740992",
        "99999999999999999999", "+1", "null", "NaN", "-", "Infinity", "0x1", "1 ", " 1", ""}) {
    CHECK_MESSAGE(refused(text), text);
  }
}

TEST_CASE("canonical: cases 5, 6 and 8, keys duplicate, misspelt or out of order") {
  for (const char* text : {R"({"a":1,"a":1})", R"({"o":{"a":1,"a":2}})", R"({"b":1,"a":1})",
                           R"({"A":1})", R"({"a-b":1})", R"({"1a":1})", R"({"":1})", R"({"é":1})",
                           R"({"a":1,})", R"([1,])", R"([,1])", R"({"a" :1})", R"({"a":1)", "[1"}) {
    CHECK_MESSAGE(refused(text), text);
  }
}

TEST_CASE("canonical: case 9, text that is not well-formed UTF-8 or not escaped canonically") {
  for (const std::string& text :
       {std::string(R"("\ud800")"), std::string(R"("\u0041")"), std::string(R"("\u000A")"),
        std::string(R"("\u001F")"), std::string(R"("\/")"), std::string(R"("\u0009")"),
        std::string("\"\xed\xa0\x80\""), std::string("\"\xc0\xaf\""),
        std::string("\"\xe0\x80\xaf\""), std::string("\"\xf4\x90\x80\x80\""),
        std::string("\"\x80\""), std::string("\"\xf0\x9f\""), std::string("\"\n\""),
        std::string("\"a\0\"", 4), std::string(R"("\u00)"), std::string(R"("\)"),
        std::string("\"")}) {
    CHECK_MESSAGE(refused(text), text);
  }
  // Composed and decomposed stay two texts.
  CHECK_FALSE(read_canonical("\"\u00e9\"", "t") == read_canonical("\"e\u0301\"", "t"));
}

TEST_CASE("canonical: case 10, depth and size bombs") {
  CHECK_FALSE(refused(std::string(16, '[') + std::string(16, ']')));
  CHECK(refused(std::string(17, '[') + std::string(17, ']')));
  CHECK(refused(std::string(kBodyBytesMax, '[')));
  CHECK(refused("\"" + std::string(kBodyBytesMax, 'a') + "\""));
}

TEST_CASE("canonical: paths reach and make nested fields") {
  Value v;
  v.set("out.chain.stride", 16);
  CHECK(v.int_at("out.chain.stride") == 16);
  CHECK(v.find("out.chain.marks") == nullptr);
  CHECK(v.string_at("out.chain.stride").empty());
  CHECK(canonical(v) == R"({"out":{"chain":{"stride":16}}})");
}
