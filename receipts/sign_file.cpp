// The file is replaced whole, so a crash leaves it signed or as it was.
#include "receipts/sign_file.h"

#include <fmt/format.h>

#include <cstring>

#include "receipts/digest.h"
#include "receipts/status.h"
#include "receipts/write.h"

namespace bolt::receipts {
namespace {

std::string read_whole(const std::string& path) {
  LineReader reader = LineReader::open(path);
  std::string bytes, line;
  while (reader.next(line, kLineBytesMax, path)) bytes.append(line).push_back('\n');
  return bytes;
}

}  // namespace

Answer sign_file(const std::string& name, const PrivateKey& key) {
  if (name == "-" || split_pack_name(name).second != 0) {
    throw Failure(Status::usage, name + ": only a receipt in a file of its own can be signed");
  }
  const std::string bytes = read_whole(name);
  const Receipt receipt = read_receipt_text(bytes, name);
  (void)verify(receipt, {});
  Answer answer;
  answer.json.set("rid", receipt.rid);
  answer.json.set("key", key.public_key.id());
  if (!signers(receipt, {key.public_key}).empty()) {
    answer.lines.push_back(
        {fmt::format("{} is signed by {} already", short_hex(receipt.rid), key.public_key.id())});
    return answer;
  }
  Where where;
  where.file = name;
  where.replace = true;
  write_file(bytes + envelope_line(receipt, key) + "\n", where, "");
  answer.lines.push_back({fmt::format("signed {} key {} (PureEd25519, DSSE)",
                                      short_hex(receipt.rid), key.public_key.id()),
                          Tone::good});
  return answer;
}

std::array<std::uint8_t, 32> read_redaction_key(const std::string& path) {
  std::string text = read_key_file(path, true);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  const auto digest = digest_from_hex(text);
  if (!digest) throw Failure(Status::trust, path + ": no redaction key: 64 lower-case hex digits");
  return *digest;
}

}  // namespace bolt::receipts
