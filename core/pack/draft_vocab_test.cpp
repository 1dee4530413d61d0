#include "core/pack/draft_vocab.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/output.h"
#include "core/base/testing/caught.h"
#include "core/pack/convert.h"
#include "core/pack/testing/tiny_checkpoint.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

using testing::caught;
using testing::TemporaryFolder;

const std::string kSample = BOLT_SOURCE_DIR "/testdata/sample-model";

std::unique_ptr<Tokenizer> sample_tokenizer() {
  return Tokenizer::from_json(read_file(kSample + "/tokenizer.json"), "tokenizer.json");
}

void write(const std::string& path, const std::string& text) {
  write_file_atomically(path, text, /*replace=*/true);
}

// Code of element (row, column) of a tiled weight, by its address alone.
std::uint32_t element(const Weight& w, int row, int column) {
  const std::int64_t block =
      std::int64_t{row / kTileRows} * n_groups(w.n_cols) + column / kGroupCols;
  return packed_code(w.format, w.data + block * block_bytes(w.format), row % kTileRows,
                     column % kGroupCols);
}

}  // namespace

TEST_CASE("draft vocabulary: the most frequent ids, ties and the rest by id, stop ids always") {
  const TemporaryFolder folder;
  const auto tokenizer = sample_tokenizer();
  const std::string text = "one two two three three three\n";
  write(folder / "a.txt", text);
  write(folder / "b.txt", text);
  const std::vector<int> stops = {2, 11};
  const std::vector<int> ids =
      frequent_ids(*tokenizer, {folder / "a.txt", folder / "b.txt"}, 8, stops);
  REQUIRE(ids.size() == 8);
  CHECK(std::is_sorted(ids.begin(), ids.end()));
  std::vector<int> expected = {2, 11};
  for (const int id : tokenizer->encode(text, false)) {
    if (std::find(expected.begin(), expected.end(), id) == expected.end()) expected.push_back(id);
  }
  for (const int id : expected) CHECK(std::find(ids.begin(), ids.end(), id) != ids.end());
  // Ids that no text holds fill up from the lowest.
  CHECK(frequent_ids(*tokenizer, {folder / "a.txt"}, tokenizer->n_tokens(), stops).size() ==
        static_cast<std::size_t>(tokenizer->n_tokens()));
  CHECK(frequent_ids(*tokenizer, {folder / "a.txt"}, static_cast<int>(expected.size()) + 1,
                     stops)[0] == 0);
  CHECK(caught([&] { frequent_ids(*tokenizer, {folder / "a.txt"}, 1, stops); }).code ==
        Exit::usage);
  write(folder / "bad.txt", "ok\n\xff\n");
  CHECK(caught([&] { frequent_ids(*tokenizer, {folder / "bad.txt"}, 8, stops); }).code ==
        Exit::input);
}

TEST_CASE("draft vocabulary: files of ids are checked") {
  const TemporaryFolder folder;
  write(folder / "v.json", "[7, 3, 11]");
  CHECK(read_draft_vocab(folder / "v.json", 12) == std::vector<int>{3, 7, 11});
  CHECK(draft_vocab_json(std::vector<int>{3, 7, 11}) == "[3,7,11]\n");
  for (const char* bad : {"[]", "[3, 3]", "[12]", "[-1]", "[1.5]", "{\"a\": 1}", "[1,"}) {
    write(folder / "v.json", bad);
    CHECK_MESSAGE(caught([&] { read_draft_vocab(folder / "v.json", 12); }).code == Exit::input,
                  bad);
  }
}

TEST_CASE("draft vocabulary: its head holds lm_head's rows; a shifted row would show") {
  const TemporaryFolder folder;
  write(folder / "v.json", "[2, 11, 40, 41, 42, 500, 1234, 3199]");
  ConvertOptions options;
  options.source = kSample;
  options.target = folder / "v.bolt";
  options.draft_vocab_file = folder / "v.json";
  const ConvertFacts facts = convert(options);
  CHECK(facts.n_draft_vocab == 8);
  const auto package = Package::open(options.target);
  const DraftHead& draft = *package->graph().draft;
  REQUIRE(draft.vocab_ids == std::vector<int>{2, 11, 40, 41, 42, 500, 1234, 3199});
  const Weight &head = package->graph().lm_head, &part = draft.vocab_head;
  int n_shifted = 0;
  for (int r = 0; r < part.n_rows; ++r) {
    const int id = draft.vocab_ids[static_cast<std::size_t>(r)];
    for (int k = 0; k < part.n_cols; ++k) {
      CHECK(element(part, r, k) == element(head, id, k));
      n_shifted += element(part, r, k) != element(head, (id + 1) % head.n_rows, k);
    }
  }
  CHECK(n_shifted > part.n_rows * part.n_cols / 2);

  // The copies are no parameters of the model.
  options.target = folder / "plain.bolt";
  options.draft_vocab_file.clear();
  options.verify = false;
  CHECK(convert(options).n_parameters == facts.n_parameters);

  options.target = folder / "none.bolt";
  options.draft_vocab_file = folder / "v.json";
  options.without_mtp = true;
  CHECK(caught([&] { convert(options); }).code == Exit::usage);
}

}  // namespace bolt
