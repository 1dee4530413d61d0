#!/usr/bin/env python3
"""Makes a small checkpoint and what `bolt convert` must make of it, by numpy alone.

    python3 make_golden.py        (numpy, safetensors, ml_dtypes or the bf16 code below)

Writes checkpoint/config.json, checkpoint/model.safetensors and golden.json here. golden.json holds,
for --quant none and q8, the SHA-256 of every weight's packed bytes. The packing and the quantiser
below are written from the layout's and the contract's text, not from bolt's code.
"""
import hashlib
import json
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
D, V, HEADS, DIM, STATE, GROUPS = 40, 280, 3, 8, 24, 1
INNER, CONV = HEADS * DIM, HEADS * DIM + 2 * GROUPS * STATE
KV, QH, HD, FF, E, FE, FS, LAT = 1, 2, 20, 70, 3, 33, 34, 36
rng = np.random.default_rng(20261130)


def bf16(x):
    u = np.asarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def widen(h):
    return (h.astype(np.uint32) << 16).view(np.float32)


# ---- the checkpoint: name -> (dtype, array of storage words)
tensors = {}


def matrix(name, *shape):
    tensors[name] = ("BF16", bf16(rng.standard_normal(shape) / np.sqrt(shape[-1])))


def floats(name, *shape, low=-1.0, high=1.0):
    tensors[name] = ("F32", rng.uniform(low, high, shape).astype(np.float32))


B = "backbone."
matrix(B + "embeddings.weight", V, D)
for layer in range(4):
    matrix(f"{B}layers.{layer}.norm.weight", D)
m = B + "layers.0.mixer."
matrix(m + "in_proj.weight", INNER + CONV + HEADS, D)
matrix(m + "conv1d.weight", CONV, 1, 4)
matrix(m + "conv1d.bias", CONV)
floats(m + "A_log", HEADS, low=0.0, high=2.5)
floats(m + "D", HEADS)
floats(m + "dt_bias", HEADS, low=-5.0, high=-2.0)
matrix(m + "norm.weight", INNER)
matrix(m + "out_proj.weight", D, INNER)
m = B + "layers.1.mixer."
matrix(m + "q_proj.weight", QH * HD, D)
matrix(m + "k_proj.weight", KV * HD, D)
matrix(m + "v_proj.weight", KV * HD, D)
matrix(m + "o_proj.weight", D, QH * HD)
m = B + "layers.2.mixer."
matrix(m + "up_proj.weight", FF, D)
matrix(m + "down_proj.weight", D, FF)
m = B + "layers.3.mixer."
matrix(m + "gate.weight", E, D)
floats(m + "gate.e_score_correction_bias", E)
matrix(m + "fc1_latent_proj.weight", LAT, D)
matrix(m + "fc2_latent_proj.weight", D, LAT)
for e in range(E):
    matrix(f"{m}experts.{e}.up_proj.weight", FE, LAT)
    matrix(f"{m}experts.{e}.down_proj.weight", LAT, FE)
matrix(m + "shared_experts.up_proj.weight", FS, D)
matrix(m + "shared_experts.down_proj.weight", D, FS)
matrix(B + "norm_f.weight", D)
matrix("lm_head.weight", V, D)
# Groups of zeros, of one spike, and of values too small for a scale.
words = tensors["lm_head.weight"][1]
words[0, :32] = 0
words[1, :32] = 0
words[1, 7] = bf16(3.0)
words[2, :32] = bf16(np.full(32, 1e-12))

config = {
    "model_type": "nemotron_h", "vocab_size": V, "hidden_size": D, "hybrid_override_pattern": "M*-E",
    "num_attention_heads": QH, "num_key_value_heads": KV, "head_dim": HD, "intermediate_size": FF,
    "mamba_num_heads": HEADS, "mamba_head_dim": DIM, "ssm_state_size": STATE, "n_groups": GROUPS,
    "conv_kernel": 4, "n_routed_experts": E, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": FE, "moe_shared_expert_intermediate_size": FS, "moe_latent_size": LAT,
    "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2,
}


def save():
    folder = HERE / "checkpoint"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    header, data = {}, b""
    for name, (dtype, array) in sorted(tensors.items()):
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    try:  # the reference reader must agree
        from safetensors import safe_open
        with safe_open(path, "np") as f:
            assert set(f.keys()) == set(tensors)
    except ImportError:
        pass


# ---- the contract's exp, every step exact and then rounded to binary32
def rn(x):
    """A rational to the nearest float32, ties to even (normal range)."""
    if x == 0:
        return np.float32(0)
    sign, x = (-1, -x) if x < 0 else (1, x)
    e = 0
    while x >= 2:
        x, e = x / 2, e + 1
    while x < 1:
        x, e = x * 2, e - 1
    n = round(x * 2**23)  # Python rounds halves to even
    return np.float32(sign * n * 2.0 ** (e - 23))


def fr(x):
    return Fraction(float(x))


def fma(a, b, c):
    return rn(fr(a) * fr(b) + fr(c))


