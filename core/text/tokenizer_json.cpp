// Reads tokenizer.json (Hugging Face `tokenizers`, version 1.0) into a Tokenizer. Everything that
// would change an id is honoured or refused by name; nothing is guessed.
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/text/tokenizer.h"
#include "core/text/utf8.h"

namespace bolt {
namespace {

namespace dom = simdjson::dom;

// GPT-2's alphabet, which writes each byte as one printable character: those of Latin-1 that print
// stand for themselves, the other 68 bytes are U+0100 and up, in order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    byte_of_.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      byte_of_[static_cast<std::size_t>(prints ? byte : next++)] = static_cast<std::int16_t>(byte);
    }
  }
  // Appends the bytes that `written` stands for; false if a character is not of the alphabet.
  bool decode(std::string_view written, std::string& out) const {
    for (std::size_t at = 0; at < written.size();) {
      const char32_t code = next_code_point(written, at);
      if (code >= byte_of_.size() || byte_of_[code] < 0) return false;
      out += static_cast<char>(byte_of_[code]);
    }
    return true;
  }

 private:
  std::array<std::int16_t, 0x144> byte_of_;
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

// For messages: at most 40 bytes, without control characters.
std::string shown(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 40)) out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  if (text.size() > 40) out += "...";
  return lossy_utf8(out + "\"");
}

}  // namespace

class TokenizerReader {
 public:
  explicit TokenizerReader(const std::string& name) : name_(name) {}

  std::unique_ptr<Tokenizer> read(std::string_view json) {
    dom::parser parser;
    dom::object file;
    try {
      file = parser.parse(json.data(), json.size()).get_object();
    } catch (const simdjson::simdjson_error& e) {
      fail(fmt::format("is not a JSON object: {}", simdjson::error_message(e.error())));
    }
    try {
      tokenizer_.reset(new Tokenizer);
      dom::element normalizer;
      if (find(file, "normalizer", normalizer)) check_normalizer(normalizer);
      read_pre_tokenizer(required(file, "pre_tokenizer", "object"));
      read_model(object(required(file, "model", "object"), "model"));
      read_added_tokens(file);
      dom::element post_processor;
      if (find(file, "post_processor", post_processor)) {
        read_post_processor(object(post_processor, "post_processor"));
      }
      // "truncation" and "padding" shape batches for training; a prompt is never cut or padded.
    } catch (const simdjson::simdjson_error& e) {
      fail(fmt::format("is malformed: {}", simdjson::error_message(e.error())));
    }
    return std::move(tokenizer_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Exit::input, fmt::format("{}: {}", name_, what));
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    fail(fmt::format("{} is not supported; bolt reads byte-level BPE as Nemotron ships it", what));
  }

  // Present and not null.
  static bool find(dom::object object, std::string_view key, dom::element& out) {
    return object[key].get(out) == simdjson::SUCCESS && !out.is_null();
  }
  dom::element required(dom::object object, std::string_view key, std::string_view kind) const {
    dom::element out;
    if (!find(object, key, out)) fail(fmt::format("\"{}\" is missing, expected an {}", key, kind));
    return out;
  }
  dom::object object(dom::element element, std::string_view what) const {
    if (!element.is_object()) fail(fmt::format("{} is not an object", what));
    return element.get_object();
  }
  dom::array array(dom::element element, std::string_view what) const {
    if (!element.is_array()) fail(fmt::format("{} is not an array", what));
    return element.get_array();
  }
  std::string_view text(dom::element element, std::string_view what) const {
    if (!element.is_string()) fail(fmt::format("{} is not a string", what));
    return element.get_string();
  }
  std::string_view type_of(dom::object part, std::string_view what) const {
    return text(required(part, "type", "string"), fmt::format("{}.type", what));
  }
  bool flag(dom::object part, std::string_view key, bool otherwise) const {
    dom::element out;
    if (!find(part, key, out)) return otherwise;
    if (!out.is_bool()) fail(fmt::format("\"{}\" is not true or false", key));
    return out.get_bool();
  }
  int id(dom::element element, const std::string& what) const {
    std::uint64_t value = 0;
    if (element.get(value) != simdjson::SUCCESS) fail(what + " has no id that counts from 0");
    if (value >= kTokensMax) {
      fail(fmt::format("{} has id {}, expected one below {}", what, value, kTokensMax));
    }
    return static_cast<int>(value);
  }

  void check_normalizer(dom::element element) {
    const dom::object part = object(element, "normalizer");
    const std::string_view type = type_of(part, "normalizer");
    if (type != "Sequence") unsupported(fmt::format("normalizer {}", shown(type)));
    for (dom::element inner : array(required(part, "normalizers", "array"), "normalizers")) {
      check_normalizer(inner);
    }
  }

