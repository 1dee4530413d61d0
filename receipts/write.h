// Seals facts and puts them on disk: body, seal and attachments in one file, whole or not at all.
// What the lines hold is body.h, seal.h and attachments.h.
#pragma once

#include <string>

#include "receipts/facts.h"

namespace bolt::receipts {

// Where a receipt goes. `file` wins over `folder`; a folder that is not there is made, mode 0700.
struct Where {
  std::string folder;
  std::string file;
};

struct Written {
  std::string rid;   // 64 hex
  std::string path;
};

// Fill in run_id and time.utc where empty, seal, write: an O_EXCL temporary file (0600) in the same
// folder, synced, then linked to its name. In a folder the name is UTC time + run_id's first 8 hex,
// NAME.bolt.jsonl; an existing `file` is refused (Failure usage), so of two writers one loses.
// Failure fault when the disk says no: then nothing is left behind.
Written write_run(RunFacts& facts, const Where& where);
Written write_conversion(ConversionFacts& facts, const Where& where);
// An opening session (facts.totals empty) or a closing one.
Written write_session(SessionFacts& facts, const Where& where);

// $BOLT_RECEIPTS, else $XDG_STATE_HOME/bolt/receipts, else ~/.local/state/bolt/receipts.
std::string default_folder();

// The low-level half: `lines` (each ending in LF) become the file's bytes.
// `replace` renames over an existing file instead of refusing it.
std::string write_lines(const std::string& lines, const Where& where, const std::string& stem,
                        bool replace = false);

// 32 random hex characters for run_id.
std::string random_run_id();

// The rid of the conversion receipt beside a package (NAME.bolt -> NAME.bolt.jsonl), if it is
// intact and says package.sha256 == `package_sha256`; else empty.
std::string conversion_rid_beside(const std::string& package_folder,
                                  const std::string& package_sha256);

}  // namespace bolt::receipts
