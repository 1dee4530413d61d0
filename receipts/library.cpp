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

// A key's quotes are never escaped, so no text in the body can be taken for it.
std::string run_id_of(std::string_view body) {
  constexpr std::string_view kKey = R"("run_id":")";
  constexpr std::size_t kDigits = 32;
  const std::size_t at = body.find(kKey);
  return at == std::string_view::npos ? std::string()
                                      : std::string(body.substr(at + kKey.size(), kDigits));
}

// False once `found` wants no more.
bool each_in_file(const std::string& path, const std::function<bool(const Listed&)>& found) {
  try {
    LineReader lines = LineReader::open(path);
    const bool pack = is_pack_name(path);
    std::string line;
    std::size_t n = 0;
    while (lines.next(line, kLineBytesMax, path)) {
      if (!line.starts_with(kBodyStart)) continue;
      ++n;
      const std::string name = pack ? fmt::format("{}#{}", path, n) : path;
      if (!found({name, rid_of(line), run_id_of(line)})) return false;
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

void each_receipt(const std::string& folder, const std::function<bool(const Listed&)>& found) {
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

std::set<std::string> list_folders(const std::vector<std::string>& folders,
                                   const std::function<bool(const std::string& path)>& wanted) {
  std::set<std::string> paths;
  for (const std::string& folder : folders) {
    std::error_code error;
    std::filesystem::directory_iterator at(folder, error);
    if (error) throw Failure(Status::unmet, folder + ": cannot list: " + error.message());
    for (; at != std::filesystem::directory_iterator(); ++at) {
      const std::string path = at->path().string();
      if (wanted(path)) paths.insert(path);
    }
  }
  return paths;
}

std::map<std::string, std::string> find_receipts(const std::set<std::string>& rids,
                                                 const std::vector<std::string>& folders) {
  std::map<std::string, std::string> names;
  for (const std::string& folder : folders) {
    if (names.size() == rids.size()) break;
    each_receipt(folder, [&](const Listed& listed) {
      if (rids.contains(listed.rid)) names.emplace(listed.rid, listed.name);
      return names.size() < rids.size();
    });
  }
  return names;
}

std::map<std::string, std::string> find_by_prefix(const std::string& prefix,
                                                  const std::vector<std::string>& folders) {
  std::map<std::string, std::string> names;
  for (const std::string& folder : folders) {
    each_receipt(folder, [&](const Listed& listed) {
      if (listed.rid.starts_with(prefix) || listed.run_id.starts_with(prefix)) {
        names.emplace(listed.rid, listed.name);
      }
      return true;
    });
  }
  return names;
}

}  // namespace bolt::receipts
