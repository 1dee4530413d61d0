// The records that answer a batch's lines, each one JSON text without its LF.
#pragma once

#include <string>
#include <vector>

#include "cmd/batch_line.h"
#include "cmd/logprobs.h"
#include "cmd/session.h"

namespace bolt {

// What a reply gave besides its outcome.
struct ReplyExtras {
  std::vector<Logprobs> logprobs;  // one a token, where asked for
  std::string logits_sha256;       // hex, where asked for
};

std::string token_record(const BatchLine& line, const std::string& text,
                         const std::vector<int>& ids);
std::string error_record(const BatchLine& line, const LineError& error);
// The reply to a BatchRequest, in the line's shape.
std::string done_record(const BatchLine& line, const Session& session, const Task& task,
                        const Outcome& outcome, const ReplyExtras& extras);

}  // namespace bolt
