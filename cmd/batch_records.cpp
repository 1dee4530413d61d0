// bolt's own shape, and OpenAI's batch output with its chat completions and completions.
#include "cmd/batch_records.h"

#include <ctime>

#include "cmd/report.h"
#include "core/base/json.h"

namespace bolt {
namespace {

void begin(JsonWriter& json, const BatchLine& line) {
  json.begin_object();
  json.key("id").raw(line.id);
  json.member("line", line.number);
}

std::string text_of(const Session& session, int id) {
  return std::string(session.tokenizer().bytes_of(id));
}

void write_native_logprobs(JsonWriter& json, const Session& session,
                           const std::vector<Logprobs>& all) {
  const auto write = [&](const TokenLogprob& entry) {
    json.member("id", entry.id).member("token", text_of(session, entry.id));
    json.member("logprob", entry.logprob);
  };
  json.key("logprobs").begin_array();
  for (const Logprobs& one : all) {
    json.begin_object();
    write(one.chosen);
    json.key("top").begin_array();
    for (const TokenLogprob& entry : one.top) {
      json.begin_object();
      write(entry);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

// {"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}]}
void write_chat_logprobs(JsonWriter& json, const Session& session,
                         const std::vector<Logprobs>& all) {
  const auto write = [&](const TokenLogprob& entry) {
    const std::string bytes = text_of(session, entry.id);
    json.member("token", bytes).member("logprob", entry.logprob);
    json.key("bytes").begin_array(/*flat=*/true);
    for (const char c : bytes) json.value(static_cast<int>(static_cast<unsigned char>(c)));
    json.end_array();
  };
  json.key("logprobs").begin_object().key("content").begin_array();
  for (const Logprobs& one : all) {
    json.begin_object();
    write(one.chosen);
    json.key("top_logprobs").begin_array();
    for (const TokenLogprob& entry : one.top) {
      json.begin_object();
      write(entry);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().end_object();
}

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; offsets count bytes of the text.
void write_completions_logprobs(JsonWriter& json, const Session& session,
                                const std::vector<Logprobs>& all) {
  json.key("logprobs").begin_object();
  json.key("tokens").begin_array();
  for (const Logprobs& one : all) json.value(text_of(session, one.chosen.id));
  json.end_array().key("token_logprobs").begin_array(/*flat=*/true);
  for (const Logprobs& one : all) json.value(one.chosen.logprob);
  json.end_array().key("top_logprobs").begin_array();
  for (const Logprobs& one : all) {
    json.begin_object();
    for (const TokenLogprob& entry : one.top) {
      json.member(text_of(session, entry.id), entry.logprob);
    }
    json.end_object();
  }
  json.end_array().key("text_offset").begin_array(/*flat=*/true);
  std::size_t offset = 0;
  for (const Logprobs& one : all) {
    json.value(offset);
    offset += session.tokenizer().bytes_of(one.chosen.id).size();
  }
  json.end_array().end_object();
}

void write_choice(JsonWriter& json, const BatchLine& line, const Session& session,
                  const Outcome& outcome, const ReplyExtras& extras) {
  const bool is_chat = line.shape == LineShape::chat;
  json.begin_object().member("index", 0);
  if (is_chat) {
    json.key("message").begin_object().member("role", "assistant");
    json.member("content", outcome.text).key("refusal").null().end_object();
  } else {
    json.member("text", outcome.text);
  }
  if (extras.logprobs.empty()) {
    json.key("logprobs").null();
  } else if (is_chat) {
    write_chat_logprobs(json, session, extras.logprobs);
  } else {
    write_completions_logprobs(json, session, extras.logprobs);
  }
  // OpenAI knows one word for both limits; `bolt` says which it was.
  const std::string reason = finish_reason(outcome.stop);
  json.member("finish_reason", reason == "context" ? "length" : reason).end_object();
}

void begin_openai(JsonWriter& json, const BatchLine& line, const std::string& rid) {
  json.begin_object();
  json.member("id", "batch_req_" + (rid.empty() ? std::to_string(line.number) : rid.substr(0, 24)));
  json.key("custom_id").raw(line.id);
  json.member("line", line.number);
}

void write_openai_error(JsonWriter& json, const LineError& error, bool whole) {
  json.begin_object().member("code", error.code).member("message", error.message);
  if (whole) {
    json.member("type", error.code == "numeric_error" ? "server_error" : "invalid_request_error");
  }
  json.key("param");
  error.param.empty() ? json.null() : json.value(error.param);
  json.end_object();
}

std::string openai_done(const BatchLine& line, const Session& session, const Outcome& outcome,
                        const ReplyExtras& extras) {
  const bool is_chat = line.shape == LineShape::chat;
  const std::string& rid = outcome.receipt.rid;
  JsonWriter json;
  begin_openai(json, line, rid);
  json.key("response").begin_object();
  json.member("status_code", 200).member("request_id", rid).key("body").begin_object();
  json.member("id", (is_chat ? "chatcmpl-" : "cmpl-") + rid.substr(0, 24));
  json.member("object", is_chat ? "chat.completion" : "text_completion");
  json.member("created", static_cast<std::int64_t>(std::time(nullptr)));
  json.member("model", session.config().name);
  json.key("choices").begin_array();
  write_choice(json, line, session, outcome, extras);
  json.end_array().key("usage").begin_object();
  const Reply& reply = outcome.reply;
  const auto n_reply = static_cast<std::int64_t>(reply.ids.size());
  json.member("prompt_tokens", reply.n_prompt).member("completion_tokens", n_reply);
  json.member("total_tokens", reply.n_prompt + n_reply);
  json.key("prompt_tokens_details").begin_object();
  json.member("cached_tokens", reply.n_reused).end_object().end_object();
  json.member("system_fingerprint", session.package().arith_id());
  json.end_object().end_object();
  json.key("error").null();
  json.member("receipt", outcome.receipt.path);
  return json.end_object().take();
}

}  // namespace

std::string token_record(const BatchLine& line, const std::string& text,
                         const std::vector<int>& ids) {
  JsonWriter json;
  begin(json, line);
  json.member("event", "token").member("text", text).member("ids", ids);
  return json.end_object().take();
}

std::string error_record(const BatchLine& line, const LineError& error) {
  JsonWriter json;
  if (line.shape == LineShape::native) {
    begin(json, line);
    json.member("event", "error").key("error").begin_object();
    json.member("code", error.code).member("message", error.message).key("param");
    error.param.empty() ? json.null() : json.value(error.param);
    return json.end_object().end_object().take();
  }
  const bool was_refused = error.code == "invalid_request" || error.code == "does_not_fit";
  begin_openai(json, line, "");
  json.key("response").begin_object();
  json.member("status_code", was_refused ? 400 : 500).member("request_id", "");
  json.key("body").begin_object().key("error");
  write_openai_error(json, error, /*whole=*/true);
  json.end_object().end_object().key("error");
  write_openai_error(json, error, /*whole=*/false);
  return json.end_object().take();
}

std::string done_record(const BatchLine& line, const Session& session, const Task& task,
                        const Outcome& outcome, const ReplyExtras& extras) {
  if (line.shape != LineShape::native) {
    const std::string& stop = outcome.stop;
    if (stop == "error") {
      return error_record(
          line, {"numeric_error",
                 "the logits for position " + std::to_string(outcome.reply.error_position) +
                     " are not finite; receipt " + outcome.receipt.path,
                 ""});
    }
    if (stop == "interrupted" || stop == "cancelled") {
      return error_record(line,
                          {stop, "the reply was cut short; receipt " + outcome.receipt.path, ""});
    }
    return openai_done(line, session, outcome, extras);
  }
  JsonWriter json;
  begin(json, line);
  write_done(json, task, outcome);
  if (!extras.logprobs.empty()) write_native_logprobs(json, session, extras.logprobs);
  if (!extras.logits_sha256.empty()) json.member("logits_sha256", extras.logits_sha256);
  return json.end_object().take();
}

}  // namespace bolt
