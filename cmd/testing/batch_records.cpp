// Records are read as any client would: JSON, line by line.
#include "cmd/testing/batch_records.h"

#include <doctest/doctest.h>

#include <sstream>

#include "core/base/json.h"
#include "core/base/sha256.h"

namespace bolt::testing {
namespace {

std::string text_at(const JsonValue& object, std::string_view key) {
  const auto value = object.find_set(key);
  return value && value->is_string() ? std::string(value->string()) : std::string();
}

void append_ids(const JsonValue& object, std::vector<int>& ids) {
  const auto found = object.find("ids");
  if (!found) return;
  for (const JsonValue& id : found->items()) ids.push_back(static_cast<int>(id.integer()));
}

}  // namespace

std::map<std::int64_t, Record> read_records(const std::string& jsonl) {
  std::map<std::int64_t, Record> records;
  std::map<std::int64_t, Record> parts;
  std::istringstream in(jsonl);
  CHECK((jsonl.empty() || jsonl.back() == '\n'));
  for (std::string text; std::getline(in, text);) {
    const JsonDocument document = JsonDocument::parse("record", text);
    const JsonValue root = document.root();
    const std::int64_t line = root.at("line").integer(1);
    Record record;
    record.json = text;
    if (const auto id = root.find("custom_id")) {
      record.id = id->json();
      record.event = "openai";
      if (const auto error = root.find_set("error")) {
        record.code = text_at(*error, "code");
        record.param = text_at(*error, "param");
      }
    } else {
      record.id = root.at("id").json();
      record.event = root.at("event").string();
      if (const auto error = root.find_set("error")) {
        record.code = text_at(*error, "code");
        record.param = text_at(*error, "param");
      }
    }
    if (record.event == "token") {
      append_ids(root, parts[line].streamed_ids);
      parts[line].streamed_text += root.at("text").string();
      CHECK_FALSE(records.contains(line));
      continue;
    }
    record.text = text_at(root, "text");
    record.stop = text_at(root, "stop");
    record.finish_reason = text_at(root, "finish_reason");
    record.logits_sha256 = text_at(root, "logits_sha256");
    record.receipt = text_at(root, "receipt");
    append_ids(root, record.ids);
    record.streamed_ids = parts[line].streamed_ids;
    record.streamed_text = parts[line].streamed_text;
    CHECK_MESSAGE(records.emplace(line, record).second, "line ", line, " was answered twice");
  }
  return records;
}

Served serve(const ScratchFolder& home, const std::string& lines, std::vector<std::string> args) {
  args.insert(args.begin(), {"serve-stdin", "-q"});
  Served served;
  served.ended = run_bolt(home, Start{.args = args, .input = lines, .limit_s = 300});
  INFO(served.ended.err);
  served.records = read_records(served.ended.out);
  return served;
}

Record run_alone(const ScratchFolder& home, std::vector<std::string> args, bool logits) {
  args.insert(args.begin(), {"run", "--json", "-q"});
  const std::string file = home.file("alone.safetensors");
  if (logits) args.insert(args.end(), {"--logits", file});
  const Ended ended = run_bolt(home, args);
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  std::string text = ended.out;
  text.replace(text.find('{'), 1, "{\"id\":null,\"line\":1,");
  Record record = read_records(text).at(1);
  if (logits) {
    // The tensor is what follows the header; it is named last.
    const std::string bytes = file_bytes(file);
    const std::size_t at = bytes.find("\"logits\"");
    const std::size_t offsets = bytes.find("\"data_offsets\":[", at) + 16;
    const std::size_t begin = std::stoul(bytes.substr(offsets));
    const std::size_t end = std::stoul(bytes.substr(bytes.find(',', offsets) + 1));
    std::uint64_t n_header = 0;
    bytes.copy(reinterpret_cast<char*>(&n_header), 8);
    record.logits_sha256 =
        sha256_hex(std::string_view(bytes).substr(8 + n_header + begin, end - begin));
  }
  return record;
}

}  // namespace bolt::testing
