#include "core/text/chat.h"

#include <doctest/doctest.h>

#include <functional>
#include <map>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/json.h"
#include "core/text/jinja.h"
#include "core/text/template_facts.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

const std::string kTestdata = BOLT_SOURCE_DIR "/testdata/";

std::string source_of(const std::string& name) {
  return read_file(name == "sample" ? kTestdata + "sample-model/chat_template.jinja"
                                    : kTestdata + "text/templates/" + name + ".jinja");
}

ChatTemplate load(const std::string& name) {
  const TemplateFacts facts = recognise_template(source_of(name));
  CHECK_MESSAGE(facts.problem.empty(), name, ": ", facts.problem);
  return ChatTemplate(facts.kind, facts.facts);
}

std::vector<Message> messages_of(const JsonValue& list) {
  std::vector<Message> out;
  for (const JsonValue& item : list.items()) {
    Message message{
        std::string(item.at("role").string()), std::string(item.at("content").string()), {}, {}};
    if (const auto reasoning = item.find("reasoning_content")) {
      message.reasoning = reasoning->string();
    }
    if (const auto calls = item.find("tool_calls")) {
      for (const JsonValue& call : calls->items()) {
        message.tool_calls.push_back(
            {std::string(call.at("name").string()), std::string(call.at("arguments").string())});
      }
    }
    out.push_back(std::move(message));
  }
  return out;
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

TEST_CASE("chat: texts are those of transformers' apply_chat_template (cases 40, 41)") {
  const JsonDocument goldens = JsonDocument::load(kTestdata + "text/chat.json");
  std::map<std::string, ChatTemplate> templates;
  for (const char* name : {"sample", "nano", "ultra", "v2"}) templates.emplace(name, load(name));
  int n_cases = 0;
  for (const JsonValue& golden : goldens.root().at("renderings").items()) {
    const std::string name(golden.at("template").string());
    ChatOptions options;
    options.thinking = golden.at("thinking").boolean();
    options.generation_prompt = golden.at("generation_prompt").boolean();
    if (const auto tools = golden.find_set("tools")) options.tools = tools->string();
    const std::string text = templates.at(name).render(messages_of(golden.at("messages")), options);
    CHECK_MESSAGE(text == golden.at("text").string(), name, ": ", golden.at("case").string());
    ++n_cases;
  }
  CHECK(n_cases > 150);
}

TEST_CASE("chat: the language's corners are as in jinja2") {
  const JsonDocument goldens = JsonDocument::load(kTestdata + "text/chat.json");
  const JsonValue probe = goldens.root().at("probe");
  const jinja::Value variables = jinja::from_json(probe.at("variables").string(), "variables");
  const std::string text = jinja::Template(source_of("probe")).render(variables.dict());
  // Line by line, so that a failure shows where.
  std::string_view ours = text, theirs = probe.at("text").string();
  while (!ours.empty() || !theirs.empty()) {
    const std::size_t a = ours.find('\n'), b = theirs.find('\n');
    CHECK(ours.substr(0, a) == theirs.substr(0, b));
    ours = a == ours.npos ? std::string_view() : ours.substr(a + 1);
    theirs = b == theirs.npos ? std::string_view() : theirs.substr(b + 1);
  }
}

TEST_CASE("chat: control: another reasoning style, or history that is kept, is another text") {
  const std::vector<Message> messages = {
      {"user", "a", {}, {}}, {"assistant", "b", "r", {}}, {"user", "c", {}, {}}};
  CHECK(load("nano").render(messages, {}) != load("ultra").render(messages, {}));
  std::string kept = source_of("nano");
  const std::string rule = "truncate_history_thinking is defined else True";
  kept.replace(kept.find(rule), rule.size(), "truncate_history_thinking is defined else False");
  const TemplateFacts facts = recognise_template(kept);
  CHECK(ChatTemplate(facts.kind, facts.facts).render(messages, {}) !=
        load("nano").render(messages, {}));
}

TEST_CASE("chat: the reference's examples") {
  const ChatTemplate v3 = load("sample");
  CHECK(v3.render({{"system", "Be brief.", {}, {}},
                   {"user", "2+2?", {}, {}},
                   {"assistant", "4", {}, {}},
                   {"user", "+1?", {}, {}}},
                  {}) ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
        "<|im_start|>assistant\n<think></think>4<|im_end|>\n<|im_start|>user\n+1?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n");
  CHECK(load("v2").render({{"user", "Hi", {}, {}}}, {.thinking = false}) ==
        "<SPECIAL_10>System\n\n\n<SPECIAL_11>User\nHi\n<SPECIAL_11>Assistant\n<think></think>");
}

TEST_CASE("chat: templates are recognised by their markers; others are refused with a hint") {
  CHECK(recognise_template(source_of("sample")).kind == "v3");
  CHECK(recognise_template(source_of("nano")).kind == "v3");
  CHECK(recognise_template(source_of("v2")).kind == "v2");
  const TemplateFacts unknown = recognise_template("{{ '<|im_start|>' }}{{ messages[0].content }}");
  CHECK(unknown.kind.empty());
  CHECK(unknown.facts.empty());
  CHECK_FALSE(unknown.problem.empty());
  CHECK(refusal([] { ChatTemplate("", ""); }).find("--raw") != std::string::npos);
  CHECK(refusal([] { ChatTemplate("none", ""); }).find("--raw") != std::string::npos);
  // Known by its markers, but it does what bolt cannot follow, or drops the conversation.
  const std::string marks = "{# <|im_start|> enable_thinking #}";
  CHECK(recognise_template(marks + "{{ messages | shuffle }}").problem.find("filter shuffle") !=
        std::string::npos);
  CHECK(recognise_template(marks + "{% include 'x' %}").problem.find("include") !=
        std::string::npos);
  CHECK(recognise_template(marks + "<|im_start|>").problem.find("loses") != std::string::npos);
  CHECK(recognise_template(marks + "{{ strftime_now('%Y') }}").problem.find("calls an undefined") !=
        std::string::npos);
}

TEST_CASE("chat: what a template has no place for is refused by name") {
  const ChatTemplate sample = load("sample"), nano = load("nano");
  CHECK_FALSE(sample.takes_tools());
  CHECK(nano.takes_tools());
  const std::string tools = R"([{"name": "f"}])";
  CHECK(refusal([&] {
          sample.render({{"user", "a", {}, {}}}, {.tools = tools});
        }).find("tools: the package's chat template has none") != std::string::npos);
  CHECK(refusal([&] { sample.render({{"tool", "a", {}, {}}}, {}); }).starts_with("tools:"));
  CHECK(refusal([&] {
          nano.render({{"robot", "a", {}, {}}}, {});
        }).find("\"robot\"") != std::string::npos);
  CHECK(refusal([&] {
          nano.render({{"user", "a", {}, {}}}, {.tools = "{}"});
        }) == "tools: not an array");
  CHECK(refusal([&] {
          nano.render({{"user", "a", {}, {}}}, {.tools = "[1"});
        }).find("not valid JSON") != std::string::npos);
  CHECK(refusal([&] {
          nano.render({{"assistant", "a", {}, {{"f", "[]"}}}}, {});
        }).find("expected an object") != std::string::npos);
  CHECK(refusal([&] {
          nano.render({{"user", "a\xC4\xE3", {}, {}}}, {});
        }).find("byte 1") != std::string::npos);
}

TEST_CASE("chat: hostile templates end with an error") {
  const auto run = [](const std::string& source) {
    return refusal([&] { jinja::Template(source).render({}); });
  };
  const std::string outer = "{% for a in range(90000) %}", end = "{% endfor %}";
  CHECK(run(outer + outer + "x" + end + end).find("too long") != std::string::npos);
  CHECK(run("{% set x = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}"
            "{% set x.s = x.s ~ x.s %}{% endfor %}")
            .find("64 MiB") != std::string::npos);
  CHECK(run("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("too deeply") !=
        std::string::npos);
  CHECK(run(std::string(100'000, '(')).empty());  // text
  CHECK(run("{{ " + std::string(100'000, '(') + std::string(100'000, ')') + " }}")
            .find("too deeply") != std::string::npos);
  CHECK(run("{{ " + std::string(100'000, '-') + "1 }}").find("too deeply") != std::string::npos);
  std::string chain = "{{ 1";
  for (int i = 0; i < 100'000; ++i) chain += "+1";
  CHECK(run(chain + " }}").find("too long") != std::string::npos);
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "{% if 1 %}";
  CHECK(run(nested).find("too deeply") != std::string::npos);
  CHECK(run("{{ range(1000000000) }}").find("100000") != std::string::npos);
  CHECK(run("{{ x.y }}").find("undefined") != std::string::npos);
  CHECK(run("{{ raise_exception('no') }}").find("refuses the conversation: no") !=
        std::string::npos);
  CHECK(run("a\nb {{ 1 @ 2 }}").find("line 2") != std::string::npos);
  for (const char* broken :
       {"{{", "{% if 1 %}", "{{ 'a }}", "{% endif %}", "{{ 1 ) }}", "{# x", "{{ a[ }}",
        "{% for x %}", "{% set = 1 %}", "{{ 'a' | }}", "{{ [1, 2 }}"}) {
    CHECK_MESSAGE(run(broken).find("cannot be read: line 1") != std::string::npos, broken);
  }
}

}  // namespace
}  // namespace bolt
