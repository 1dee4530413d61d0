// One line of a batch, read: a request in bolt's own form or as a line of OpenAI's batch files, a
// word to the server, or what is wrong with it. bolt-serve-stdin(1) describes the lines.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cmd/generation.h"
#include "cmd/session.h"
#include "core/base/json.h"
#include "core/text/chat.h"

namespace bolt {

// How a line is answered: bolt's records, or OpenAI's chat completions or completions.
enum class LineShape { native, chat, completions };

struct BatchRequest {
  Task task;
  bool stream = false;
  bool logits_sha256 = false;  // a digest over every emitted position's logits
  int n_logprobs = -1;         // alternatives told beside each token's; -1: no logprobs at all
};

// What `error` of a record says. param: the key at fault, empty if none is.
struct LineError {
  std::string code, message, param;
};

struct CancelLine {
  std::string id;  // JSON text
};
struct StatsLine {};

struct BatchLine {
  std::int64_t number = 0;  // from 1, every line of the input counted
  std::string input;        // the line's bytes, without its end
  std::string id = "null";  // JSON text of the line's own id
  LineShape shape = LineShape::native;
  std::variant<LineError, BatchRequest, CancelLine, StatsLine> what;
};

// Whether a line is a word to the server, which asks for no reply.
bool is_word_line(std::string_view bytes);

struct BatchDefaults {
  GenerationOptions generation;
  std::optional<std::string> system;
  bool thinking = true;
};

// Reads lines for one session. const: one thread may parse while others run the engine.
class LineParser {
 public:
  LineParser(const Session& session, BatchDefaults defaults);
  ~LineParser();

  // Never throws for what a line holds: that is a LineError.
  BatchLine parse(std::int64_t number, std::string bytes) const;
  // The id of a line that is skipped, as BatchLine::id; "null" where it cannot be told.
  static std::string id_of(const std::string& bytes);

 private:
  struct Asked;
  void read_line(const JsonValue& root, BatchLine& line, std::string& param) const;
  void read_native(const JsonValue& root, Asked& asked, std::string& param) const;
  void read_openai(const JsonValue& root, BatchLine& line, Asked& asked, std::string& param) const;
  void read_chat_body(const JsonValue& body, Asked& asked, std::string& param) const;
  void read_completions_body(const JsonValue& body, Asked& asked, std::string& param) const;
  bool read_sampling(std::string_view key, const JsonValue& value, Asked& asked) const;
  BatchRequest resolve(Asked& asked) const;

  const Session& session_;
  const BatchDefaults defaults_;
  std::unique_ptr<ChatTemplate> chat_;  // null: the package has none, and no_chat_ says so
  std::string no_chat_;
};

}  // namespace bolt
