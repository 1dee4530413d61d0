#!/usr/bin/env python3
"""Small seeds for the fuzzers beside this file, one folder each: safetensors, gguf, package.

    make_seeds.py PACKAGE FOLDER     (numpy and gguf; PACKAGE is a folder that bolt convert made)

Small, since an execution's time goes with its input's bytes: a handful of tokens and of tensors.
"""
import json
import re
import struct
import sys
from pathlib import Path

import gguf
import numpy as np


def safetensors_seeds(folder):
    def write(name, header, data=b""):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + data)

    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    write("empty", {})
    write("one", {"a": entry("F32", [3], 0, 12)}, bytes(12))
    write("scalar", {"a": entry("BF16", [], 0, 2)}, bytes(2))
    write("none", {"a": entry("U8", [0], 0, 0)})
    write("metadata", {"__metadata__": {"format": "pt"}, "w": entry("F16", [2, 3], 0, 12)}, bytes(12))
    dtypes = ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8",
              "F8_E4M3", "F8_E5M2", "F8_E8M0", "BOOL"]
    sizes = [8, 4, 2, 2, 8, 4, 2, 1, 8, 4, 2, 1, 1, 1, 1, 1]
    header, at = {}, 0
    for dtype, size in zip(dtypes, sizes):
        header[f"layers.0.{dtype}"] = entry(dtype, [1, 2], at, at + 2 * size)
        at += 2 * size
    write("dtypes", header, bytes(at))
    write("overlap", {"k": entry("U8", [4], 0, 4), "v": entry("U8", [4], 2, 6)}, bytes(6))
    write("hole", {"k": entry("U8", [4], 0, 4), "v": entry("U8", [4], 8, 12)}, bytes(12))
    write("behind", {"a": entry("U8", [4], 8, 4)}, bytes(8))
    write("large", {"a": entry("F32", [1 << 62, 8], 0, 8)}, bytes(8))
    write("twice", b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                   b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', bytes(1))
    (folder / "long").write_bytes(struct.pack("<Q", 1 << 63) + b"{}")
    (folder / "page").write_bytes(b"<!DOCTYPE html><html></html>")


def gguf_seeds(folder):
    kinds = [gguf.GGMLQuantizationType[name] for name in
             ("F32", "BF16", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", "Q2_K",
              "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ2_XXS", "NVFP4")]
    for seed, some in enumerate([kinds[:4], kinds[4:10], kinds[10:14], kinds[14:], []]):
        w = gguf.GGUFWriter(str(folder / f"model{seed}"), "nemotron_h_moe" if seed % 2 else "nemotron_h")
        w.add_context_length(4096)
        w.add_block_count(2)
        w.add_embedding_length(32)
        w.add_feed_forward_length([0, 64])
        w.add_head_count([0, 2])
        w.add_head_count_kv([0, 1])
        w.add_layer_norm_rms_eps(1e-5)
        w.add_key_length(16)
        w.add_ssm_conv_kernel(4)
        w.add_ssm_state_size(16)
        w.add_ssm_group_count(1)
        w.add_ssm_inner_size(32)
        w.add_ssm_time_step_rank(2)
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("pixtral" if seed % 2 else "tekken")
        w.add_token_list(["<s>", "</s>", "a", "b", "ab", "[PAD5]"])
        w.add_token_types([3, 3, 1, 1, 1, 5])
        w.add_token_merges(["a b"])
        w.add_bos_token_id(0)
        w.add_eos_token_id(1)
        w.add_add_bos_token(True)
        w.add_chat_template("{{ messages }}")
        for i, kind in enumerate(some):
            # One row of one block, or of 8 numbers, as bytes.
            block, size = gguf.GGML_QUANT_SIZES[kind]
            row = np.full((1, size if block > 1 else 8 * size), 17, np.uint8)
            w.add_tensor(f"blk.{i}.w", row, raw_dtype=kind)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
    (folder / "old").write_bytes(b"GGUF" + struct.pack("<IQQ", 99, 0, 0))
    (folder / "big-endian").write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    (folder / "huge").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 58, 1 << 58))
    (folder / "ggjt").write_bytes(b"tjgg" + struct.pack("<IQQ", 3, 0, 0))


def package_seeds(folder, package):
    texts = [(package / name).read_bytes() for name in ("package.json", "config.json", "graph.json")]
    (folder / "whole").write_bytes(b"\0".join(texts))
    (folder / "manifest").write_bytes(texts[0])
    (folder / "config").write_bytes(b"\0" + texts[1])
    short = re.sub(rb'"chat_facts": "(\\.|[^"\\])*"', b'"chat_facts": ""', texts[1])
    (folder / "short").write_bytes(b"{}\0" + short + b"\0" + texts[2])


def main():
    package, out = Path(sys.argv[1]), Path(sys.argv[2])
    for name in ("safetensors", "gguf", "package"):
        (out / name).mkdir(parents=True, exist_ok=True)
    safetensors_seeds(out / "safetensors")
    gguf_seeds(out / "gguf")
    package_seeds(out / "package", package)


main()
