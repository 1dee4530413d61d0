// Seals facts and puts them on disk: body, seal and attachments in one file, whole or not at all.
// What the lines hold is body.h, seal.h and attachments.h.
#pragma once

#include <string>

#include "receipts/canonical.h"
#include "receipts/facts.h"

namespace bolt::receipts {

// Where a receipt goes. `file` wins over `folder`; a folder that is not there is made, mode 0700.
struct Where {
  std::string folder;
  std::string file;
  bool replace = false;  // put it in the place of an existing file
};

struct Written {
  std::string rid;  // 64 hex
  std::string path;
};

// Fill in run_id and time.utc where empty, seal, write: an O_EXCL temporary file (0600) in the same
// folder, renamed to a name that must be free, so of two writers one loses (Failure usage), and
// synced before this returns. In a folder the name is UTC time + run_id's first 8 hex,
// NAME.bolt.jsonl. A `file` that is a device or a pipe is written to as it is. Failure fault when
// the disk says no: then nothing is left behind.
Written write_run(RunFacts& facts, const Where& where);
Written write_conversion(ConversionFacts& facts, const Where& where);
// An opening session (facts.totals empty) or a closing one.
Written write_session(SessionFacts& facts, const Where& where);

// $BOLT_RECEIPTS, else $XDG_STATE_HOME/bolt/receipts, else ~/.local/state/bolt/receipts.
std::string default_folder();

// Before the work rather than after it: makes the folder, and throws what a later write would throw
// if the file is there already or cannot be made.
void check_where(const Where& where);

// A body of any kind, sealed, with lines that follow the seal (each ending in LF).
Written write_body(const Value& body, const std::string& lines, const Where& where);

// What one file holds: body, seal and the lines that follow.
std::string sealed_lines(const Value& body, const std::string& lines_after);

// The low-level half: `bytes` go to where.file, or to where.folder/name.
std::string write_file(const std::string& bytes, const Where& where, const std::string& name);

// 32 random hex characters for run_id, and the time as time.utc wants it.
std::string random_run_id();
std::string utc_now();
void fill_in(Common& common);   // both, where empty
void fill_in(RunFacts& facts);  // and the salt of a salted run that has none

// The rid of the conversion receipt beside a package (NAME.bolt -> NAME.bolt.jsonl), if it is
// intact and says package.sha256 == `package_sha256`; else empty.
std::string conversion_rid_beside(const std::string& package_folder,
                                  const std::string& package_sha256);

}  // namespace bolt::receipts
