// Receipts in the forms that other tools read. No new claims: what is exported is the body as
// sealed and the signatures as made.
#pragma once

#include <string>

#include "receipts/verify.h"

namespace bolt::receipts {

// dsse: the envelope, one file. bundle: a Sigstore bundle and the body's bytes, for cosign.
// intoto: the Statement, unsigned.
enum class ExportForm { dsse, bundle, intoto };

// Verifies, then writes `stem`.dsse.json, `stem`.sigstore.json and `stem`.body.json, or
// `stem`.intoto.json; an existing file is refused. Throws Failure(trust) where a signature is
// needed and there is none, or more than one for a bundle.
Answer export_receipt(const Receipt& receipt, ExportForm form, const std::string& stem);

}  // namespace bolt::receipts
