"""Trains the sample model's block drafters, DSpark and DFlash, on what the sample model says.

    train_drafters.py prompts OUT.npz                  tokenised conversations (needs tokenizers)
    train_drafters.py train KIND PROMPTS.npz OUTDIR    KIND is dspark or dflash
    train_drafters.py rounds PROMPTS.npz DIR           acceptance of DIR on held-out prompts

Needs torch, numpy and safetensors; a GPU helps (--device cuda).

Training: the target runs over conversations and answers them greedily; its residuals after the
tapped layers are the drafter's context.  At many random anchors of the assistant's text the drafter
sees the context before the anchor and a block [anchor, mask x7], and row r (1..7) learns what the
target says at the row's own position.  A row counts only where the text before it is what the
target would have said: a draft after a wrong one is never used.
"""
import argparse
import math
import os
import random
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from drafter import BLOCK, DIM, KV, LAYERS, MASK, Drafter, load, save
from target import MODEL, STOPS, Target


def conversation(r, corpus, tokens):
    """A conversation of about `tokens` tokens up to a question, the reply opened either way."""
    kinds, weights = zip(*corpus.KINDS)
    turns, size = [("system", "")], 0
    for _ in range(60):
        question, answer, *_ = r.choices(kinds, weights)[0](r)
        if size + len(question) + len(answer) + 60 < tokens * 3.6 - 120:
            turns += [("user", question), ("assistant", "<think></think>" + answer)]
            size += len(question) + len(answer) + 60
    turns.append(("user", r.choices(kinds, weights)[0](r)[0]))
    thinking = "<think>\n" if r.random() < .5 else "<think></think>"
    return corpus.render(turns) + "<|im_start|>assistant\n" + thinking


def make_prompts(out, short, long, held):
    """Writes training and held-out prompts, a flat int16 array each, and their lengths."""
    sys.path.insert(0, os.path.join(MODEL, "training"))
    import corpus
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(os.path.join(MODEL, "tokenizer.json"))
    sets = {}
    for name, seed, n, m in (("train", 50001, short, long), ("held", 70001, held, held)):
        r = random.Random(seed)
        texts = [corpus.prompt(t) for _, t in corpus.documents(seed, n)]
        texts += [
            conversation(r, corpus, math.exp(r.uniform(math.log(150), math.log(1700))))
            for _ in range(m)
        ]
        sets[name] = [e.ids for e in tok.encode_batch(texts, add_special_tokens=False)]
    seen = {tuple(p) for p in sets["train"]}
    sets["held"] = [p for p in sets["held"] if tuple(p) not in seen]
    arrays = {
        "assistant": np.array(tok.encode("assistant\n", add_special_tokens=False).ids, np.int16)
    }
    for name, prompts in sets.items():
        arrays[name] = np.fromiter((i for p in prompts for i in p), np.int16)
        arrays[name + "_sizes"] = np.array([len(p) for p in prompts], np.int32)
        assert not (arrays[name] == MASK).any(), "the mask id occurs in the corpus"
        print(f"{name}: {len(prompts)} prompts, {len(arrays[name])} tokens")
    np.savez_compressed(out, **arrays)


def prompts_of(file, name):
    cuts = np.cumsum(file[name + "_sizes"])[:-1]
    return [p.tolist() for p in np.split(file[name], cuts)]


def spoken(ids, end, assistant):
    """Which places hold tokens of the assistant: after the framing, up to and with the stop."""
    on, opens = (torch.zeros_like(ids, dtype=torch.bool) for _ in range(2))
    length, frame = ids.shape[1], [10] + assistant
    hit = torch.stack([ids[:, j:length - len(frame) + 1 + j] == f for j, f in enumerate(frame)])
    opens[:, len(frame) - 1:] = hit.all(0)
    now = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for t in range(length):
        on[:, t] = now
        now = (now | opens[:, t]) & (ids[:, t] != 10) & (ids[:, t] != STOPS[1])
    return on & (torch.arange(length, device=ids.device) < end[:, None])


