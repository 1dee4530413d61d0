// A bundle carries the key's id as a hint only: whoever verifies brings the key.
#include "receipts/export.h"

#include <fmt/format.h>

#include "receipts/sign.h"
#include "receipts/write.h"

namespace bolt::receipts {
namespace {

std::string key_hint(const Receipt& receipt) {
  const Envelope envelope = read_envelope(receipt.envelopes[0], receipt.what + ": signature");
  std::string hint;
  append_quoted(hint, envelope.signatures[0].key_id);
  return hint;
}

}  // namespace

Answer export_receipt(const Receipt& receipt, ExportForm form, const std::string& stem) {
  (void)verify(receipt, {});
  if (form != ExportForm::intoto) {
    if (receipt.envelopes.empty()) {
      throw Failure(Status::trust,
                    receipt.what + ": not signed; `bolt receipt sign --key` it first");
    }
    (void)signers(receipt, {});  // refuses an envelope that is about something else
    if (receipt.envelopes.size() > 1) {
      throw Failure(Status::trust, fmt::format("{}: {} signatures, the form holds one",
                                               receipt.what, receipt.envelopes.size()));
    }
  }
  Answer answer;
  Value::Array names;
  std::string wrote = "wrote";
  const auto put = [&](const std::string& suffix, const std::string& bytes) {
    Where where;
    where.file = stem + suffix;
    check_where(where);
    const std::string path = write_file(bytes, where, "");
    wrote += " " + inert(path);
    names.emplace_back(inert(path));
  };
  switch (form) {
    case ExportForm::dsse:
      put(".dsse.json", receipt.envelopes[0] + "\n");
      break;
    case ExportForm::intoto:
      put(".intoto.json", statement(receipt) + "\n");
      break;
    case ExportForm::bundle:
      put(".body.json", receipt.text);  // its SHA-256 is the rid, so no line feed
      put(".sigstore.json",
          fmt::format(R"({{"dsseEnvelope":{},)"
                      R"("mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json",)"
                      R"("verificationMaterial":{{"publicKey":{{"hint":{}}}}}}})"
                      "\n",
                      receipt.envelopes[0], key_hint(receipt)));
      break;
  }
  answer.lines.push_back({wrote, Tone::good});
  if (form == ExportForm::bundle) {
    answer.lines.push_back({fmt::format("cosign verify-blob-attestation --key k.pub --type {} "
                                        "--insecure-ignore-tlog --bundle {}.sigstore.json "
                                        "{}.body.json",
                                        kPredicateType, inert(stem), inert(stem)),
                            Tone::dim});
  }
  answer.json.set("rid", receipt.rid);
  answer.json.set("files", std::move(names));
  return answer;
}

}  // namespace bolt::receipts
