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

// The error of a rendering without a conversation; `code` is how it ends.
std::string hostile(const std::string& source, Exit code = Exit::input) {
  try {
    jinja::Template(source).render({});
  } catch (const Error& e) {
    CHECK_MESSAGE(e.code == code, source.substr(0, 80));
    return e.what();
  }
  return {};
}

TEST_CASE("chat: a template's values hold neither themselves nor one another without end") {
  const std::string ns = "{% set ns = namespace(a=1) %}";
  const auto says = [](const std::string& source, const char* what) {
    CHECK_MESSAGE(hostile(source).find(what) != std::string::npos, source, ": ", hostile(source));
  };
  for (const char* value : {"ns", "[ns]", "{'x': ns}", "namespace(b=ns)", "(1, ns)"}) {
    const std::string cycle = ns + "{% set ns.a = " + value + " %}";
    for (const std::string use : {"{{ ns }}", "{{ ns | tojson }}", "{{ ns == ns.a }}", ""}) {
      says(cycle + use, "stores a namespace");
    }
  }
  says("{% for x in [1] %}{% set ns = [loop] %}{% endfor %}", "stores a namespace or a loop");
  for (const char* value : {"ns.get", "[ns.items]", "range", "'a'.join"}) {
    says(ns + "{% set ns.a = " + value + " %}", "stores a function");
  }
  for (const char* nest : {"[ns.a]", "{'k': ns.a}", "[[1, ns.a]]", "{'k': [ns.a]}"}) {
    const std::string deep =
        ns + "{% for i in range(99999) %}{% set ns.a = " + nest + " %}{% endfor %}";
    for (const std::string use : {"{{ ns.a }}", "{{ ns.a | tojson }}", "{{ ns.a == [1] }}", ""}) {
      says(deep + use, "the chat template builds more than 128");
    }
  }
  // Jinja2 refuses it too: only a namespace's attributes are set.
  CHECK(hostile("{% set d = {'a': 1} %}{% set d.a = d %}", Exit::usage).find("namespace") !=
        std::string::npos);
  // Control: what nests less is built, printed and compared.
  CHECK(jinja::Template(ns + "{% for i in range(100) %}{% set ns.a = [ns.a] %}{% endfor %}"
                             "{{ ns.a == [ns.a][0] }}{{ ns.a }}")
            .render({}) == "True" + std::string(100, '[') + "1" + std::string(100, ']'));
}

TEST_CASE("chat: values that are shared many times over are not walked many times over") {
  std::string twice =
      "{% set ns = namespace(a=['b'], b=['b']) %}{% for i in range(60) %}"
      "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
  CHECK(jinja::Template(twice + "x").render({}) == "x");
  for (const std::string use : {"{{ ns.a }}", "{{ ns.a | tojson }}", "{{ ns.a == ns.b }}",
                                "{{ ns.a in [ns.b] }}", "{{ 'a'.startswith(ns.a) }}"}) {
    CHECK_MESSAGE(hostile(twice + use).starts_with("the chat template "), use);
  }
}

TEST_CASE("chat: what one rendering builds is bounded, whatever builds it") {
  const auto repeated = [](const std::string& set, const std::string& body, int n) {
    return "{% set ns = namespace(s=" + set + ") %}{% for i in range(" + std::to_string(n) +
           ") %}{% set ns.s = " + body + " %}{% endfor %}";
  };
  const std::string a16 = "'aaaaaaaaaaaaaaaa'";
  for (const std::string& source :
       {repeated("[1, 2, 3, 4]", "ns.s + ns.s", 40), repeated(a16, "ns.s ~ ns.s", 60),
        repeated(a16, "ns.s + ns.s", 60), repeated(a16, "ns.s | replace('a', " + a16 + ")", 12),
        repeated(a16, "ns.s.replace('a', " + a16 + ")", 12),
        repeated(a16, "[ns.s, ns.s] | join(ns.s)", 60), repeated(a16, "ns.s.join([1, 2, 3])", 60),
        repeated(a16, "[ns.s, ns.s] | string", 60), repeated(a16, "[ns.s, ns.s] | tojson", 60),
        repeated("[]", "[ns.s, range(99999)]", 120),
        repeated("[1]", "[ns.s, ns.s] | tojson(indent=64)", 60)}) {
    const std::string line = hostile(source);
    CHECK_MESSAGE(line.find("builds more than 8 MiB") != line.npos, source, ": ", line);
  }
  std::string doubled = "{% set s=[1,2,3,4] %}";
  for (int i = 0; i < 40; ++i) doubled += "{% set s=s+s %}";
  CHECK(hostile(doubled).find("builds more than") != std::string::npos);
  // Texts within texts count together.
  CHECK(hostile("{% macro f(n) %}{% for i in range(50000) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' "
                "}}{% endfor %}{{ f(n) }}{% endmacro %}{{ f(1) }}")
            .find("builds more than") != std::string::npos);
  CHECK(hostile("{{ [1] | tojson(indent=2000000000) }}", Exit::usage).find("indents") !=
        std::string::npos);
  // What was let go does not count, and a long chat may build more than a short one.
  CHECK(jinja::Template("{% for i in range(200) %}{% set x = range(20000) %}{% endfor %}x")
            .render({}) == "x");
  const std::string thrice = "{% set x = s ~ s ~ s %}{{ x | length }}";
  jinja::Dict variables;
  variables.set("s", std::string(10'000'000, 'a'));
  CHECK(jinja::Template(thrice).render(variables) == "30000000");
}