  void read_pre_tokenizer(dom::element element) {
    const dom::object part = object(element, "pre_tokenizer");
    const std::string_view type = type_of(part, "pre_tokenizer");
    if (type != "Sequence") unsupported(fmt::format("pre_tokenizer {} alone", shown(type)));
    std::vector<dom::object> steps;
    for (dom::element step :
         array(required(part, "pretokenizers", "array"), "pre_tokenizer.pretokenizers")) {
      steps.push_back(object(step, "a step of pre_tokenizer"));
      const std::string_view step_type = type_of(steps.back(), "a step of pre_tokenizer");
      if (steps.size() > 2 || step_type != (steps.size() == 1 ? "Split" : "ByteLevel")) {
        unsupported(fmt::format("step {} of pre_tokenizer, {},", steps.size(), shown(step_type)));
      }
    }
    if (steps.size() != 2) unsupported("a pre_tokenizer other than Split then ByteLevel");

    const std::string_view behavior =
        text(required(steps[0], "behavior", "string"), "Split.behavior");
    if (behavior != "Isolated") unsupported(fmt::format("Split.behavior {}", shown(behavior)));
    if (flag(steps[0], "invert", false)) unsupported("Split.invert");
    dom::element regex;
    if (!find(object(required(steps[0], "pattern", "object"), "Split.pattern"), "Regex", regex)) {
      unsupported("a Split.pattern that is not a Regex");
    }
    tokenizer_->pre_tokenizer_ =
        std::make_unique<PreTokenizer>(text(regex, "Split.pattern.Regex"), name_);
    if (flag(steps[1], "add_prefix_space", true)) unsupported("ByteLevel.add_prefix_space");
    if (flag(steps[1], "use_regex", true)) unsupported("ByteLevel.use_regex");
  }

