"""Writes variants/*.json: small tokenizers of each kind, with encodings and decodings by the Rust reference.

Run in this folder: pip install tokenizers==0.23.* && python make_variants.py
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = """
func main() { fmt.Println("hello, world") } // it's what we'll have: don't, I'm, you've, they'd
for i := 0; i < 1234567; i++ { if err != nil { return fmt.Errorf("%s: %w", name, err) } }
The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX. Pack my box with five dozen liquor jugs.
Der schnelle braune Fuchs springt über den faulen Hund; größer, schöner, Straße. Élève, café, naïve, déjà vu.
Съешь же ещё этих мягких французских булок, да выпей чаю. Η γρήγορη καφέ αλεπού.
敏捷的棕色狐狸跳过懒狗。素早い茶色の狐がのろまな犬を飛び越える。빠른 갈색 여우.
\tindent\n\t\tindent twice\r\nwindows\r\n\r\n   spaces   between   words
""".strip().split("\n") * 3

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = "|".join([
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?[\p{P}\p{S}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def split(regex, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(regex), behavior, invert)


def byte_level(**kwargs):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **kwargs})


def template(begin, end=""):
    return lambda t: processors.TemplateProcessing(
        single=f"{begin} $A {end}".strip(), pair=None,
        special_tokens=[(x, t.token_to_id(x)) for x in (begin, end) if x])


SPECIAL = [AddedToken("<s>", special=True, normalized=False), AddedToken("</s>", special=True, normalized=False)]
ADDED = SPECIAL + [
    AddedToken("<a>", normalized=False), AddedToken("<a><b>", normalized=False),
    AddedToken("word", single_word=True, normalized=True), AddedToken("<l>", lstrip=True, normalized=False),
    AddedToken("<r>", rstrip=True, normalized=False), AddedToken("<lr>", lstrip=True, rstrip=True, normalized=True),
    AddedToken("[x y]", normalized=True), AddedToken("é", normalized=True), AddedToken("｜end▁of｜", special=True, normalized=False),
]
BYTES = [f"<0x{b:02X}>" for b in range(256)]
SPM = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
GEMMA = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def train(pre, decoder, normalizer=None, post=None, added=SPECIAL, fallback=False, unk=None, fuse=False, ignore=False, prefix=None):
    t = Tokenizer(models.BPE(unk_token=unk, byte_fallback=fallback, fuse_unk=fuse))
    if normalizer is not None:
        t.normalizer = normalizer
    if pre is not None:
        t.pre_tokenizer = pre
    initial = pre_tokenizers.ByteLevel.alphabet() if isinstance(decoder, decoders.ByteLevel) else []
    special = ([unk] if unk else []) + (BYTES if fallback else [])
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=len(special) + 620, initial_alphabet=initial, special_tokens=special, limit_alphabet=256, show_progress=False))
    # Bytes and the unknown token are the model's only: not to be found in texts.
    f = json.loads(t.to_str())
    f["added_tokens"] = []
    f["model"]["ignore_merges"] = ignore
    t = Tokenizer.from_str(json.dumps(f))
    t.add_tokens(added)
    t.decoder = decoder
    if post:
        t.post_processor = post(t)
    return t


BL = decoders.ByteLevel()
VARIANTS = {
    "gpt2": train(pre_tokenizers.ByteLevel(add_prefix_space=False), BL, added=ADDED),
    "gpt2-prefix-space": train(pre_tokenizers.ByteLevel(add_prefix_space=True), BL),
    "llama3": train(pre_tokenizers.Sequence([split(LLAMA3), byte_level()]), BL, ignore=True,
                    post=lambda t: processors.Sequence([processors.ByteLevel(), template("<s>")(t)])),
    "qwen2": train(pre_tokenizers.Sequence([split(QWEN2), byte_level()]), BL, normalizer=normalizers.NFC(), added=ADDED,
                   post=lambda t: processors.ByteLevel()),
    "o200k": train(pre_tokenizers.Sequence([split(O200K), byte_level()]), BL),
    "deepseek": train(pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK), byte_level()]), BL, added=ADDED),
    "starcoder": train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]), BL),
    "digits": train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), byte_level()]), BL),
    "removed": train(pre_tokenizers.Sequence([split(r"\s+", "removed"), byte_level()]), BL),
    "contiguous": train(pre_tokenizers.Sequence([split(r"[aeiou ]", "contiguous"), byte_level()]), BL),
    "previous": train(pre_tokenizers.Sequence([split(r"[aeiou ]", "merged_with_previous"), byte_level()]), BL),
    "next": train(pre_tokenizers.Sequence([split(r"[aeiou ]", "merged_with_next"), byte_level()]), BL),
    "inverted": train(pre_tokenizers.Sequence([split(r"\p{L}+", "removed", invert=True), byte_level()]), BL),
    "llama2": train(None, SPM, normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
                    added=ADDED, fallback=True, unk="<unk>", fuse=True, post=template("<s>", "</s>")),
    "gemma": train(pre_tokenizers.Split(" ", "merged_with_previous"), GEMMA, normalizer=normalizers.Replace(" ", "▁"),
                   fallback=True, unk="<unk>", post=template("<s>")),
    "metaspace-always": train(pre_tokenizers.Metaspace("▁", "always"), decoders.Metaspace("▁", "always"), unk="<unk>", fuse=True),
    "metaspace-first": train(pre_tokenizers.Metaspace("▁", "first"), decoders.Metaspace("▁", "first"), added=ADDED, unk="<unk>"),
    "metaspace-whole": train(pre_tokenizers.Metaspace("▁", "first", split=False), SPM, added=SPECIAL, fallback=True, unk="<unk>"),
    "metaspace-never": train(pre_tokenizers.Metaspace("▁", "never"), decoders.Metaspace("▁", "never"), unk="<unk>"),
    "nfkd": train(byte_level(use_regex=True), BL, normalizer=normalizers.Sequence([normalizers.NFKD(), normalizers.Replace(Regex(r"\s+"), " ")]), added=ADDED),
}
TEXTS = CORPUS[:9] + [
    "", " ", "  ", "\n", "<s>", "<s>hello</s>", "a<a><b>c<a>d", " word swords word, word_ passwordé word", "x <l> y <r> z <lr>  w",
    "  <l>  <r>  ", "[x y][x  y]", "café cafe\u0301 é", "｜end▁of｜ tail", "▁▁ a ▁b", "\u00a0\u2003wide", "ﬁ ½ Å Å", "👩‍👩‍👧 🙂",
    "123456 1 22 333 4444", "I'LL don'T 'ſ 'K", "<0x41> <unk>", "x\x00y\x1fz", "\u200b\u00ad\ufeff", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]
PARTS = ["the", " quick", " ", "  ", "\n", "\r\n", "1", "234", "é", "e\u0301", "本", "狐", "ß", "'s", "'LL", "<s>", "<a>", "<b>", "<l>", "<r>", "<lr>", "word",
         "[x y]", "_", ".", "\t", "🙂", "ю", "Ελ", "▁", "½", "\u00a0", "aei", "X"]


def whole_runs(t, ids):
    """Whether each run of byte tokens is valid UTF-8; where one is not, this project keeps the whole code points in it and the reference does not."""
    run = b""
    for i in ids + [None]:
        name = t.id_to_token(i) if i is not None else ""
        if name in BYTES:
            run += bytes([int(name[3:5], 16)])
            continue
        try:
            run.decode()
        except UnicodeDecodeError:
            return False
        run = b""
    return True


for name, t in VARIANTS.items():
    random.seed(name)
    texts = TEXTS + ["".join(random.choice(PARTS) for _ in range(random.randint(1, 16))) for _ in range(120)]
    encode = []
    for text in texts:
        ids = t.encode(text, add_special_tokens=False).ids
        encode.append({"text": text, "ids": ids, "special": t.encode(text).ids,
                       "decoded": t.decode(ids, skip_special_tokens=False), "skipped": t.decode(ids)})
    decode = []
    while len(decode) < 60:
        ids = [random.randrange(t.get_vocab_size() + 5) for _ in range(random.randint(0, 12))]
        if whole_runs(t, ids):
            decode.append({"ids": ids, "text": t.decode(ids, skip_special_tokens=False), "skipped": t.decode(ids)})
    pathlib.Path("variants").mkdir(exist_ok=True)
    with open(f"variants/{name}.json", "w", encoding="utf-8") as f:
        f.write('{"tokenizer":' + json.dumps(json.loads(t.to_str()), ensure_ascii=False, separators=(",", ":")))
        for key, cases in (("encode", encode), ("decode", decode)):
            f.write(f',\n"{key}":[\n' + ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases) + "]")
        f.write("}\n")