@torch.no_grad()
def rounds(drafter, chunks):
    """Greedy rounds over greedy replies: tokens a pass, shares of rounds accepting 1..7 drafts.

    As an engine has it: the context is appended for the rows that a pass has committed, and for no
    others; a round's own keys and values are dropped.  A round is one pass; the first token of a
    reply is the prompt's.
    """
    total = count = 0
    accepted = torch.zeros(BLOCK - 1)
    for ids, _, taps, end, size in chunks:
        b, device = len(ids), ids.device
        rows = torch.arange(b, device=device)
        cache = [[torch.zeros(b, ids.shape[1], KV, DIM, device=device)
                  for _ in range(2)]
                 for _ in range(LAYERS)]
        done, n = torch.zeros_like(size), size.clone()
        while True:
            live = n < end - 1
            if not bool(live.any()):
                break
            widest = int((n - done).max())
            fresh = done[:, None] + torch.arange(widest, device=device)  # rows committed since
            at = fresh.clamp(max=ids.shape[1] - 1)
            for kept, new in zip(cache, drafter.context(taps[rows[:, None], at], at)):
                for c, t in zip(kept, new):
                    ok = (fresh < n[:, None])
                    c[rows[:, None].expand_as(at)[ok], at[ok]] = t[ok]
            done = n.clone()
            at = n.clamp(max=ids.shape[1] - 1)
            drafts = drafter.draft(cache, ids[rows, at][:, None], at[:, None])[:, 0]
            place = n[:, None] + torch.arange(1, BLOCK, device=device)
            said = ids[rows[:, None], place.clamp(max=ids.shape[1] - 1)]
            a = ((drafts == said) & (place < end[:, None])).cumprod(1).sum(1)
            step = torch.minimum(a + 1, end - 1 - n).clamp(min=0) * live
            total += int(step.sum())
            count += int(live.sum())
            for j in range(1, BLOCK):
                accepted[j - 1] += int(((a >= j) & live).sum())
            n = n + step
    return total / count, (accepted / count).tolist()


def report(name, drafter, chunks):
    rate, by_position = rounds(drafter, chunks)
    print(f"{drafter.kind} {name}: {rate:.3f} tokens a pass; accepted by position " +
          " ".join(f"{v:.2f}" for v in by_position),
          flush=True)


