#!/usr/bin/env python3
"""How fast `bolt convert` copies a checkpoint, against `cp` of the same bytes on the same disk.

    measure_convert.py BOLT FOLDER [GIB] [RUNS]     (numpy)

Makes a BF16 checkpoint of random weights under FOLDER (4 GiB in two shards unless said otherwise),
then takes turns: cp and a sync, convert (which verifies and syncs), convert --no-verify. Every turn
begins with the source in memory and no target. Prints each median, the ratio to cp's, and the most
memory that any of them held besides the page cache.
"""
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SAMPLE = Path(__file__).resolve().parent.parent / "sample-model"
D, FF, HEADS, DIM = 2048, 16384, 4, 128


def tensors_of(n_mlps, vocab):
    yield "backbone.embeddings.weight", [vocab, D]
    yield "lm_head.weight", [vocab, D]
    yield "backbone.norm_f.weight", [D]
    for name, shape in (("q", [HEADS * DIM, D]), ("k", [DIM, D]), ("v", [DIM, D]),
                        ("o", [D, HEADS * DIM])):
        yield f"backbone.layers.0.mixer.{name}_proj.weight", shape
    yield "backbone.layers.0.norm.weight", [D]
    for i in range(1, n_mlps + 1):
        yield f"backbone.layers.{i}.norm.weight", [D]
        yield f"backbone.layers.{i}.mixer.up_proj.weight", [FF, D]
        yield f"backbone.layers.{i}.mixer.down_proj.weight", [D, FF]


def make(folder, gib):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = json.loads((SAMPLE / "config.json").read_text())
    n_mlps = max(1, round(gib * 2**30 / (4 * D * FF)))
    config.update(hidden_size=D, intermediate_size=FF, num_hidden_layers=n_mlps + 1,
                  hybrid_override_pattern="*" + "-" * n_mlps, num_nextn_predict_layers=0)
    del config["mtp_hybrid_override_pattern"]
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json",
                 "chat_template.jinja"):
        shutil.copy(SAMPLE / name, folder)
    rng = np.random.default_rng(1)
    # Finite BF16 bits; the same block again and again, at other offsets.
    block = (rng.integers(0, 1 << 16, 1 << 24, dtype=np.uint16) & 0xbfff).tobytes() * 3
    tensors = list(tensors_of(n_mlps, config["vocab_size"]))
    index = {}
    for shard in range(2):
        name = f"model-{shard + 1:05}-of-00002.safetensors"
        header, at = {}, 0
        mine = tensors[shard::2]
        for tensor, shape in mine:
            size = 2 * int(np.prod(shape))
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            index[tensor] = name
            at += size
        text = json.dumps(header).encode()
        with open(folder / name, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for i, (tensor, shape) in enumerate(mine):
                size, offset = 2 * int(np.prod(shape)), 2 * (i * 977 % 4096)
                assert offset + size <= len(block)
                f.write(block[offset:offset + size])
            os.fsync(f.fileno())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


peak_kib = 0


def seconds(*command):
    global peak_kib
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"failed: {' '.join(command)}")
    peak_kib = max(peak_kib, usage.ru_maxrss)
    return time.monotonic() - begin


def main():
    if sys.argv[1] == "--make":
        return make(Path(sys.argv[2]), float(sys.argv[3]))
    bolt, folder = sys.argv[1], Path(sys.argv[2])
    gib = float(sys.argv[3]) if len(sys.argv) > 3 else 4
    runs = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    source = folder / "checkpoint"
    # In a process of its own: a child's resident memory is counted from its parent's on.
    subprocess.run([sys.executable, __file__, "--make", str(source), str(gib)], check=True)
    n_bytes = sum(f.stat().st_size for f in source.iterdir())
    convert = (bolt, "convert", "--quiet", "--receipts", str(folder / "receipts"), str(source))

    def copy(target):
        begin = time.monotonic()
        shutil.copytree(source, target, copy_function=lambda a, b: seconds("cp", a, b))
        for file in target.iterdir():
            seconds("sync", str(file))
        return time.monotonic() - begin

    ways = {"cp": copy,
            "convert": lambda target: seconds(*convert, str(target)),
            "convert --no-verify": lambda target: seconds(*convert, "--no-verify", str(target))}
    times = {name: [] for name in ways}
    for turn in range(runs):
        for name in (list(ways) if turn % 2 == 0 else reversed(list(ways))):
            for file in source.iterdir():
                subprocess.run(["cat", str(file)], stdout=subprocess.DEVNULL, check=True)
            target = folder / "target.bolt"
            times[name].append(ways[name](target))
            shutil.rmtree(target)
            (folder / "target.bolt.jsonl").unlink(missing_ok=True)
    cp = statistics.median(times["cp"])
    print(f"{n_bytes / 2**30:.2f} GiB, {runs} runs")
    for name, all_times in times.items():
        median = statistics.median(all_times)
        print(f"{name:20} {n_bytes / median / 1e6:8.0f} MB/s  {cp / median:5.2f} of cp  "
              f"({min(all_times):.2f} to {max(all_times):.2f} s)")
    print(f"at most {peak_kib / 1024:.0f} MiB resident in any process")
    shutil.rmtree(folder)


main()
