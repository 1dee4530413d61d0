#!/usr/bin/env python3
"""Makes a small checkpoint as NVIDIA's ModelOpt lays it out, and the values that it means.

    python3 make_modelopt.py        (numpy alone)

Writes modelopt/{config.json,hf_quant_config.json,model.safetensors} and modelopt.json here: of each
of the package's weights the SHA-256 of its float32 values, row after row, with -0 as +0. Codes are
random over everything that the formats allow; values are decoded from the documented packing by
tables, not from bolt's code.
"""
import hashlib
import json
import struct
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
D, V, HEADS, DIM, STATE, GROUPS = 48, 280, 4, 16, 16, 2
INNER, CONV = HEADS * DIM, HEADS * DIM + 2 * GROUPS * STATE
KV, QH, HD, FF, E, FE, FS = 1, 2, 32, 80, 4, 32, 64
rng = np.random.default_rng(20261201)

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e4m3_table():
    t = np.zeros(256, np.float32)
    for code in range(256):
        e, m = code >> 3 & 15, code & 7
        x = m * 2.0 ** -9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
        t[code] = -x if code & 128 else x
    t[127] = t[255] = np.nan
    return t


E4M3 = e4m3_table()
tensors, values = {}, {}


def put(name, dtype, array):
    tensors[name] = (dtype, np.ascontiguousarray(array))


def bf16(x):
    u = np.asarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def plain(name, *shape):
    h = bf16(rng.standard_normal(shape) / np.sqrt(shape[-1]))
    put(name, "BF16", h)
    return (h.astype(np.uint32) << 16).view(np.float32)


def floats(name, *shape, low=-1.0, high=1.0):
    x = rng.uniform(low, high, shape).astype(np.float32)
    put(name, "F32", x)
    return x


