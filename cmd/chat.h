// The chat on a terminal: turns, slash commands, Ctrl-C. Lines are LineReader's, replies Session's.
#pragma once

#include <optional>
#include <string>

#include "cmd/session.h"
#include "cmd/streams.h"
#include "core/base/error.h"

namespace bolt {

struct ChatSettings {
  std::optional<std::string> system;
  bool thinking = true;
  bool quiet = false, verbose = false;
  Color color = Color::automatic;
};

// Reads and answers until the end of input or /quit (ok), or a signal that ends the process
// (interrupted). `task` holds all but the prompt. Every turn leaves its receipt.
Exit chat(Session& session, const Task& task, const ChatSettings& options);

}  // namespace bolt
