// What `bolt serve-stdin` wrote, by line. Tests only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cmd/testing/child.h"

namespace bolt::testing {

// One record that ends a line.
struct Record {
  std::string json;       // the whole
  std::string id, event;  // id as JSON text; OpenAI's records have the event "openai"
  std::string text, stop, finish_reason, logits_sha256, receipt;
  std::vector<int> ids;
  std::string code, param;        // of an error
  std::vector<int> streamed_ids;  // of the token records before it
  std::string streamed_text;
};

struct Served {
  Ended ended;
  std::map<std::int64_t, Record> records;  // by line; a line with two ends is a failed check
};

// Reads records out of a stream or file.
std::map<std::int64_t, Record> read_records(const std::string& jsonl);

// bolt serve-stdin -q ARGS with `lines` on stdin.
Served serve(const ScratchFolder& home, const std::string& lines,
             std::vector<std::string> args = {});

// What `bolt run ARGS` says alone; with `logits`, also the digest of its logits.
Record run_alone(const ScratchFolder& home, std::vector<std::string> args, bool logits = false);

}  // namespace bolt::testing
