"""Makes a small tiktoken.model, its tokenizer_config.json, and what OpenAI's
tiktoken encodes with them, for the split patterns of Kimi K2 and of o200k.

    python3 -m pip install tiktoken
    python3 make_tiktoken.py
"""
import base64
import collections
import json
import pathlib
import random

import regex
import tiktoken

FOLDER = pathlib.Path(__file__).parent / "tiktoken"
SOURCES = "".join(p.read_text() for p in sorted(pathlib.Path(__file__).parent.parent.glob("*.go")))[:200000]
SOURCES += "日本語の文章と中文的文字。漢字かな混じり。Привет, мир! Größe und Straße. Don't, WE'LL, it's.\n" * 40
KIMI = (
    r"[\p{Han}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(text, size):
    """The most frequent pair becomes a token, until there are size tokens."""
    ranks = {bytes([i]): i for i in range(256)}
    words = collections.Counter(regex.findall(r" ?\w+|[^\w\s]+|\s+", text))
    parts = {w: [bytes([b]) for b in w.encode()] for w in words}
    while len(ranks) < size:
        pairs = collections.Counter()
        for w, n in words.items():
            for pair in zip(parts[w], parts[w][1:]):
                pairs[pair] += n
        best = max(pairs, key=lambda p: (pairs[p], p))
        ranks[best[0] + best[1]] = len(ranks)
        for w, p in parts.items():
            i = 0
            while i < len(p) - 1:
                if (p[i], p[i + 1]) == best:
                    p[i : i + 2] = [p[i] + p[i + 1]]
                i += 1
    return ranks


def texts():
    yield from ["", "Hello, World! helloWorld HTTPServer's", "日本語the中文 漢字かな", "don't WE'LL it'S 12345 a/b//\n\n  x", "[BOS]hi[EOS]<|reserved_token_605|>", "naïve café ＦＵＬＬ ǅungla ʰa 々〇"]
    rng = random.Random(1)
    alphabet = "aZé本'sStTlLdD  \t\n\r\u00a0 0١9½Ⅷ.,/<>|_ǅʰあ々〇⺀🙂\u200d\u0301вНе"
    for _ in range(150):
        yield "".join(rng.choice(alphabet) for _ in range(rng.randrange(40)))
    for i in range(0, 20000, 1000):
        yield SOURCES[i * 7 : i * 7 + 120]


def main():
    FOLDER.mkdir(exist_ok=True)
    ranks = train(SOURCES, 600)
    (FOLDER / "tiktoken.model").write_text("".join(f"{base64.b64encode(t).decode()} {r}\n" for t, r in ranks.items()))
    named = {"[BOS]": 600, "[EOS]": 601, "<|im_end|>": 602}
    added = {str(i): {"content": c, "special": True, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False} for c, i in named.items()}
    config = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]", "added_tokens_decoder": added}
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    special = {next((c for c, i in named.items() if i == k), f"<|reserved_token_{k}|>"): k for k in range(600, 600 + 258)}
    golden = []
    for text in texts():
        row = {"text": text}
        for name, pattern in (("kimi", KIMI), ("o200k", O200K)):
            encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
            row[name] = encoding.encode(text, allowed_special="all")
        golden.append(row)
    (FOLDER / "golden.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")


main()