TEST_CASE("chat: the steps of one rendering are bounded, whatever takes them") {
  const std::string text = "{% set t = 'a' %}" + [] {
    std::string out;
    for (int i = 0; i < 20; ++i) out += "{% set t = t ~ t %}";
    return out;
  }();
  const std::string forever = "{% for i in range(90000) %}{% for k in range(90000) %}";
  const std::string ends = "{% endfor %}{% endfor %}";
  for (const std::string body :
       {"", "{{ (t ~ 'b') in t }}", "{% set x = t[5:9] %}", "{% set x = t[-1] %}",
        "{% set x = t == t ~ '' %}", "{% set x = t | length %}", "{% set x = t | upper %}",
        "{% set x = t.count('aab') %}", "{% set x = t.strip('a') %}"}) {
    const std::string line = hostile(text + forever + body + ends);
    CHECK_MESSAGE(line.find("steps for this conversation") != line.npos, body, ": ", line);
  }
}

TEST_CASE("chat: a macro within a long expression cannot overflow the stack") {
  std::string chain = "{% macro f() %}{{ f()";
  for (int i = 0; i < 400; ++i) chain += " ~ 1";
  CHECK(hostile(chain + " }}{% endmacro %}{{ f() }}").find("too deeply") != std::string::npos);
  std::string brackets = "1";
  for (int i = 0; i < 40; ++i) {
    brackets = "[" + brackets + "]";
    for (int k = 0; k < 100; ++k) brackets += "+1";
  }
  CHECK(hostile("{{ " + brackets + " }}", Exit::usage).find("too long") != std::string::npos);
}

TEST_CASE("chat: a template that is no text is refused by name") {
  const std::string marks = "{# <|im_start|> enable_thinking #}";
  for (const std::string& bad :
       {std::string("\xFF"), std::string("\xE2\x82"), std::string("{{ \xF0")}) {
    const TemplateFacts facts = recognise_template(marks + bad);
    CHECK(facts.kind.empty());
    CHECK(facts.problem.find("is not UTF-8") != std::string::npos);
    CHECK(hostile(bad, Exit::usage).find("is not UTF-8") != std::string::npos);
  }
  const TemplateFacts nul = recognise_template(marks + std::string(1, '\0') + "x");
  CHECK(nul.kind.empty());
  CHECK(nul.problem.find("byte 34 is NUL") != std::string::npos);
  CHECK(recognise_template(marks + std::string(2u << 20, 'x')).problem.find("at most") !=
        std::string::npos);
  // The limits hold when a template is recognised, too.
  const TemplateFacts deep =
      recognise_template(marks + "{% set ns=namespace(a=1) %}{% set ns.a=ns %}{{ ns }}");
  CHECK(deep.kind.empty());
  CHECK(deep.problem.find("stores a namespace") != std::string::npos);
}

TEST_CASE("chat: long chats render within the limits of their templates") {
  for (const char* name : {"sample", "nano", "ultra", "v2"}) {
    for (const std::size_t n_bytes : {std::size_t{10}, std::size_t{2000}}) {
      std::vector<Message> messages;
      for (int i = 0; i < 2000; ++i) {
        messages.push_back({"user", std::string(n_bytes, 'q'), {}, {}});
        messages.push_back({"assistant", std::string(n_bytes, 'a'), "because", {}});
      }
      messages.push_back({"user", "last text", {}, {}});
      CHECK_MESSAGE(load(name).render(messages, {}).find("last text") != std::string::npos, name);
    }
  }
}

TEST_CASE("chat: hostile templates end with an error") {
  const auto run = [](const std::string& source) {
    return refusal([&] { jinja::Template(source).render({}); });
  };
  const std::string outer = "{% for a in range(90000) %}", end = "{% endfor %}";
  CHECK(run(outer + outer + "x" + end + end).find("steps") != std::string::npos);
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
