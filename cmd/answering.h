// One reply in the making: what the engine is asked for, the text that becomes of its tokens, and
// the digests that its receipt will hold. Who runs the engine, alone or beside others, is the
// caller's business; sealing is session.h's.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "cmd/session.h"
#include "cmd/stop_texts.h"
#include "core/text/stream_decoder.h"

namespace bolt {

class Answering {
 public:
  // `interrupt` is set when the listener throws; it and the session must outlive the reply.
  Answering(const Session& session, const Task& task, const Listener& listener,
            std::atomic<bool>& interrupt);
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

  // For Engine::generate and Engine::start. Both refer to this object.
  Request request();
  TokenSink sink();

  // The reply has ended: the last of its text, and how it ended, in the receipts' word.
  void finish(const Reply& reply);

  const Task& task() const { return task_; }
  const Outcome& outcome() const { return outcome_; }
  Outcome& outcome() { return outcome_; }
  const std::vector<std::string>& logits_digests() const { return logits_digests_; }
  // What a listener threw; null if nothing.
  const std::exception_ptr& thrown() const { return thrown_; }

 private:
  bool take(int id, std::span<const float> logits);
  void show(const std::string& piece);
  template <class Tell>
  void guarded(const Tell& tell);

  const Session& session_;
  const Task task_;
  const Listener listener_;
  std::atomic<bool>& interrupt_;
  const std::chrono::steady_clock::time_point start_;
  std::vector<int> stop_ids_;
  StreamDecoder decoder_;
  StopTexts stops_;
  Outcome outcome_;
  std::vector<std::string> logits_digests_;
  std::exception_ptr thrown_;
};

}  // namespace bolt