def replies(target, prompts, batch, more, cap=2048):
    """Prompts by length, answered greedily, in chunks (ids, best, taps, end, prompt sizes)."""
    prompts, chunks = sorted((p for p in prompts if len(p) + more <= cap), key=len), []
    while prompts:
        take = max(16, batch * 512 // max(512, len(prompts[min(batch, len(prompts)) - 1]) + more))
        now, prompts = prompts[:take], prompts[take:]
        ids, best, taps, end = target.greedy(now, more)
        size = torch.tensor([len(p) for p in now], device=ids.device)
        longest = int(end.max())
        chunks.append(tuple(t[:, :longest].clone() for t in (ids, best, taps)) + (end, size))
    return chunks


def conversations(a, target):
    """Training chunks (ids, best, taps, end, anchors' places, end on the CPU), held-out chunks."""
    file, rng = np.load(a.prompts), np.random.default_rng(13)
    prompts, held = prompts_of(file, "train"), prompts_of(file, "held")
    if a.limit:
        prompts = [prompts[i] for i in rng.permutation(len(prompts))[:a.limit]]
        held = held[::max(1, len(held) // max(16, a.limit // 16))]
    if a.cap:
        prompts, held = ([p for p in s if len(p) + a.more <= a.cap] for s in (prompts, held))
    test, data = replies(target, held, a.batch, a.more), []
    for ids, best, taps, end, _ in replies(target, prompts, a.batch, a.more):
        on = spoken(ids, end, file["assistant"].tolist())
        # An anchor needs something after it to draft.
        on &= torch.arange(ids.shape[1], device=ids.device) < end[:, None] - 1
        data.append((ids, best, taps, end, on, end.cpu()))
    return data, test


def block_loss(drafter, ids, best, taps, end, on, blocks):
    """Cross-entropy at the rows 1..7 of `blocks` blocks per conversation, at random anchors.

    Row r stands at anchor + r.  It counts while the text before it is what the target says and has
    not ended, and the less the further it is.
    """
    length, ahead = ids.shape[1], torch.arange(BLOCK - 1, device=ids.device)
    at = torch.multinomial(on.float() + 1e-9, blocks, replacement=True)  # [b, blocks]
    before = at[..., None] + ahead  # the place before each row's own: [b, blocks, 7]
    known = before < end[:, None, None]
    before = before.clamp(max=length - 1)
    line = torch.arange(len(ids), device=ids.device)[:, None, None]
    previous, label = ids[line, before], best[line, before]
    own = previous == best[line, (before - 1).clamp(min=0)]
    own[..., 0] = on.gather(1, at)  # any anchor will do
    going = (previous != STOPS[0]) & (previous != STOPS[1])
    weight = (own & going & known).cumprod(-1) * torch.exp(-ahead / 5.0)
    context = drafter.context(taps, torch.arange(length, device=ids.device).expand(len(ids), -1))
    logits = F.linear(drafter.block(context, ids.gather(1, at), at), drafter.head)
    if drafter.markov_head is not None:
        logits = logits + drafter.bias(previous)
    loss = F.cross_entropy(logits.flatten(0, 2), label.flatten(), reduction="none")
    return (loss * weight.flatten()).sum() / weight.sum().clamp(min=1)


def train(a):
    torch.manual_seed(11)
    torch.set_num_threads(a.threads)
    torch.set_float32_matmul_precision("high")
    start, rng, target = time.time(), np.random.default_rng(17), Target(device=a.device)
    say = lambda text: print(f"{time.time() - start:.0f} s: {text}", flush=True)
    data, test = conversations(a, target)
    share = np.array([float(d[4].sum()) for d in data])
    say(f"{sum(len(d[0]) for d in data)} conversations, {sum(int(d[5].sum()) for d in data)} "
        f"tokens, {share.sum():.0f} anchors")
    drafter = Drafter(a.kind, target.raw).to(a.device)
    report("untrained", drafter, test)
    optimiser = torch.optim.AdamW(
        [{"params": [p for p in drafter.parameters() if p.dim() >= 2], "weight_decay": .05},
         {"params": [p for p in drafter.parameters() if p.dim() < 2], "weight_decay": 0.}],
        lr=a.rate, betas=(.9, .95), fused=a.device.startswith("cuda"))
    step, begin, shown, losses = 0, time.time(), 0.0, []
    while True:
        done = step / a.steps if a.steps else (time.time() - begin) / a.seconds
        if done >= 1:
            break
        for g in optimiser.param_groups:  # a hundred steps up, then level, then down to nothing
            g["lr"] = a.rate * min(1, (step + 1) / 100) * max(.02, min(1, (1 - done) / .5))
        *chunk, ends = data[rng.choice(len(data), p=share / share.sum())]
        rows = max(1, min(len(ends), a.tokens // chunk[0].shape[1]))
        pick = torch.from_numpy(rng.choice(len(ends), rows, replace=False))
        longest, pick = int(ends[pick].max()), pick.to(a.device)
        batch = [t[pick] if t.dim() == 1 else t[pick, :longest] for t in chunk]
        loss = block_loss(drafter, *batch, max(1, a.anchors // rows))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.detach())
        step += 1
        if time.time() - shown > a.every:
            shown = time.time()
            say(f"step {step}, loss {torch.stack(losses).mean():.3f}")
            losses = []
    save(drafter, target, a.out)
    report(f"after {step} steps", load(a.out, target).to(a.device), test)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    p = what.add_parser("prompts")
    p.add_argument("out")
    p.add_argument("--short", type=int, default=24000)
    p.add_argument("--long", type=int, default=3000)
    p.add_argument("--held", type=int, default=128)
    t, r = what.add_parser("train"), what.add_parser("rounds")
    t.add_argument("kind", choices=("dspark", "dflash"))
    for s in (t, r):
        s.add_argument("prompts")
        s.add_argument("out")
        s.add_argument("--device", default="cpu")
        s.add_argument("--batch", type=int, default=256, help="conversations answered at once")
        s.add_argument("--more", type=int, default=160, help="tokens of a reply at most")
    t.add_argument("--seconds", type=float, default=85, help="of training, without the replies")
    t.add_argument("--steps", type=int, default=0, help="of training, instead of seconds")
    t.add_argument("--rate", type=float, default=2e-3)
    t.add_argument("--tokens", type=int, default=2048, help="context tokens a step")
    t.add_argument("--anchors", type=int, default=96, help="blocks a step")
    t.add_argument("--limit", type=int, default=0, help="conversations to use (0: all)")
    t.add_argument("--cap", type=int, default=0, help="the longest conversation to use (0: 2048)")
    t.add_argument("--every", type=float, default=10, help="seconds between lines")
    t.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    if a.what == "prompts":
        return make_prompts(a.out, a.short, a.long, a.held)
    if a.what == "train":
        return train(a)
    target, held = Target(device=a.device), prompts_of(np.load(a.prompts), "held")
    report(a.out, load(a.out, target).to(a.device), replies(target, held, a.batch, a.more))


if __name__ == "__main__":
    main()