  void read_model(dom::object model) {
    const std::string_view type = type_of(model, "model");
    if (type != "BPE") unsupported(fmt::format("model {}", shown(type)));
    dom::element option;
    if (find(model, "dropout", option)) unsupported("model.dropout");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (find(model, key, option) && !text(option, key).empty()) {
        unsupported(fmt::format("model.{}", key));
      }
    }
    if (flag(model, "byte_fallback", false)) unsupported("model.byte_fallback");
    tokenizer_->ignore_merges_ = flag(model, "ignore_merges", false);
    read_vocabulary(object(required(model, "vocab", "object"), "model.vocab"));
    read_merges(array(required(model, "merges", "array"), "model.merges"));
  }

  void read_vocabulary(dom::object vocab) {
    Vocabulary& vocabulary = tokenizer_->vocabulary_;
    n_vocab_ = static_cast<int>(std::min<std::size_t>(vocab.size(), kTokensMax));
    vocabulary.reserve(n_vocab_);
    std::string bytes;
    for (const dom::key_value_pair field : vocab) {
      std::uint64_t declared = kTokensMax;
      if (field.value.get(declared) != simdjson::SUCCESS || declared >= kTokensMax) {
        id(field.value, fmt::format("token {}", shown(field.key)));  // says what is wrong
      }
      const int id = static_cast<int>(declared);
      bytes.clear();
      // A token with a character outside of the alphabet cannot come out of a merge; it stands for
      // itself, as in an added token.
      const bool merges = byte_alphabet().decode(field.key, bytes);
      add(merges ? std::string_view(bytes) : field.key, id, merges, field.key);
      if (!merges && !literal_ids_.emplace(field.key, id).second) {
        fail(fmt::format("token {} is declared twice", shown(field.key)));
      }
    }
    for (int byte = 0; byte < 256; ++byte) {
      const char as_char = static_cast<char>(byte);
      const int id = vocabulary.find({&as_char, 1});
      if (id < 0) fail(fmt::format("model.vocab lacks the single byte 0x{:02X}", byte));
      tokenizer_->byte_ids_[byte] = id;
    }
  }

  void add(std::string_view bytes, int id, bool indexed, std::string_view written) {
    switch (tokenizer_->vocabulary_.add(bytes, id, indexed)) {
      case Vocabulary::Added::yes:
        return;
      case Vocabulary::Added::id_taken:
        fail(fmt::format("token {} has id {}, which another token has", shown(written), id));
      case Vocabulary::Added::bytes_taken:
        fail(fmt::format("token {} is declared twice", shown(written)));
    }
  }

  // Each merge is "left right" or ["left", "right"].
  void read_merges(dom::array merges) {
    std::size_t n_merges = 0;
    for (const dom::element merge : merges) {
      (void)merge;
      ++n_merges;
    }
    if (n_merges > kMergesMax) {
      fail(fmt::format("model.merges has {} entries, at most {} are supported", n_merges,
                       kMergesMax));
    }
    tokenizer_->merges_.reserve(static_cast<int>(n_merges));
    // The tables are larger than the near caches, so that looking one merge up at a time would wait
    // for memory each time: a batch is hashed first, then found.
    std::vector<Merge> batch;
    for (const dom::element merge : merges) {
      batch.push_back(
          split_merge(merge, tokenizer_->merges_.n_merges() + static_cast<int>(batch.size())));
      if (batch.size() == kMergeBatch) add_merges(batch);
    }
    add_merges(batch);
  }

  // Both sides' bytes, joined, and their hashes.
  struct Merge {
    std::string bytes;
    std::size_t cut = 0;  // bytes of the left side
    std::uint32_t left_hash = 0, right_hash = 0;

    std::string_view left() const { return std::string_view(bytes).substr(0, cut); }
    std::string_view right() const { return std::string_view(bytes).substr(cut); }
  };
  static constexpr std::size_t kMergeBatch = 32;

  Merge split_merge(dom::element merge, int rank) const {
    std::string_view left, right, joined;
    if (merge.get(joined) == simdjson::SUCCESS) {
      const std::size_t space = joined.find(' ');
      if (space != joined.npos && joined.find(' ', space + 1) == joined.npos) {
        left = joined.substr(0, space);
        right = joined.substr(space + 1);
      }
    } else if (dom::array pair; merge.get(pair) == simdjson::SUCCESS && pair.size() == 2) {
      if (pair.at(0).get(left) || pair.at(1).get(right)) left = {};
    }
    if (left.empty() || right.empty()) {
      fail(fmt::format("model.merges[{}] is not a pair of tokens", rank));
    }
    Merge out;
    bool known = byte_alphabet().decode(left, out.bytes);
    out.cut = out.bytes.size();
    known = byte_alphabet().decode(right, out.bytes) && known;
    if (!known) {
      fail(fmt::format("model.merges[{}], {} and {}, has a character that stands for no byte", rank,
                       shown(left), shown(right)));
    }
    const Vocabulary& vocabulary = tokenizer_->vocabulary_;
    out.left_hash = hash_bytes(out.left());
    out.right_hash = hash_bytes(out.right());
    vocabulary.prefetch(out.left_hash);
    vocabulary.prefetch(out.right_hash);
    return out;
  }

  void add_merges(std::vector<Merge>& batch) {
    const Vocabulary& vocabulary = tokenizer_->vocabulary_;
    MergeTable& merges = tokenizer_->merges_;
    for (const Merge& merge : batch) {
      const int left = vocabulary.find(merge.left(), merge.left_hash);
      const int right = vocabulary.find(merge.right(), merge.right_hash);
      // Trainers number tokens in the order of their merges, so the last result or the next id is
      // nearly always right.
      int joined = last_joined_;
      if (vocabulary.bytes_of(joined) != merge.bytes) ++joined;
      if (vocabulary.bytes_of(joined) != merge.bytes) joined = vocabulary.find(merge.bytes);
      if (left < 0 || right < 0 || joined < 0) {
        const std::string_view missing = left < 0    ? merge.left()
                                         : right < 0 ? merge.right()
                                                     : std::string_view(merge.bytes);
        fail(fmt::format("model.merges[{}] needs the token {}, which model.vocab lacks",
                         merges.n_merges(), shown(missing)));
      }
      merges.add(left, right, joined);
      last_joined_ = joined;
    }
    batch.clear();
  }

  void read_added_tokens(dom::object file) {
    dom::element list;
    std::vector<AddedToken> first, second;
    std::vector<int> special;
    if (find(file, "added_tokens", list)) {
      for (const dom::element entry : array(list, "added_tokens")) {
        AddedToken token = added_token(object(entry, "an entry of added_tokens"));
        declare(token);
        if (token.special) special.push_back(token.id);
        (token.normalized ? second : first).push_back(std::move(token));
      }
    }
    tokenizer_->special_.resize(static_cast<std::size_t>(tokenizer_->n_tokens()));
    for (const int id : special) tokenizer_->special_[static_cast<std::size_t>(id)] = true;
    tokenizer_->first_matcher_ = std::make_unique<AddedTokenMatcher>(std::move(first));
    tokenizer_->second_matcher_ = std::make_unique<AddedTokenMatcher>(std::move(second));
  }

  AddedToken added_token(dom::object entry) const {
    AddedToken token;
    token.content = text(required(entry, "content", "string"), "an added token's content");
    if (token.content.empty()) fail("an added token has no content");
    token.id =
        id(required(entry, "id", "integer"), fmt::format("added token {}", shown(token.content)));
    token.special = flag(entry, "special", false);
    token.single_word = flag(entry, "single_word", false);
    token.lstrip = flag(entry, "lstrip", false);
    token.rstrip = flag(entry, "rstrip", false);
    token.normalized = flag(entry, "normalized", !token.special);
    return token;
  }

  // The model's vocabulary may hold an added token too, then under the same id.
  void declare(const AddedToken& token) {
    if (!tokenizer_->added_ids_.emplace(token.content, token.id).second) {
      fail(fmt::format("added token {} is declared twice", shown(token.content)));
    }
    const Vocabulary& vocabulary = tokenizer_->vocabulary_;
    std::string bytes;
    int known = -1;  // its id in model.vocab
    if (byte_alphabet().decode(token.content, bytes)) {
      known = vocabulary.find(bytes);
    } else if (const auto literal = literal_ids_.find(token.content);
               literal != literal_ids_.end()) {
      known = literal->second;
    }
    if (known == token.id) {
      max_added_ = std::max(max_added_, token.id);
      return;
    }
    if (known >= 0) {
      fail(fmt::format("added token {} has id {}, expected {} as in model.vocab",
                       shown(token.content), token.id, known));
    }
    // `tokenizers` numbers the others itself, whatever the file says; both must agree.
    const int expected = std::max(n_vocab_, max_added_ + 1);
    if (token.id != expected) {
      fail(fmt::format("added token {} has id {}, expected {}, the next one", shown(token.content),
                       token.id, expected));
    }
    add(token.content, token.id, false, token.content);
    max_added_ = token.id;
  }

  void read_post_processor(dom::object part) {
    const std::string_view type = type_of(part, "post_processor");
    if (type == "ByteLevel") return;  // moves offsets only
    if (type == "Sequence") {
      for (const dom::element inner :
           array(required(part, "processors", "array"), "post_processor.processors")) {
        read_post_processor(object(inner, "a step of post_processor"));
      }
      return;
    }
    if (type != "TemplateProcessing") unsupported(fmt::format("post_processor {}", shown(type)));
    const dom::object specials =
        object(required(part, "special_tokens", "object"), "post_processor.special_tokens");
    std::vector<int> prefix, suffix;
    bool seen_text = false;
    for (const dom::element step :
         array(required(part, "single", "array"), "post_processor.single")) {
      dom::element inner;
      const dom::object entry = object(step, "a step of post_processor.single");
      if (find(entry, "Sequence", inner)) {
        if (seen_text) unsupported("a post_processor that repeats the text");
        seen_text = true;
        continue;
      }
      if (!find(entry, "SpecialToken", inner)) {
        fail("a step of post_processor.single is neither Sequence nor SpecialToken");
      }
      const std::string_view content =
          text(required(object(inner, "SpecialToken"), "id", "string"), "SpecialToken.id");
      const dom::object special =
          object(required(specials, content, "object"), "a post_processor.special_tokens entry");
      for (const dom::element ids : array(required(special, "ids", "array"), "its ids")) {
        const int id = this->id(ids, fmt::format("post_processor token {}", shown(content)));
        if (!tokenizer_->vocabulary_.has(id)) {
          fail(fmt::format("post_processor adds id {}, which no token has", id));
        }
        (seen_text ? suffix : prefix).push_back(id);
      }
    }
    if (!seen_text) fail("post_processor.single leaves the text out");
    // Steps wrap what the steps before them gave.
    auto& all_prefix = tokenizer_->prefix_ids_;
    all_prefix.insert(all_prefix.begin(), prefix.begin(), prefix.end());
    tokenizer_->suffix_ids_.insert(tokenizer_->suffix_ids_.end(), suffix.begin(), suffix.end());
  }

  const std::string& name_;
  std::unique_ptr<Tokenizer> tokenizer_;
  int n_vocab_ = 0;     // entries of model.vocab
  int max_added_ = -1;  // largest id of an added token so far
  int last_joined_ = 0;
  std::unordered_map<std::string, int> literal_ids_;  // of model.vocab, outside of the alphabet
};

std::unique_ptr<Tokenizer> Tokenizer::from_json(std::string_view json, const std::string& name) {
  return TokenizerReader(name).read(json);
}

}  // namespace bolt
