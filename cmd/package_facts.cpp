// The files as they were checked at opening; the vocabulary's digest is receipts/'s.
#include "cmd/package_facts.h"

#include "receipts/digest.h"

namespace bolt {

receipts::PackageFacts package_facts(const Package& package, const Tokenizer& tokenizer) {
  receipts::PackageFacts facts;
  for (const PackageFile& file : package.files()) {
    facts.files.push_back({file.path, file.role, file.bytes, file.sha256, file.how, file.links});
  }
  facts.vocab = receipts::vocab_digest(tokenizer.n_tokens(), [&tokenizer](int id) {
    return receipts::VocabEntry{tokenizer.bytes_of(id), tokenizer.is_special(id)};
  });
  facts.source = package.source();
  return facts;
}

}  // namespace bolt
