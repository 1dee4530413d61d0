// What the verbs of `bolt receipt` share.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cmd/action.h"
#include "cmd/streams.h"
#include "receipts/display.h"
#include "receipts/verify.h"

namespace bolt {

struct VerbOptions {
  bool json = false;
  std::string folder;  // --receipts; empty: receipts::default_folder()
  Color color = Color::automatic;
};

void add_verb_options(CLI::App& app, VerbOptions& options);

// The lines, coloured where that belongs.
std::string paint(const VerbOptions& common, const std::vector<receipts::Line>& lines);

std::string receipts_folder(const VerbOptions& common);
// A file's name as it is; the start of a rid or run_id (a file name ends in the run_id's)
// becomes the name of the one receipt that has it.
std::string find_receipt(const std::string& name, const VerbOptions& common);
std::string newest_receipt(const VerbOptions& common);

// Columns of the terminal that stdout is, 80 where it does not say.
int terminal_columns();

// Runs one verb and prints its answer: lines, or one JSON object that is there on failure too.
Exit answer(const VerbOptions& common, const std::function<receipts::Answer()>& work);

using Verbs = std::shared_ptr<VerbOptions>;
void add_compare(CLI::App& app, Action& action, const Verbs& common);
void add_export(CLI::App& app, Action& action, const Verbs& common);
void add_plan(CLI::App& app, Action& action, const Verbs& common);
void add_audit(CLI::App& app, Action& action, const Verbs& common);

}  // namespace bolt
