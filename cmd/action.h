// What a subcommand gives main: options hung into CLI11, and the work to do once they are parsed.
// Each add_X stands in cmd/X.cpp; main.cpp calls them and turns what they throw into exit statuses.
#pragma once

#include <functional>

#include "core/base/error.h"

namespace CLI {
class App;
}

namespace bolt {

// Set by the callback of the subcommand that was given; run after parsing, so that an error in the
// work is not reported as one in the options. The Exit it returns is the process's status.
using Action = std::function<Exit()>;

void add_run(CLI::App& app, Action& action);
void add_serve_stdin(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_receipt(CLI::App& app, Action& action);

}  // namespace bolt
