// Facts become the body of a receipt: derived digests, the chain's marks, and only fields that have
// a value. The bytes are canonical.h's, the fields' meaning fields.h's.
#pragma once

#include <string>

#include "receipts/canonical.h"
#include "receipts/digest.h"
#include "receipts/facts.h"

namespace bolt::receipts {

// run_id and time.utc must be filled in (write.h does). Throws Failure(fault) on facts that cannot
// be sealed, e.g. a package file without a hash.
Value run_body(const RunFacts& facts);
Value conversion_body(const ConversionFacts& facts);
Value session_body(const SessionFacts& facts);

// header, build, time, parents: what every kind shares.
void set_common(Value& body, const char* kind, const Common& common);

// D("task"): over the canonical JSON of every T input but _type and the limits.
Digest task_digest(const Value& body, const Binder& binder);
// D("out"): task.sha256, n, out.ids and the canonical JSON of stop.
std::string out_key(const Value& body, const Binder& binder);

// D("logits") or D("state") over a list of hex digests, and the digests of texts.
std::string digest_list(const Binder& binder, std::string_view tag,
                        const std::vector<std::string>& digests);

std::string f32_hex(float value);
std::string u64_hex(std::uint64_t value);

}  // namespace bolt::receipts
