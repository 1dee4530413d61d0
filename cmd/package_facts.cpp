// The files as they were checked at opening; the vocabulary's digest is receipts/'s.
#include "cmd/package_facts.h"

#include "receipts/digest.h"

namespace bolt {
namespace {

std::vector<receipts::PackageFileFact> file_facts(const Package& package) {
  std::vector<receipts::PackageFileFact> facts;
  for (const PackageFile& file : package.files()) {
    facts.push_back({file.path, file.role, file.bytes, file.sha256, file.how, file.links});
  }
  return facts;
}

}  // namespace

std::string package_sha256(const Package& package) {
  return receipts::package_digest(file_facts(package));
}

receipts::PackageFacts package_facts(const Package& package, const Tokenizer& tokenizer) {
  receipts::PackageFacts facts;
  facts.files = file_facts(package);
  facts.vocab = receipts::vocab_digest(tokenizer.n_tokens(), [&tokenizer](int id) {
    return receipts::VocabEntry{tokenizer.bytes_of(id), tokenizer.is_special(id)};
  });
  facts.source = package.source();
  return facts;
}

}  // namespace bolt
