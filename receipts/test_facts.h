// Facts for tests: a small run that keeps every invariant, and what tests do to its text.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "receipts/attachments.h"
#include "receipts/body.h"
#include "receipts/digest.h"
#include "receipts/file.h"
#include "receipts/seal.h"
#include "receipts/status.h"
#include "receipts/verify.h"
#include "receipts/write.h"

namespace bolt::receipts {

// n tokens in ordinary mode from a prompt of 5 ids, ended by the limit.
inline RunFacts sample_run(int n = 40) {
  RunFacts f;
  f.common.run_id = "000102030405060708090a0b0c0d0e0f";
  f.common.time.utc = "2026-01-31T12:34:56Z";
  f.common.build.exe = sha256_hex("exe");
  f.common.build.commit = "d73a6e6d73a6e6d73a6e6d73a6e6d73a6e6d73a6";
  f.common.device = Device{};
  f.common.device->kind = "cpu";
  f.common.device->arch = "avx2";
  f.package.files.push_back({"graph.json", "graph", 3, sha256_hex("g"), "stream", 1});
  f.package.files.push_back({"weights-00000.bin", "payload", 9, sha256_hex("w"), "cached", 1});
  f.package.vocab = sha256_hex("vocab");
  f.package.source = "sample";
  f.arith.id = "bolt-exact/1";
  f.arith.sha256 = sha256_hex("vectors");
  f.task.prompt_ids = {3, 1, 4, 1, 5};
  f.task.prompt_text = "count";
  f.task.has_prompt_text = true;
  f.task.stop_ids = {2};
  f.task.max_new = n;
  f.task.context = 4096;
  f.out.ids.resize(static_cast<std::size_t>(n));
  std::iota(f.out.ids.begin(), f.out.ids.end(), 100);
  f.out.text = "one two three";
  f.out.has_text = true;
  f.stop.kind = "limit";
  f.count.target = f.count.rounds = f.count.bonus = n > 0 ? n - 1 : 0;
  f.count.prompt_passes = 1;
  return f;
}

// The same reply by seven drafts a round: in every round all are accepted, until the last is cut.
inline RunFacts sample_speculative(int n = 40) {
  RunFacts f = sample_run(n);
  f.mode.kind = "speculative";
  f.mode.depth = 7;
  f.mode.source = "auto";
  const std::int64_t rounds = (n - 1 + 7) / 8;
  f.count.target = f.count.rounds = f.count.bonus = rounds;
  f.count.drafted = 7 * rounds;
  f.count.accepted_at.assign(7, rounds);
  f.count.cut = 1 + 8 * rounds - n;
  return f;
}

inline std::string sealed_text(const RunFacts& facts) {
  const Value body = run_body(facts);
  return sealed_lines(body, attachment_lines(facts, rid_of(canonical(body))));
}

inline Receipt sealed(const RunFacts& facts) { return read_receipt_text(sealed_text(facts), "t"); }

// What verify says of a file with this text: its status, 0 if it holds.
inline int verdict(std::string_view text, const VerifyOptions& options = {}) {
  try {
    return static_cast<int>(verify(read_receipt_text(text, "t"), options).status);
  } catch (const Failure& failure) {
    return static_cast<int>(failure.status);
  }
}

// A body sealed as it stands, whatever it says.
inline std::string resealed(const std::string& body) {
  return body + "\n" + seal_line(body) + "\n";
}

inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw Failure(Status::fault, "test: no such text to replace");
  return text.replace(at, from.size(), to);
}

inline std::string body_of(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace bolt::receipts
