// `bolt receipt compare` and `export`: two receipts side by side, and one in other tools' forms.
#include <fmt/format.h>

#include "cmd/receipt.h"
#include "cmd/values.h"
#include "receipts/compare.h"
#include "receipts/export.h"
#include "receipts/library.h"
#include "receipts/sign_file.h"

namespace bolt {

void add_compare(CLI::App& app, Action& action, const Verbs& common) {
  struct Options {
    std::string a, b, redaction_key;
  };
  auto options = std::make_shared<Options>();
  CLI::App* sub =
      app.add_subcommand("compare", "Say whether two runs of one task gave the same tokens");
  sub->add_option("A", options->a, "Receipt, PACK#N or the start of a rid")->required();
  sub->add_option("B", options->b, "The other")->required();
  sub->add_option("--redaction-key", options->redaction_key,
                  "Key of keyed receipts (64 hex digits)")
      ->type_name("FILE");
  add_verb_options(*sub, *common);
  sub->footer(
      "The first difference is named to the token where ids are attached, to the chain's window\n"
      "(16 tokens, more in long replies) where not. A reply that a smaller limit ended may be a\n"
      "PREFIX of the other: that agrees, and is not called the same. Runs of different packages\n"
      "may agree, too: that is observed, not promised.\n"
      "Example: bolt receipt compare ordinary.bolt.jsonl k7.bolt.jsonl\n"
      "Exit status: 0 same, 1 different, 3 not an intact receipt, 4 other tasks, broken-off\n"
      "replies, or digests under different keys.");
  sub->callback([options, common, &action] {
    action = [options, common] {
      return answer(*common, [&] {
        receipts::CompareOptions compare;
        if (!options->redaction_key.empty()) {
          compare.redaction_key = receipts::read_redaction_key(options->redaction_key);
        }
        return receipts::compare(receipts::read_receipt(find_receipt(options->a, *common)),
                                 receipts::read_receipt(find_receipt(options->b, *common)),
                                 compare);
      });
    };
  });
}

void add_export(CLI::App& app, Action& action, const Verbs& common) {
  struct Options {
    std::string file, stem;
    receipts::ExportForm form = receipts::ExportForm::dsse;
  };
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("export", "Write a receipt in a form that other tools read");
  sub->add_option("FILE", options->file, "Receipt, PACK#N or the start of a rid")->required();
  using receipts::ExportForm;
  add_choice<ExportForm>(
      *sub, "--to", options->form,
      {{"dsse", ExportForm::dsse}, {"bundle", ExportForm::bundle}, {"intoto", ExportForm::intoto}},
      "The envelope, a Sigstore bundle for cosign, or the Statement")
      ->required();
  sub->add_option("-o,--output", options->stem,
                  "Start of the new files' names (FILE without .bolt.jsonl)")
      ->type_name("STEM");
  add_verb_options(*sub, *common);
  sub->footer(
      "Example: bolt receipt export --to bundle run.bolt.jsonl\n"
      "Exit status: 0 written, 3 not an intact receipt, 5 not signed.");
  sub->callback([options, common, &action] {
    action = [options, common] {
      return answer(*common, [&] {
        const receipts::Receipt receipt =
            receipts::read_receipt(find_receipt(options->file, *common));
        std::string stem = options->stem;
        if (stem.empty()) {
          stem = options->file;
          const std::size_t suffix = std::string(receipts::kReceiptSuffix).size();
          if (receipts::is_receipt_name(stem)) {
            stem.resize(stem.size() - suffix);
          } else {
            stem = "receipt-" + receipts::short_hex(receipt.rid);
          }
        }
        return receipts::export_receipt(receipt, options->form, stem);
      });
    };
  });
}

}  // namespace bolt
