// What is said of an option that a command does not have.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace bolt {

// The first option on the command line that its subcommand does not know, and the known one that is
// nearest to it: "--temperature: `bolt run` has no such option; perhaps --temp". Empty if there is
// none. `app` has been parsed, at least as far as an error.
std::string unknown_option(const CLI::App& app);

// The long option of `known` (without dashes) that `given` is short for, longer than, or at most a
// third of its letters away from; empty if none is.
std::string nearest_option(const std::string& given, const std::vector<std::string>& known);

}  // namespace bolt
