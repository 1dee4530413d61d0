// Tokens to text: decode, look for stop texts, tell the listener.
#include "cmd/answering.h"

#include <algorithm>

#include "core/base/sha256.h"

namespace bolt {

using Clock = std::chrono::steady_clock;

Answering::Answering(const Session& session, const Task& task, const Listener& listener,
                     std::atomic<bool>& interrupt)
    : session_(session),
      task_(task),
      listener_(listener),
      interrupt_(interrupt),
      start_(Clock::now()),
      decoder_(session.tokenizer()),
      stops_(task.stop_texts) {
  if (!task_.ignore_eos) stop_ids_ = session.config().stop_ids;
}

Request Answering::request() {
  Request request;
  request.prompt_ids = task_.prompt_ids;
  request.sampling = task_.sampling;
  request.stop_ids = stop_ids_;
  request.max_new = task_.max_new;
  request.draft = task_.draft;
  request.script = task_.script;
  request.want_logits = session_.attach().logits || listener_.wants_logits;
  if (listener_.progress) {
    request.progress = [this](const Progress& progress) {
      guarded([&] { listener_.progress(progress); });
    };
  }
  return request;
}

TokenSink Answering::sink() {
  return [this](int id, std::span<const float> logits) { return take(id, logits); };
}

bool Answering::take(int id, std::span<const float> logits) {
  if (listener_.token) guarded([&] { listener_.token(id, logits); });
  if (session_.attach().logits) logits_digests_.push_back(sha256_hex(std::as_bytes(logits)));
  // The engine ends the reply with a stop id; no text of it.
  if (std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end()) return true;
  show(stops_.push(decoder_.push(id)));
  return !stops_.matched();
}

void Answering::show(const std::string& piece) {
  outcome_.text += piece;
  if (!piece.empty() && listener_.text) guarded([&] { listener_.text(piece); });
}

template <class Tell>
void Answering::guarded(const Tell& tell) {
  if (thrown_) return;
  try {
    tell();
  } catch (...) {
    thrown_ = std::current_exception();
    interrupt_ = true;
  }
}

void Answering::finish(const Reply& reply) {
  if (!stops_.matched()) show(stops_.push(decoder_.finish()) + stops_.finish());
  outcome_.reply = reply;
  outcome_.stop = thrown_ ? "cancelled" : finish_name(reply.finish);
  outcome_.total_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
}

}  // namespace bolt
