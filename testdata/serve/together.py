#!/usr/bin/env python3
"""real30 sent together to `bolt serve-stdin`: do ids and logits equal those of a run by themselves?

    testdata/serve/together.py BOLT PACKAGE [--device cuda:0] [--tokens N] [--parallel N,...] [--jobs N]

Every prompt, greedy and at a temperature with filters, in three arrival orders, drafted and not, at
each number of requests at once; the reference is the CPU, one request at a time, without drafts.
Prints a line and exits with 1 if any reply differs, or if a control does not: the reference with
another seed at that temperature. Python's own library alone.
"""
import argparse
import concurrent.futures
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile

PROMPTS = pathlib.Path(__file__).resolve().parent.parent / "prompts/real30.jsonl"
SAMPLINGS = {"greedy": {"temperature": 0},
             "sampled": {"temperature": 1.1, "top_p": 0.95, "top_k": 200, "seed": 7},
             "control": {"temperature": 1.1, "top_p": 0.95, "top_k": 200, "seed": 8}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bolt")
    parser.add_argument("package")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--parallel", default="1,2,4,8,16")
    parser.add_argument("--jobs", type=int, default=1, help="servers side by side")
    args = parser.parse_args()
    tasks = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]

    def replies(sampling, device, parallel, draft, order):
        chosen = tasks[:]
        if order:
            random.Random(order).shuffle(chosen)
        lines = "".join(json.dumps({
            "id": task["custom_id"], "messages": task["messages"], "max_tokens": args.tokens,
            "logits_sha256": True, **SAMPLINGS[sampling]}) + "\n" for task in chosen)
        with tempfile.TemporaryDirectory() as receipts:
            run = subprocess.run(
                [args.bolt, "serve-stdin", "-q", "-m", args.package, "--device", device,
                 "--parallel", str(parallel), "--draft", draft, "--receipts", receipts],
                input=lines, capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"status {run.returncode}: {run.stderr.strip()}")
        done = map(json.loads, run.stdout.splitlines())
        return {reply["id"]: (reply["ids"], reply["logits_sha256"]) for reply in done}

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        references = {name: pool.submit(replies, name, "cpu", 1, "off", 0) for name in SAMPLINGS}
        settings = list(itertools.product(("greedy", "sampled"), (args.device,),
                                          args.parallel.split(","), ("off", "auto", "mtp"), range(3)))
        served = [pool.submit(replies, *setting) for setting in settings]
        alone = {name: reference.result() for name, reference in references.items()}
        n_compared, n_different = 0, 0
        for (sampling, _, parallel, draft, order), together in zip(settings, served):
            for name, expected in alone[sampling].items():
                n_compared += 1
                if together.result().get(name) != expected:
                    n_different += 1
                    print(f"DIFFERENT {name}: {sampling}, {parallel} at once, --draft {draft}, "
                          f"order {order}")
    n_blind = sum(alone["sampled"][name] == alone["control"][name] for name in alone["sampled"])
    print(f"{n_compared - n_different} of {n_compared} replies on {args.device} equal the CPU's, one "
          f"at a time; with another seed {n_blind} of {len(tasks)} do")
    return 1 if n_different or n_blind > len(tasks) // 2 else 0


sys.exit(main())
