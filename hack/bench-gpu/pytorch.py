"""What compiled PyTorch takes for passes of the Llama-3.1-8B shape, in bfloat16 and with
CUDA graphs, to stand beside the engine's figures of the same call. It wants a GPU and
PyTorch 2.5 or newer; -json writes the figures as bench-gpu does."""

import argparse
import json
import statistics

import torch
import torch.nn.functional as F

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV, DIM, VOCAB = 4096, 14336, 32, 32, 8, 128, 128256
CONTEXT = 1024
KIND = {"device": "cuda", "dtype": torch.bfloat16}


def numbers(*shape):
    return torch.randn(*shape, **KIND) * 0.02


class Layer:
    def __init__(self):
        self.qkv = numbers((HEADS + 2 * KV) * DIM, HIDDEN)
        self.o = numbers(HIDDEN, HEADS * DIM)
        self.gate_up = numbers(2 * INTERMEDIATE, HIDDEN)
        self.down = numbers(HIDDEN, INTERMEDIATE)
        self.norms = [torch.ones(HIDDEN, **KIND) for _ in range(2)]

    def attend(self, h, keys, values, cos, sin, mask):
        batch, rows, _ = h.shape
        q, k, v = F.linear(h, self.qkv).split([HEADS * DIM, KV * DIM, KV * DIM], -1)

        def heads(x):
            return x.view(batch, rows, -1, DIM).transpose(1, 2)

        def turned(x):
            return x * cos + torch.cat([-x[..., DIM // 2 :], x[..., : DIM // 2]], -1) * sin

        keys[:, :, CONTEXT:] = turned(heads(k))
        values[:, :, CONTEXT:] = heads(v)
        out = F.scaled_dot_product_attention(turned(heads(q)), keys, values, attn_mask=mask, enable_gqa=True)
        return F.linear(out.transpose(1, 2).reshape(batch, rows, HEADS * DIM), self.o)

    def forward(self, x, *rest):
        x = x + self.attend(F.rms_norm(x, (HIDDEN,), self.norms[0], 1e-5), *rest)
        gate, up = F.linear(F.rms_norm(x, (HIDDEN,), self.norms[1], 1e-5), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Model:
    def __init__(self):
        self.embed, self.head = numbers(VOCAB, HIDDEN), numbers(VOCAB, HIDDEN)
        self.norm = torch.ones(HIDDEN, **KIND)
        self.layers = [Layer() for _ in range(LAYERS)]

    def step(self, batch, rows):
        """A pass of batch sequences with CONTEXT positions behind them, rows tokens each."""
        cache = [[torch.randn(batch, KV, CONTEXT + rows, DIM, **KIND) for _ in range(2)] for _ in self.layers]
        cos, sin = torch.randn(rows, DIM, **KIND), torch.randn(rows, DIM, **KIND)
        mask = None
        if rows > 1:
            mask = torch.ones(rows, CONTEXT + rows, dtype=torch.bool, device="cuda")
            mask[:, CONTEXT:] = torch.tril(mask[:, CONTEXT:])

        def run(ids):
            x = F.embedding(ids, self.embed)
            for layer, (keys, values) in zip(self.layers, cache):
                x = layer.forward(x, keys, values, cos, sin, mask)
            return F.linear(F.rms_norm(x, (HIDDEN,), self.norm, 1e-5), self.head).argmax(-1)

        return torch.compile(run, dynamic=False), torch.randint(0, VOCAB, (batch, rows), device="cuda")


def graph(run, ids):
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            run(ids)
    torch.cuda.current_stream().wait_stream(beside)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        run(ids)
    return g


def median(f, times=30):
    took = []
    for i in range(times + 10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        f()
        end.record()
        end.synchronize()
        if i >= 10:
            took.append(start.elapsed_time(end))
    return statistics.median(took)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("-json", default="")
    path = p.parse_args().json
    model, rows = Model(), []
    with torch.inference_mode():
        for what, batch, n in (
            ("decode, batch 1", 1, 1),
            ("verify of 4, batch 1", 1, 4),
            ("decode, batch 64", 64, 1),
            ("decode, batch 16", 16, 1),
            ("verify of 4, batch 64", 64, 4),
        ):
            run, ids = model.step(batch, n)
            ms = median(graph(run, ids).replay)
            print(f"llama-3.1-8b  bf16  {what:26} {ms:8.3f} ms, PyTorch {torch.__version__}", flush=True)
            rows.append({"shape": "llama-3.1-8b", "format": "bf16", "what": what, "ms": ms})
            if path:  # what is there is kept if there is no time for the next
                with open(path, "w") as f:
                    json.dump(rows, f, indent=2)
            del run, ids
            torch.cuda.empty_cache()


main()
