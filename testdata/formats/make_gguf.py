#!/usr/bin/env python3
"""Makes GGUF fixtures with the `gguf` package: blocks of every type, and two small models.

    python3 make_gguf.py        (numpy and gguf)

blocks.bin holds rows of blocks of every type, random and extreme bytes; blocks.json says where, and
the SHA-256 of the float32 values that gguf.quants.dequantize gives (NVFP4 and MXFP4 with -0 as +0).
moe-0000N-of-00002.gguf is a mixture of experts with an MTP head in two parts, dense.gguf a dense
model; models.json has the same hashes of each package weight's values.
"""
import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf.quants import dequantize, quantize

HERE = Path(__file__).resolve().parent
rng = np.random.default_rng(20261202)


def digest(values, signless_zero=False):
    x = np.ascontiguousarray(values, np.float32)
    return hashlib.sha256((x + np.float32(0) if signless_zero else x).tobytes()).hexdigest()


# Offsets of a block's f16 numbers, which must be finite.
HALVES = {Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0], Q.Q2_K: [80, 82],
          Q.Q3_K: [108], Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208], Q.IQ4_NL: [0], Q.IQ4_XS: [0],
          Q.IQ2_XXS: [0], Q.MXFP4: [], Q.NVFP4: []}
EXTREMES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x3c00, 0xbc00]


def random_blocks(kind, n):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    b = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for i, fill in enumerate([0x00, 0xFF, 0x80, 0x7F, 0x88, 0x0F, 0xF0, 0x55]):
        b[i] = fill
    for at in HALVES[kind]:
        for i in range(n):
            h = EXTREMES[(i + at) % len(EXTREMES)] if i < 24 else int(rng.integers(0, 0x10000))
            if h & 0x7c00 == 0x7c00:
                h &= 0xbfff
            b[i, at], b[i, at + 1] = h & 255, h >> 8
    return block, b


def blocks():
    data, entries = b"", []
    for kind in HALVES:
        block, b = random_blocks(kind, 40)
        rows = b.reshape(4, -1)
        with np.errstate(over="ignore", invalid="ignore"):
            values = dequantize(rows, kind)
        entries.append({"type": kind.name, "offset": len(data), "rows": 4, "cols": 10 * block,
                        "sha256": digest(values, kind in (Q.NVFP4, Q.MXFP4))})
        data += b.tobytes()
    (HERE / "blocks.bin").write_bytes(data)
    (HERE / "blocks.json").write_text(json.dumps(entries, indent=1) + "\n")


# ---- small models
def byte_char(byte):
    prints = [b for b in range(256) if 0x21 <= b <= 0x7E or (b >= 0xA1 and b != 0xAD)]
    others = [b for b in range(256) if b not in prints]
    return chr(byte) if byte in prints else chr(0x100 + others.index(byte))


