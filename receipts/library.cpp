// Only first lines are hashed, so a folder of thousands of receipts is searched in milliseconds.
#include "receipts/library.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "receipts/attachments.h"
#include "receipts/canonical.h"
#include "receipts/file.h"
#include "receipts/seal.h"
#include "receipts/status.h"

namespace bolt::receipts {
namespace {

constexpr std::string_view kBodyStart = R"({"_type":"bolt.receipt/)";

// False once `found` wants no more.
bool each_in_file(const std::string& path,
                  const std::function<bool(const std::string&, const std::string&)>& found) {
  try {
    LineReader lines = LineReader::open(path);
    const bool pack = is_pack_name(path);
    std::string line;
    std::size_t n = 0;
    while (lines.next(line, kLineBytesMax, path)) {
      if (!line.starts_with(kBodyStart)) continue;
      ++n;
      if (!found(pack ? fmt::format("{}#{}", path, n) : path, rid_of(line))) return false;
      if (!pack) break;
    }
  } catch (const Failure&) {
    // A broken neighbour is not what was asked about; verify says so when it is.
  }
  return true;
}

}  // namespace

bool is_receipt_name(std::string_view name) { return name.ends_with(kReceiptSuffix); }
bool is_pack_name(std::string_view name) { return name.ends_with(kPackSuffix); }

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

void each_receipt(const std::string& folder,
                  const std::function<bool(const std::string&, const std::string&)>& found) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (is_receipt_name(name) || is_pack_name(name)) names.push_back(name);
  }
  std::ranges::sort(names);
  const std::string base = folder == "." ? "" : folder + "/";
  for (const std::string& name : names) {
    if (!each_in_file(base + name, found)) return;
  }
}

std::map<std::string, std::string> find_receipts(const std::set<std::string>& rids,
                                                 const std::vector<std::string>& folders) {
  std::map<std::string, std::string> names;
  for (const std::string& folder : folders) {
    if (names.size() == rids.size()) break;
    each_receipt(folder, [&](const std::string& name, const std::string& rid) {
      if (rids.contains(rid)) names.emplace(rid, name);
      return names.size() < rids.size();
    });
  }
  return names;
}

std::map<std::string, std::string> find_by_prefix(const std::string& prefix,
                                                  const std::vector<std::string>& folders) {
  std::map<std::string, std::string> names;
  for (const std::string& folder : folders) {
    each_receipt(folder, [&](const std::string& name, const std::string& rid) {
      if (rid.starts_with(prefix)) names.emplace(rid, name);
      return true;
    });
  }
  return names;
}

}  // namespace bolt::receipts
