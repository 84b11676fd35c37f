"""Writes reference.json: encodings and decodings of the bundled tokenizer by the Rust reference.

Run in this folder: pip install tokenizers==0.23.* && python make_reference.py
"""
import json
import random

from tokenizers import Tokenizer

t = Tokenizer.from_file("../../fetch/builtin/gocode-7m/tokenizer.json")
random.seed(7)
# What the split pattern tells apart: letters of several scripts, contractions,
# digits, kinds of space, marks, and characters whose case folds outside of ASCII.
alphabet = list("aZé本'sSſtTrReEvVlLdDmM  \t\n\r\u00a0\u30000１9½Ⅷ.,<>|_🙂\u200d\u0301\x85\u2028\u0130\u212a\x1c")
encode = []
for _ in range(800):
    text = "".join(random.choice(alphabet) for _ in range(random.randint(0, 40)))
    encode.append({"text": text, "ids": t.encode(text, add_special_tokens=False).ids})
decode = []
for _ in range(300):
    ids = [random.randrange(5, 300) for _ in range(random.randint(0, 20))]  # mostly single bytes
    decode.append({"ids": ids, "text": t.decode(ids, skip_special_tokens=False)})
with open("reference.json", "w", encoding="utf-8") as f:
    json.dump({"encode": encode, "decode": decode}, f, ensure_ascii=False, separators=(",", ":"))
    f.write("\n")
