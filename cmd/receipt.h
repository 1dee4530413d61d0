// What the verbs of `bolt receipt` share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cmd/streams.h"
#include "receipts/display.h"

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
// A file's name as it is; the start of a rid becomes the name of the one receipt that has it.
std::string find_receipt(const std::string& name, const VerbOptions& common);
std::string newest_receipt(const VerbOptions& common);

}  // namespace bolt
