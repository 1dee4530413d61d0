// Receipts found in folders: the parents of another by rid, or one by the start of its rid or
// run_id.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace bolt::receipts {

inline constexpr const char* kReceiptSuffix = ".bolt.jsonl";
inline constexpr const char* kPackSuffix = ".runs.jsonl";
bool is_receipt_name(std::string_view name);
bool is_pack_name(std::string_view name);

struct Listed {
  std::string name;  // FILE or FILE#N
  std::string rid, run_id;
};

// Calls `found` for every body in the folder's receipts and packs, sorted by file name; the seals
// are not checked. False from `found` ends the search. Folders and files that cannot be read are
// passed over.
void each_receipt(const std::string& folder, const std::function<bool(const Listed&)>& found);

// The paths in these folders that `wanted` takes, in order. Failure(unmet) for a folder that cannot
// be listed.
std::set<std::string> list_folders(const std::vector<std::string>& folders,
                                   const std::function<bool(const std::string& path)>& wanted);

// Names of those of `rids` that lie in the folders.
std::map<std::string, std::string> find_receipts(const std::set<std::string>& rids,
                                                 const std::vector<std::string>& folders);

// The names, by rid, of all receipts whose rid or run_id starts with `prefix` (a copy of one
// receipt counts once). A file name that was not chosen ends in the start of the run_id.
std::map<std::string, std::string> find_by_prefix(const std::string& prefix,
                                                  const std::vector<std::string>& folders);

std::string folder_of(const std::string& path);  // "." for a bare name

}  // namespace bolt::receipts