def contract_exp(x):
    f = np.float32
    z = fma(x, f(1.44269504088896341), f(12582912))
    n = rn(fr(z) - 12582912)
    i = int(n)
    r = fma(n, f(-0.693145752), x)
    r = fma(n, f(-1.42860677e-6), r)
    p = f(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, f(c))
    p = rn(fr(fma(p, rn(fr(r) * fr(r)), r)) + 1)
    return rn(fr(p) * Fraction(2) ** i)


# ---- packing, from the layout's text
def pack_bf16(w):
    rows, cols = w.shape
    tiles, groups = -(-rows // 32), -(-cols // 32)
    padded = np.zeros((tiles * 32, groups * 32), np.uint16)
    padded[:rows, :cols] = w
    out = np.zeros((tiles, groups, 4, 4, 8, 4, 2), np.uint16)  # i, lane, pos, row % 4, low/high
    for row in range(32):
        for i in range(4):
            for t in range(4):
                pos = (row // 4) ^ (2 * t)
                for half in range(2):
                    column = 8 * i + 2 * t + half
                    out[:, :, i, t, pos, row % 4, half] = padded[row::32, column::32]
    return out.tobytes()


SLOTS = [0, 1, 16, 17, 2, 3, 18, 19]


def quantise(w):
    rows, cols = w.shape
    groups = -(-cols // 32)
    x = np.zeros((rows, groups * 32), np.float32)
    x[:, :cols] = w
    x = x.reshape(rows, groups, 32)
    amax = np.abs(x).max(axis=2)
    scale = (amax / np.float32(127)).astype(np.float16)
    s = scale.astype(np.float32)[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(s == 0, np.float32(0), x / s)
    return np.clip(np.rint(q), -127, 127).astype(np.int8), scale


def pack_q8(w):
    codes, scale = quantise(w)
    rows, groups, _ = codes.shape
    tiles = -(-rows // 32)
    c = np.zeros((tiles * 32, groups, 32), np.int8)
    c[:rows] = codes
    s = np.zeros((tiles * 32, groups), np.float16)
    s[:rows] = scale
    out = b""
    for tile in range(tiles):
        for g in range(groups):
            block = np.zeros((2, 4, 8, 4, 4), np.int8)  # slots / 4, lane, pos, row % 4, slot % 4
            for row in range(32):
                for t in range(4):
                    for p in range(8):
                        block[p // 4, t, (row // 4) ^ (2 * t), row % 4, p % 4] = c[tile * 32 + row, g, 4 * t + SLOTS[p]]
            out += block.tobytes() + s[tile * 32:tile * 32 + 32, g].tobytes()
    return out


def f32(name):
    dtype, array = tensors[name]
    return (widen(array) if dtype == "BF16" else array).astype(np.float32).tobytes()


def golden(q8):
    pack = (lambda w: pack_q8(widen(w))) if q8 else pack_bf16
    word = lambda name: tensors[name][1]
    g = {"embedding": word(B + "embeddings.weight").tobytes(), "final_norm": f32(B + "norm_f.weight"),
         "lm_head": pack(word("lm_head.weight"))}
    for layer in range(4):
        g[f"layers.{layer}.norm"] = f32(f"{B}layers.{layer}.norm.weight")
    p = B + "layers.0.mixer."
    for ours, theirs in (("conv_w", "conv1d.weight"), ("conv_b", "conv1d.bias"), ("D", "D"),
                         ("dt_bias", "dt_bias"), ("gate_norm", "norm.weight")):
        g["layers.0." + ours] = f32(p + theirs)
    g["layers.0.A"] = np.array([-contract_exp(x) for x in word(p + "A_log")], np.float32).tobytes()
    for ours in ("in_proj", "out_proj"):
        g["layers.0." + ours] = pack(word(p + ours + ".weight"))
    for layer, names in ((1, ("q_proj", "k_proj", "v_proj", "o_proj")), (2, ("up_proj", "down_proj"))):
        for ours in names:
            g[f"layers.{layer}.{ours}"] = pack(word(f"{B}layers.{layer}.mixer.{ours}.weight"))
    p = B + "layers.3.mixer."
    g["layers.3.router"] = pack_bf16(word(p + "gate.weight"))
    g["layers.3.router_bias"] = f32(p + "gate.e_score_correction_bias")
    g["layers.3.latent_down"] = pack(word(p + "fc1_latent_proj.weight"))
    g["layers.3.latent_up"] = pack(word(p + "fc2_latent_proj.weight"))
    for which in ("up", "down"):
        g[f"layers.3.experts_{which}"] = b"".join(
            pack(word(f"{p}experts.{e}.{which}_proj.weight")) for e in range(E))
        g[f"layers.3.shared_{which}"] = pack(word(f"{p}shared_experts.{which}_proj.weight"))
    return {name: hashlib.sha256(raw).hexdigest() for name, raw in sorted(g.items())}


if __name__ == "__main__":
    save()
    text = json.dumps({"none": golden(False), "q8": golden(True)}, indent=1)
    (HERE / "golden.json").write_text(text + "\n")
