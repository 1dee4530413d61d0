#!/usr/bin/env python3
"""`bolt run` on a GPU, or on several ranks, against the CPU: are the logits files byte-equal?

    testdata/cuda/equal.py BOLT PACKAGE [--jobs N] [--tokens N] [--device cuda:0|cuda:0+1|cpu:2]
                          [--only K/N] [--all]
                          [--way OPTIONS]...

Every golden's prompt (as ids), real30's last user turn (through the chat template), greedy and at a
temperature with filters; on the GPU without drafts, with the depth rule, and in turn (or all, with
--all) with seven drafts, in chunks of 1 to 512, with short windows, without captured graphs. Prints
lines as it goes, and exits with 1 if any two files differ, or if a control does not: the CPU's float32
attention cache, which rounds otherwise.
Source of the prompts: testdata/sample-model/goldens, testdata/prompts. Python's own library alone.
"""
import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent.parent
WAYS = [["--draft", "off"], ["--draft", "auto"], ["--draft", "mtp", "--drafts", "7"],
        ["--draft", "auto", "--drafts", "31", "--chunk", "1"],
        ["--draft", "auto", "--window", "5", "--chunk", "7", "--no-graphs"],
        ["--draft", "off", "--chunk", "512"], ["--draft", "copy", "--no-graphs"]]
SAMPLINGS = [["--temp", "0"], ["--temp", "0.8", "--top-p", "0.95", "--top-k", "40", "-s", "7"],
             ["--temp", "2", "-s", "9"]]


def golden_ids():
    data = (HERE / "sample-model/goldens/goldens.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    for name in sorted(key for key in header if key.startswith("prompt")):
        first, last = header[name]["data_offsets"]
        body = data[8 + size + first:8 + size + last]
        yield name, list(struct.unpack(f"<{len(body) // 4}i", body))


def prompts(folder):
    """(name, arguments) of every prompt."""
    for name, ids in golden_ids():
        file = folder / f"{name}.json"
        file.write_text(json.dumps(ids), encoding="utf-8")
        yield name, ["--prompt-ids", str(file)]
    for line in (HERE / "prompts/real30.jsonl").read_text(encoding="utf-8").splitlines():
        task = json.loads(line)
        file = folder / f"{task['custom_id']}.txt"
        file.write_text(task["messages"][-1]["content"], encoding="utf-8")
        yield task["custom_id"], ["-f", str(file)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bolt")
    parser.add_argument("package")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--all", action="store_true", help="every prompt every way")
    parser.add_argument("--way", action="append", help="options of a way instead of those above, as "
                        "one argument ('--draft dflash --drafts 7'); may be given again")
    parser.add_argument("--only", default="0/1", help="the K-th of N parts of the prompts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        folder = pathlib.Path(where)

        def digest(name, how):
            tag = hashlib.sha256(" ".join([name, *how]).encode()).hexdigest()[:16]
            out = folder / f"{tag}.safetensors"
            command = [args.bolt, "run", "-m", args.package, "-q", "-n", str(args.tokens), "-t", "1",
                       "--receipts", str(folder / tag), "--logits", str(out), *how]
            run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if run.returncode != 0:
                return f"status {run.returncode}: {run.stderr.strip()}"
            sha256 = hashlib.sha256(out.read_bytes()).hexdigest()
            out.unlink()
            return sha256

        part, parts = map(int, args.only.split("/"))
        chosen = [p for i, p in enumerate(prompts(folder)) if i % parts == part]
        jobs = []  # (what, prompt and sampling, how)
        for name, prompt in chosen:
            for sampling in SAMPLINGS:
                key = (name, " ".join(sampling))
                jobs.append((key, "cpu", [*prompt, *sampling, "--device", "cpu", "--draft", "off"]))
                if args.way:
                    ways = [way.split() for way in args.way]
                elif args.all:
                    ways = WAYS
                else:
                    ways = WAYS[:2] + [WAYS[2 + len(jobs) % (len(WAYS) - 2)]]  # the others in turn
                if args.device.startswith("cpu"):  # ranks of the CPU, which captures no graphs
                    ways = [[option for option in way if option != "--no-graphs"] for way in ways]
                jobs += [(key, " ".join(way), [*prompt, *sampling, "--device", args.device, *way])
                         for way in ways]
            jobs.append(((name, "control"), "cpu", [*prompt, *SAMPLINGS[0], "--device", "cpu",
                                                    "--draft", "off", "--kv", "f32"]))
        reference = {}  # a key's first job is the CPU's
        n_compared = n_different = 0
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            answers = pool.map(lambda job: digest(job[0][0], job[2]), jobs)
            for (key, what, _), sha256 in zip(jobs, answers):
                if what == "cpu":
                    reference[key] = sha256
                    continue
                n_compared += 1
                if sha256 != reference[key]:
                    n_different += 1
                    print(f"DIFFERENT {key[0]}, {key[1]}, {what}: {sha256}, on the CPU "
                          f"{reference[key]}", flush=True)
                if n_compared % 50 == 0:  # who is cut short has seen so many
                    print(f"{n_compared - n_different} of {n_compared} equal so far", flush=True)
    blind = [name for name, _ in chosen
             if reference[name, "control"] == reference[name, " ".join(SAMPLINGS[0])]]
    for name in blind:
        print(f"BLIND {name}: another arithmetic gave the same logits file")
    print(f"{n_compared - n_different} of {n_compared} logits files of the GPU equal the CPU's; "
          f"{len(chosen) - len(blind)} of {len(chosen)} controls differ")
    return 1 if n_different or blind or not n_compared else 0


sys.exit(main())
