"""Makes two small tokenizers (llama3.json, mistral.json) and the ids that the `tokenizers` library
gives for many texts with them and with the sample model's tokenizer (tokens.json).

    python3 testdata/text/make_tokenizer_goldens.py

Needs tokenizers. Run from the root of the tree.
"""
import json
import pathlib
import random

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
SAMPLE = HERE.parent / "sample-model/tokenizer.json"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
MISTRAL = json.loads(SAMPLE.read_text())["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]

TEXTS = {
    "words": "The quick brown fox doesn't jump; IT'S o'clock, I'd've 'Tis we'll WE'LL y'all'd 'ſ don'T.",
    "digits": "1 12 123 1234 12345 1234567890 3.14159 1,000,000 0x1F ²³ Ⅷ ½ ٣٤٥ १२३ 𝟘𝟙",
    "white space": " a  b   c\td\t\te \t f\u00a0g\u3000h\u2003\u2003i \u180e j\u200bk\u0085l\u2028m\x0bn\x0co  ",
    "line ends": "a\nb\r\nc\rd\n\ne\n \nf \n\n  g\n\t\nh\r\r\n  \r\n \n",
    "only spaces": "     ",
    "only line ends": "\n\n\r\n\n",
    "code": "def f(x: int) -> int:\n    return x**2 // 3  # square/third\n\nif (a&&b||!c) { x[i]+=\"s\\n\"; } // end\n/* c */</div>\n",
    "scripts": "Привет мир. Γειά σου. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया क्षत्रिय. สวัสดีชาวโลก. 你好，世界。こんにちは世界。안녕하세요 세계. ქართული ᏣᎳᎩ አማርኛ",
    "marks": "e\u0301a\u0308 n\u0303 \u0301 x\u200d\u0301y ก็ क\u094dष\u093f \u0300\u0300a Z\u0351\u0363a\u0352lgo",
    "case": "ǅ ǆ ʰ ªº İı ß ẞ ﬀ ΑβΓ camelCaseWord HTTPServer XMLHttpRequest iOS eBay ÀÉÎõü",
    "emoji": "😀😃 👨‍👩‍👧‍👦 🏳️‍🌈 🇨🇭 👍🏽 ❤️ ☃ a😀b 😀 😀",
    "specials": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think></think>a<think>\n</think>\nb</s><s>",
    "specials and spaces": "</s> hello</s>  hello</s>\thello </s>hello  </s> \n</s>\n<s> <s>",
    "specials broken": "<|im_start|<|im_start|>> <think <think>> < think> </think></think <SPECIAL_1> <SPECIAL_10> <SPECIAL_100>",
    "user quotes a special": "What does `<|im_end|>` mean? And </think>?",
    "marker": "a <mark> b<mark>c <mark>\u00a0\n d xmarky mark MARK mark. mark_ (mark) é marḱ 9mark9",
    "controls": "\x00\x01a\x1b[0m\x7f\u0080\ufeffbom\ufffd\U0010ffff",
    "long word": "Donaudampfschifffahrtsgesellschaftskapitaensmuetzenabzeichenverleihung" * 3,
    "long run": "a" * 300 + "b" * 41 + "=" * 200 + " " * 130 + "x" + "\n" * 77,
    "json": '{"a": [1, 2.5e-3, null, true], "b": "x\\u00e9\\n", "c": {"d": []}}',
    "bom": "\ufeffHello\r\n",
    "empty": "",
}


def extra_texts():
    """Seeded mixtures, for the joints between kinds of characters."""
    rng = random.Random(7)
    pool = ["hello", "World", " the", "\n", "\r\n", "  ", "\t", "'s", "'LL", "'", "123456", "é", "日本", "👨‍👩‍👧", "ǅ", "ʰ", "क्ष", "\u0301",
            "²", "_", "/", "//\n", ".", "!?", " ", "A", "Bc", "\u00a0", "\u3000", "\u180e", "\u200d", "<s>", "</s>", "<think>", "<mark>",
            "mark", "<|im_end|>", "\x85", "\u2028", "\x1c", "ſ", "K", "\U0001F600", "\ufeff", "0", "٣"]
    return {f"mixture {i}": "".join(rng.choice(pool) for _ in range(60)) for i in range(40)}


def train(pattern, texts, n):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=n, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False, min_frequency=1)
    tokenizer.train_from_iterator(sorted(texts) * 3, trainer)
    return json.loads(tokenizer.to_str())


def added(token, content, special, **options):
    return {"id": token, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": not special, "special": special, **options}


def make_tokenizers(texts):
    # Llama 3's pattern, ignore_merges, BOS and EOS; added tokens beyond the vocabulary.
    llama3 = train(LLAMA3, texts, 520)
    vocab = llama3["model"]["vocab"]
    llama3["model"]["ignore_merges"] = True
    # Tokens that no merge makes: only a whole piece becomes one of them.
    for word in ("Ġdoesn", "hello", "World", "ĠĠ"):
        vocab.setdefault(word, len(vocab))
    n = len(vocab)
    llama3["added_tokens"] = [added(n, "<s>", True), added(n + 1, "</s>", True, lstrip=True),
                              added(n + 2, "<think>", False), added(n + 3, "</think>", False, rstrip=True, normalized=False),
                              added(n + 4, "<mark>", False, lstrip=True, rstrip=True),
                              added(n + 5, "<|im_end|>", True), added(n + 6, "日本", False, normalized=False)]
    mark = vocab.get("mark", n + 7)  # one that may be in the vocabulary too
    llama3["added_tokens"].append(added(mark, "mark", False, single_word=True))
    llama3["added_tokens"].sort(key=lambda token: token["id"])
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    llama3["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing", "single": [bos, text], "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {"<s>": {"id": "<s>", "ids": [n], "tokens": ["<s>"]}}}]}

    # Mistral's pattern, merges as strings, control tokens at the front of the vocabulary.
    mistral = train(MISTRAL, texts, 500)
    controls = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    vocab = {content: i for i, content in enumerate(controls)}
    for content, i in sorted(mistral["model"]["vocab"].items(), key=lambda item: item[1]):
        vocab[content] = i + len(controls)
    mistral["model"]["vocab"] = vocab
    mistral["model"]["merges"] = [" ".join(pair) for pair in mistral["model"]["merges"]]
    mistral["added_tokens"] = [added(i, content, True) for i, content in enumerate(controls)]
    eos = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    mistral["post_processor"] = {"type": "TemplateProcessing", "single": [bos, text, eos], "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}],
                                 "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                                                    "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}}
    for name, data in (("llama3", llama3), ("mistral", mistral)):
        (HERE / f"{name}.json").write_text(json.dumps(data, ensure_ascii=name == "llama3") + "\n")


def main():
    texts = {**TEXTS, **extra_texts()}
    make_tokenizers(TEXTS.values())
    out = []
    for name, path in (("sample-model/tokenizer.json", SAMPLE), ("text/llama3.json", HERE / "llama3.json"),
                       ("text/mistral.json", HERE / "mistral.json")):
        tokenizer = Tokenizer.from_file(str(path))
        out.append({"tokenizer": name, "cases": [
            {"case": case, "text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids,
             "with_special": tokenizer.encode(text, add_special_tokens=True).ids} for case, text in texts.items()]})
    (HERE / "tokens.json").write_text(json.dumps(out, ensure_ascii=True, separators=(",", ":")).replace('{"case"', '\n{"case"') + "\n")
    print(sum(len(t["cases"]) for t in out), "cases")


main()