def nvfp4(base, n, k, w4a16=False):
    packed = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    scale = rng.integers(0, 0x7F, (n, k // 16), dtype=np.uint8)  # every code but NaN
    scale_2 = np.float32(rng.uniform(1e-5, 1e-3))
    put(base + ".weight", "U8", packed)
    put(base + ".weight_scale", "F8_E4M3", scale)
    put(base + ".weight_scale_2", "F32", np.array(scale_2))
    if not w4a16:
        put(base + ".input_scale", "F32", np.array(np.float32(0.01)))
    codes = np.empty((n, k), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4  # column 2b in the low nibble
    return E2M1[codes] * np.repeat(E4M3[scale], 16, axis=1) * scale_2


def fp8(base, n, k):
    codes = rng.integers(0, 256, (n, k), dtype=np.uint8)
    codes[(codes & 127) == 127] = 0
    scale = np.float32(rng.uniform(1e-4, 1e-2))
    put(base + ".weight", "F8_E4M3", codes)
    put(base + ".weight_scale", "F32", np.array(scale))
    put(base + ".input_scale", "F32", np.array(np.float32(0.02)))
    return E4M3[codes] * scale


P = "language_model.backbone."
layers = {}
values["embedding"] = nvfp4(P + "embeddings", V, D)
for i in range(4):
    values[f"layers.{i}.norm"] = plain(f"{P}layers.{i}.norm.weight", D)
m = P + "layers.0.mixer."
layers[m + "in_proj"] = "FP8"
values["layers.0.in_proj"] = fp8(m + "in_proj", INNER + CONV + HEADS, D)
values["layers.0.conv_w"] = plain(m + "conv1d.weight", CONV, 1, 4)
values["layers.0.conv_b"] = plain(m + "conv1d.bias", CONV)
floats(m + "A_log", HEADS, low=0.0, high=2.5)
values["layers.0.D"] = floats(m + "D", HEADS)
values["layers.0.dt_bias"] = floats(m + "dt_bias", HEADS, low=-5.0, high=-2.0)
values["layers.0.gate_norm"] = plain(m + "norm.weight", INNER)
values["layers.0.out_proj"] = plain(m + "out_proj.weight", D, INNER)
m = P + "layers.1.mixer."
for ours, n, k in (("q_proj", QH * HD, D), ("v_proj", KV * HD, D), ("o_proj", D, QH * HD)):
    values["layers.1." + ours] = plain(f"{m}{ours}.weight", n, k)
layers[m + "k_proj"] = "FP8"
values["layers.1.k_proj"] = fp8(m + "k_proj", KV * HD, D)
put(m + "k_proj.k_scale", "F32", np.array(np.float32(0.5)))
put(m + "v_proj.v_scale", "F32", np.array(np.float32(0.25)))
m = P + "layers.2.mixer."
layers[m + "up_proj"], layers[m + "down_proj"] = "NVFP4", "FP8"
values["layers.2.up_proj"] = nvfp4(m + "up_proj", FF, D)
values["layers.2.down_proj"] = fp8(m + "down_proj", D, FF)
m = P + "layers.3.mixer."
values["layers.3.router"] = floats(m + "gate.weight", E, D)
values["layers.3.router_bias"] = floats(m + "gate.e_score_correction_bias", E)
up, down = [], []
for e in range(E):
    layers[f"{m}experts.{e}.up_proj"] = layers[f"{m}experts.{e}.down_proj"] = "W4A16_NVFP4"
    up.append(nvfp4(f"{m}experts.{e}.up_proj", FE, D, w4a16=True))
    down.append(nvfp4(f"{m}experts.{e}.down_proj", D, FE, w4a16=True))
values["layers.3.experts_up"], values["layers.3.experts_down"] = np.stack(up), np.stack(down)
layers[m + "shared_experts.up_proj"] = layers[m + "shared_experts.down_proj"] = "FP8"
values["layers.3.shared_up"] = fp8(m + "shared_experts.up_proj", FS, D)
values["layers.3.shared_down"] = fp8(m + "shared_experts.down_proj", D, FS)
values["final_norm"] = plain(P + "norm_f.weight", D)
layers["language_model.lm_head"] = "NVFP4"
values["lm_head"] = nvfp4("language_model.lm_head", V, D)
put("vision_model.patch.weight", "BF16", bf16(np.zeros((2, 3))))

text = {
    "model_type": "nemotron_h", "vocab_size": V, "hidden_size": D, "hybrid_override_pattern": "M*-E",
    "num_attention_heads": QH, "num_key_value_heads": KV, "head_dim": HD, "intermediate_size": FF,
    "mamba_num_heads": HEADS, "mamba_head_dim": DIM, "ssm_state_size": STATE, "n_groups": GROUPS,
    "conv_kernel": 4, "n_routed_experts": E, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": FE, "moe_shared_expert_intermediate_size": FS,
    "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2,
}
mixed = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "group_size": 16,
         "exclude_modules": ["*conv1d*", "language_model.mtp*"],
         "quantized_layers": {name: {"quant_algo": algo} | ({"group_size": 16} if "NVFP4" in algo else {})
                              for name, algo in layers.items()}}

folder = HERE / "modelopt"
folder.mkdir(exist_ok=True)
(folder / "config.json").write_text(json.dumps(
    {"model_type": "nemotron_h_omni", "llm_config": text}, indent=1) + "\n")
(folder / "hf_quant_config.json").write_text(json.dumps(
    {"producer": {"name": "modelopt", "version": "0.40.0"}, "quantization": mixed}, indent=1) + "\n")
header, data = {}, b""
for name, (dtype, array) in sorted(tensors.items()):
    raw = array.tobytes()
    header[name] = {"dtype": dtype, "shape": list(array.shape),
                    "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
head = json.dumps(header).encode()
head += b" " * (-len(head) % 8)
(folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
digest = {name: hashlib.sha256((x.astype(np.float32) + np.float32(0)).tobytes()).hexdigest()
          for name, x in sorted(values.items())}
(HERE / "modelopt.json").write_text(json.dumps(digest, indent=1) + "\n")
