// libFuzzer target for everything that reads a receipt: -DBOLT_FUZZ=ON with clang, `receipts_fuzz`.
// A refusal must be a Failure with a listed status; anything else, and any text that is accepted
// though it is not its own canonical form, is a finding.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "receipts/compare.h"
#include "receipts/seal.h"
#include "receipts/show.h"
#include "receipts/sign.h"
#include "receipts/verify.h"

using namespace bolt::receipts;

namespace {

void must(bool holds) {
  if (!holds) std::abort();
}

template <class F>
void allowed(const F& work) {
  try {
    work();
  } catch (const Failure& failure) {
    must(failure.status == Status::malformed || failure.status == Status::unmet ||
         failure.status == Status::trust);
  }
}

void whole(std::string_view text, bool is_pack) {
  allowed([&] {
    ReceiptReader reader(LineReader::over(text), "f", is_pack);
    while (const std::optional<Receipt> receipt = reader.next()) {
      must(canonical(receipt->body) == receipt->text);
      must(rid_of(receipt->text) == receipt->rid);
      for (const Line& line : show(*receipt, false))
        must(line.text.find('\x1b') == std::string::npos);
      for (const Line& line : show(*receipt, true)) must(line.text.find('\n') == std::string::npos);
      allowed([&] { (void)signers(*receipt, {}); });
      allowed([&] {
        (void)verify(*receipt, {});
        if (receipt->kind() == "run") {
          const Comparison self = compare_runs(*receipt, *receipt);
          must(self.tokens == Tokens::same || !self.other_task.empty());
        }
      });
      if (!is_pack) break;
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:  // the file as it is
      whole(text, false);
      break;
    case 1: {  // the first line sealed anew, so that the fuzzer gets past the seal
      const std::size_t end = text.find('\n');
      const std::string body(text.substr(0, end));
      std::string sealed = body + "\n" + seal_line(body) + "\n";
      if (end != std::string_view::npos) {
        // Attachments name the rid, which the fuzzer cannot know either: @ stands for it.
        const std::string rid = rid_of(body);
        for (const char c : text.substr(end + 1)) c == '@' ? sealed += rid : sealed += c;
      }
      whole(sealed, false);
      break;
    }
    case 2:
      whole(text, true);
      break;
    default:
      allowed([&] { must(canonical(read_canonical(text, "f")) == text); });
      allowed([&] { (void)read_envelope(text, "f"); });
      must(first_bad_utf8(inert(text)) == std::string_view::npos);
  }
  return 0;
}