def model(name, moe, kinds, split):
    D, HEADS, DIM, STATE, GROUPS, V = 256, 4, 16, 32, 2, 320
    INNER = HEADS * DIM
    CONV = INNER + 2 * GROUPS * STATE
    arch = "nemotron_h_moe" if moe else "nemotron_h"
    w = gguf.GGUFWriter(str(HERE / f"{name}.gguf"), arch,
                        split_max_tensors=36 if split else 0)
    want = {}
    turn = [0]

    def plain(theirs, ours, *shape, low=-1.0, high=1.0, store=None):
        x = rng.uniform(low, high, shape).astype(np.float32)
        w.add_tensor(theirs, x.reshape(store) if store else x)
        want[ours] = digest(x)

    def coded(theirs, ours, *shape, kind=None):
        if kind is None:
            kind = kinds[turn[0] % len(kinds)]
            turn[0] += 1
        if kind in (Q.F32, Q.F16, Q.BF16):
            x = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
            raw = quantize(x, kind)
        else:
            size = gguf.GGML_QUANT_SIZES[kind][1]
            n = int(np.prod(shape)) // gguf.GGML_QUANT_SIZES[kind][0]
            _, b = random_blocks(kind, max(n, 24))
            for at in HALVES[kind]:  # calm scales
                for i in range(len(b)):
                    h = int(np.float16(rng.uniform(-0.01, 0.01)).view(np.uint16))
                    b[i, at], b[i, at + 1] = h & 255, h >> 8
            if kind == Q.MXFP4:
                b[:, 0] = rng.integers(110, 125, len(b))
            raw = b[:n].reshape(*shape[:-1], -1)
        x = dequantize(raw, kind)
        if kind == Q.NVFP4:
            scale = rng.uniform(1e-5, 1e-4, shape[0] if len(shape) == 3 else 1).astype(np.float32)
            w.add_tensor(theirs.replace(".weight", ".scale"), scale)
            x = x * scale.reshape(-1, *([1] * (len(shape) - 1)))
        w.add_tensor(theirs, raw, raw_dtype=kind)
        want[ours] = digest(x, kind in (Q.NVFP4, Q.MXFP4))

    main, draft = ("M*EM", 1) if moe else ("M*-", 0)
    n_blocks = len(main) + draft
    w.add_block_count(n_blocks)
    w.add_context_length(4096)
    w.add_embedding_length(D)
    w.add_vocab_size(V)
    ff = [256 if c in "-E" else 0 for c in main] + [256] * draft
    kv = [1 if c == "*" else 0 for c in main] + [1] * draft
    w.add_feed_forward_length(ff)
    w.add_head_count([2 if n else 0 for n in kv])
    w.add_head_count_kv(kv)
    w.add_key_length(128)
    w.add_value_length(128)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_ssm_conv_kernel(4)
    w.add_ssm_state_size(STATE)
    w.add_ssm_group_count(GROUPS)
    w.add_ssm_inner_size(INNER)
    w.add_ssm_time_step_rank(HEADS)
    w.add_rope_dimension_count(84)
    if moe:
        w.add_expert_count(2)
        w.add_expert_used_count(1)
        w.add_expert_shared_count(1)
        w.add_expert_feed_forward_length(256)
        w.add_expert_shared_feed_forward_length(256)
        w.add_expert_weights_norm(True)
        w.add_expert_weights_scale(2.5)
        w.add_uint32(f"{arch}.moe_latent_size", 256)
        w.add_uint32(f"{arch}.nextn_predict_layers", draft)
    controls = ["<unk>", "<s>", "</s>"] + [f"<SPECIAL_{i}>" for i in range(3, 10)] + [
        "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    tokens = controls + [byte_char(b) for b in range(256)] + ["ab", "abc"]
    types = [3] * len(controls) + [1] * 258
    while len(tokens) < V:
        tokens.append(f"[PAD{len(tokens)}]")
        types.append(5)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("pixtral")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(["a b", "ab c"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(11)
    w.add_add_bos_token(False)
    w.add_chat_template("{% for m in messages %}{{ '<|im_start|>' + m.role }}{% endfor %}")

    coded("token_embd.weight", "embedding", V, D)
    plain("output_norm.weight", "final_norm", D)
    coded("output.weight", "lm_head", V, D)

    def attention(blk, ours):
        coded(f"{blk}.attn_q.weight", f"{ours}.q_proj", 256, D)
        coded(f"{blk}.attn_k.weight", f"{ours}.k_proj", 128, D)
        coded(f"{blk}.attn_v.weight", f"{ours}.v_proj", 128, D)
        coded(f"{blk}.attn_output.weight", f"{ours}.o_proj", D, 256)

    def experts(blk, ours):
        plain(f"{blk}.ffn_gate_inp.weight", f"{ours}.router", 2, D)
        plain(f"{blk}.exp_probs_b.bias", f"{ours}.router_bias", 2)
        coded(f"{blk}.ffn_up_exps.weight", f"{ours}.experts_up", 2, 256, 256)
        coded(f"{blk}.ffn_down_exps.weight", f"{ours}.experts_down", 2, 256, 256)
        coded(f"{blk}.ffn_up_shexp.weight", f"{ours}.shared_up", 256, D)
        coded(f"{blk}.ffn_down_shexp.weight", f"{ours}.shared_down", D, 256)
        coded(f"{blk}.ffn_latent_down.weight", f"{ours}.latent_down", 256, D)
        coded(f"{blk}.ffn_latent_up.weight", f"{ours}.latent_up", D, 256)

    for i, kind in enumerate(main):
        blk, ours = f"blk.{i}", f"layers.{i}"
        plain(f"{blk}.attn_norm.weight", f"{ours}.norm", D)
        if kind == "M":
            coded(f"{blk}.ssm_in.weight", f"{ours}.in_proj", INNER + CONV + HEADS, D)
            plain(f"{blk}.ssm_conv1d.weight", f"{ours}.conv_w", CONV, 4)
            plain(f"{blk}.ssm_conv1d.bias", f"{ours}.conv_b", CONV)
            plain(f"{blk}.ssm_dt.bias", f"{ours}.dt_bias", HEADS, low=-5.0, high=-2.0)
            plain(f"{blk}.ssm_a", f"{ours}.A", HEADS, low=-8.0, high=-1.0, store=(HEADS, 1))
            plain(f"{blk}.ssm_d", f"{ours}.D", HEADS, store=(HEADS, 1))
            plain(f"{blk}.ssm_norm.weight", f"{ours}.gate_norm", INNER, store=(GROUPS, INNER // GROUPS))
            # Its 64 columns are no multiple of 256: a block of 32, as quantisers fall back to.
            coded(f"{blk}.ssm_out.weight", f"{ours}.out_proj", D, INNER, kind=Q.Q5_0)
        elif kind == "*":
            attention(blk, ours)
        elif kind == "-":
            coded(f"{blk}.ffn_up.weight", f"{ours}.up_proj", 256, D)
            coded(f"{blk}.ffn_down.weight", f"{ours}.down_proj", D, 256)
        else:
            experts(blk, ours)
    if draft:
        blk = f"blk.{len(main)}"
        plain(f"{blk}.attn_norm.weight", "draft.layers.0.norm", D)
        attention(blk, "draft.layers.0")
        plain(f"{blk}.post_attention_norm.weight", "draft.layers.1.norm", D)
        experts(blk, "draft.layers.1")
        coded(f"{blk}.nextn.eh_proj.weight", "draft.eh_proj", D, 2 * D, kind=Q.BF16)
        for theirs, ours in (("enorm", "enorm"), ("hnorm", "hnorm"), ("shared_head_norm", "final_norm")):
            plain(f"{blk}.nextn.{theirs}.weight", f"draft.{ours}", D)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return dict(sorted(want.items()))


if __name__ == "__main__":
    blocks()
    models = {
        "moe-00001-of-00002.gguf": model("moe", True, [
            Q.Q6_K, Q.Q8_0, Q.Q5_1, Q.NVFP4, Q.MXFP4, Q.Q4_0, Q.IQ4_XS, Q.Q3_K, Q.Q2_K, Q.IQ2_XXS], True),
        "dense.gguf": model("dense", False, [Q.Q4_K, Q.BF16, Q.Q5_K, Q.F16, Q.IQ4_NL, Q.Q4_1], False),
    }
    (HERE / "models.json").write_text(json.dumps(models, indent=1) + "\n")
