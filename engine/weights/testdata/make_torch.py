"""Writes the files of torch that the tests read, and what is in them.

    python3 make_torch.py

Needs torch (made with 1.13). What newer versions write otherwise (a later
protocol, a byteorder entry, tensors of types without a storage class of their
own) is written here by hand, through pickle.
"""
import io, json, os, pickle, struct, sys, zipfile

import torch

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch")
NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64", torch.int8: "I8",
         torch.int16: "I16", torch.int32: "I32", torch.int64: "I64", torch.uint8: "U8", torch.bool: "BOOL"}
golden = {}


def describe(t):
    t = t.detach().contiguous().clone()
    data = b"" if t.numel() == 0 else bytes(t.view(-1).view(torch.uint8).tolist()) if t.dtype != torch.bool else bytes(t.view(-1).tolist())
    return {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data": data.hex()}


def save(name, tensors, **kw):
    torch.save(tensors, os.path.join(HERE, name), **kw)
    golden[name] = {k: describe(t) for k, t in tensors.items()}


g = torch.Generator().manual_seed(1)
base = torch.randn(12, 10, generator=g)

# What save_pretrained writes: a state_dict, with its attribute _metadata.
model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LayerNorm(3)).to(torch.bfloat16)
for p in model.parameters():
    p.data = torch.randn(p.shape, generator=g).to(torch.bfloat16)
save("state_dict.bin", model.state_dict())

# Every type, views, ties, strides.
save("kinds.bin", {
    **{f"type.{NAMES[d]}": (base[:3, :4] * 50).contiguous().to(d) for d in NAMES},
    "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 7), "parameter": torch.nn.Parameter(base[0].clone()),
    "tied.a": base, "tied.b": base, "rows": base[3:7], "columns": base[:, 2:9], "transposed": base.t(),
    "transposed part": base[2:9, 1:5].t(), "steps": base[1::3, ::4], "vector of steps": base[:, 3], "one row": base[5:6, 2:8],
    "one column": base[1:9, 4:5], "cube": torch.arange(24).reshape(2, 3, 4),
})

# Shards.
save("pytorch_model-00001-of-00002.bin", {"a": base[:5].clone(), "b": (base[5:6] * 3).half()})
save("pytorch_model-00002-of-00002.bin", {"c": base[6:].to(torch.bfloat16)})
with open(os.path.join(HERE, "pytorch_model.bin.index.json"), "w") as f:
    json.dump({"metadata": {"total_size": 0}, "weight_map": {
        "a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00001-of-00002.bin", "c": "pytorch_model-00002-of-00002.bin"}}, f)


# Newer forms. Globals that this version of torch does not have are made up, so
# that pickle finds them.
def made_up(module, name, value):
    if not hasattr(sys.modules[module], name):
        setattr(sys.modules[module], name, value)
    value = getattr(sys.modules[module], name)
    value.__module__, value.__qualname__, value.__name__ = module, name, name
    return value


class Untyped: pass
class Float8: pass
def v3(*args): pass


untyped = made_up("torch.storage", "UntypedStorage", Untyped)
rebuild3 = made_up("torch._utils", "_rebuild_tensor_v3", v3)
float8 = made_up("torch", "float8_e4m3fn", Float8)


class Storage:
    def __init__(self, kind, key, n):
        self.kind, self.key, self.n = kind, key, n


class Call:
    def __init__(self, f, *args):
        self.f, self.args = f, args

    def __reduce__(self):
        return self.f, self.args


class Pickler(pickle._Pickler):
    def persistent_id(self, o):
        if isinstance(o, Storage):
            return "storage", o.kind, o.key, "cpu", o.n
        return None


from collections import OrderedDict

data = bytes(range(1, 25))
for protocol in (2, 4, 5):
    name = f"newer-protocol{protocol}.bin"
    out = io.BytesIO()
    Pickler(out, protocol).dump({
        "weight": Call(rebuild3, Storage(untyped, "0", 24), 4, (4, 5), (5, 1), False, OrderedDict(), float8),
        "older": Call(torch._utils._rebuild_tensor_v2, Storage(torch.FloatStorage, "1", 6), 0, (2, 3), (3, 1), False, OrderedDict(), {"k": 1.5}),
    })
    with zipfile.ZipFile(os.path.join(HERE, name), "w", zipfile.ZIP_STORED) as z:
        z.writestr("model/data.pkl", out.getvalue())
        z.writestr("model/byteorder", "little")
        z.writestr("model/data/0", data)
        z.writestr("model/data/1", data)
        z.writestr("model/version", "3\n")
    golden[name] = {"weight": {"dtype": "F8_E4M3", "shape": [4, 5], "data": data[4:].hex()},
                    "older": {"dtype": "F32", "shape": [2, 3], "data": data.hex()}}

# The format from before version 1.6, which is refused.
torch.save({"a": base[0]}, os.path.join(HERE, "legacy.bin"), _use_new_zipfile_serialization=False)

with open(os.path.join(HERE, "golden.json"), "w") as f:
    json.dump(golden, f, indent=1)
