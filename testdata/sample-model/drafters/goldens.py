"""Drafts of the sample model's drafters under greedy verification, from a plain float64 reference.

    python3 goldens.py            writes goldens.safetensors beside itself, prints the acceptance
    python3 goldens.py --twins    prints the acceptance of wrong drafters too, one mistake each

The drafters below are written in numpy from their checkpoints and config.json, apart from
train_drafters.py, a round at a time: append the committed rows' context, run the block, choose,
verify, drop the block.  Needs torch (the target in float64), numpy, safetensors, tokenizers,
jinja2.  README.md lists the tensors.
"""
import argparse
import copy
import json
import os

# Eight rows at a time: more threads only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jinja2
import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from tokenizers import Tokenizer

from target import MODEL, STOPS, Target

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = ("dspark", "dflash")
REPLY = 64  # tokens of a reply at most
OWN, SHOWN = 6, (0, 8, 10, 13, 21, 25)  # goldens: the first of ../goldens, these of real30


def rms(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


class Drafter:
    """`twin` names one mistake to make (see TWINS), or is empty."""

    def __init__(self, path, head, table, twin=""):
        self.c = c = json.load(open(os.path.join(path, "config.json")))
        self.w = {
            n: t.double().numpy()
            for n, t in load_file(os.path.join(path, "model.safetensors")).items()
        }
        self.head, self.twin = head, twin
        self.embed, mask = self.w["embed_tokens.weight"].copy(), c["mask_token_id"]
        changed = np.flatnonzero((self.embed != table).any(1)).tolist()
        assert changed == [mask], f"{path}: rows {changed} are not the target's, expected {mask}"
        if twin == "target's mask row":
            self.embed[mask] = table[mask]
        self.block, self.eps = c.get("block_size") or 8, c["rms_norm_eps"]
        self.causal = c["dflash_config"]["causal"] != (twin == "other block mask")
        self.window = None if twin == "no window" else c["sliding_window"]
        self.sinks = c["attention_sink_bias"] and twin != "no sinks"
        self.markov = c["markov_rank"] if twin != "no Markov head" else None
        self.frequency, self.magnitude = self.rope_parameters()
        assert c["num_key_value_heads"] == 1 and not c["sample_from_anchor"]

    def fresh(self):
        """The drafter with an empty context."""
        new, empty = copy.copy(self), np.zeros((0, self.c["head_dim"]))
        new.keys, new.values = ([empty] * self.c["num_hidden_layers"] for _ in range(2))
        new.places = np.zeros(0, int)
        return new

    def rope_parameters(self):
        c = self.c
        half, theta = c["head_dim"] // 2, c["rope_theta"]
        plain = theta**(-np.arange(half) / half)
        yarn = c["rope_parameters"]
        if yarn is None or self.twin == "plain rope":
            return plain, 1.0
        original, factor = yarn["original_max_position_embeddings"], yarn["factor"]
        # The dimension whose wave turns `beta` times over the original length.
        dimension = lambda beta: half * np.log(original / (2 * np.pi * beta)) / np.log(theta)
        low, high = np.floor(dimension(32)), np.ceil(dimension(1))
        stretched = np.clip((np.arange(half) - low) / (high - low), 0, 1)
        magnitude = 1.0 if self.twin == "no YaRN magnitude" else 0.1 * np.log(factor) + 1
        return plain / factor * stretched + plain * (1 - stretched), magnitude

    def rope(self, x, places):
        """x [rows, heads, head_dim] turned to its rows' places."""
        turn = np.exp(1j * np.outer(places, self.frequency))[:, None] * self.magnitude
        half = x.shape[-1] // 2
        if self.twin == "interleaved rope":
            z = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
            return np.stack([z.real, z.imag], -1).reshape(x.shape)
        z = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([z.real, z.imag], -1)

    def project(self, l, name, x):
        return x @ self.w[f"layers.{l}.self_attn.{name}_proj.weight"].T

    def keys_of(self, l, x, places):
        k = rms(self.project(l, "k", x), self.w[f"layers.{l}.self_attn.k_norm.weight"], self.eps)
        return self.rope(k[:, None], places)[:, 0]

    def append(self, taps, places):
        """Context of newly committed rows: taps [rows, -] at their places."""
        c = taps @ self.w["fc.weight"].T
        if self.twin != "no hidden_norm":
            c = rms(c, self.w["hidden_norm.weight"], self.eps)
        for l in range(len(self.keys)):
            x = c
            if self.twin == "input_layernorm on context":
                x = rms(c, self.w[f"layers.{l}.input_layernorm.weight"], self.eps)
            self.keys[l] = np.concatenate([self.keys[l], self.keys_of(l, x, places)])
            self.values[l] = np.concatenate([self.values[l], self.project(l, "v", x)])
        self.places = np.concatenate([self.places, places])

    def draft(self, anchor, n):
        """Drafts [7] after the anchor at place n, and the lead of each over the next best logit."""
        c, w = self.c, self.w
        heads, dim, rows = c["num_attention_heads"], c["head_dim"], self.block
        places = n + np.arange(rows)
        x = self.embed[[anchor] + [c["mask_token_id"]] * (rows - 1)]
        at = np.concatenate([self.places, places])
        hidden = np.zeros((rows, len(at)), bool)
        if self.causal:
            hidden |= at > places[:, None]
        if self.window:
            hidden |= at <= places[:, None] - self.window
        scratch = []
        for l in range(c["num_hidden_layers"]):
            p = f"layers.{l}."
            h = rms(x, w[p + "input_layernorm.weight"], self.eps)
            q = self.project(l, "q", h).reshape(rows, heads, dim)
            q = self.rope(rms(q, w[p + "self_attn.q_norm.weight"], self.eps), places)
            own = self.keys_of(l, h, places), self.project(l, "v", h)
            scratch.append(own)
            k, v = np.concatenate([self.keys[l], own[0]]), np.concatenate([self.values[l], own[1]])
            score = np.einsum("rhd,kd->rhk", q, k) / np.sqrt(dim)
            score[np.broadcast_to(hidden[:, None], score.shape)] = -np.inf
            top = score.max(-1, keepdims=True)
            e = np.exp(score - top)
            total = e.sum(-1, keepdims=True)
            if self.sinks:
                total = total + np.exp(w[p + "self_attn.attention_sink_bias"][:, None] - top)
            x = x + self.project(l, "o", (np.einsum("rhk,kd->rhd", e, v) / total).reshape(rows, -1))
            h = rms(x, w[p + "post_attention_layernorm.weight"], self.eps)
            gate = h @ w[p + "mlp.gate_proj.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) *
                     (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
        if self.twin == "block rows kept":  # the round's own keys and values stay in the context
            for l, (k, v) in enumerate(scratch):
                self.keys[l], self.values[l] = np.concatenate([self.keys[l], k]), np.concatenate(
                    [self.values[l], v])
            self.places = at
        base = rms(x, w["norm.weight"], self.eps) @ self.head.T
        base = base[:-1] if self.twin == "row 0 read" else base[1:]
        drafts, leads = [], []
        for logits in base:
            if self.markov:
                previous = drafts[-1] if drafts else anchor
                logits = logits + w["markov_head.markov_w2.weight"] @ w[
                    "markov_head.markov_w1.weight"][previous]
            best = int(np.argmax(logits))
            drafts.append(best)
            second, first = np.partition(logits, -2)[-2:]
            leads.append(first - second)
        return drafts, leads


def rounds(drafter, prompt, reply, taps):
    """Greedy rounds over a reply that the target has given: drafts [R, 7], leads [R, 7], accepted
    [R].

    taps: of prompt and reply.  A round's anchor is the first token not yet consumed; its drafts are
    compared with what the target said; then the anchor and the accepted drafts are committed, and
    their taps alone are appended.
    """
    n, done, drafts, leads, accepted = len(prompt), 0, [], [], []
    text = prompt + reply
    while n < len(text) - 1:
        drafter.append(taps[done:n], np.arange(done, n))
        done = n
        d, lead = drafter.draft(text[n], n)
        a = 0
        while a < len(d) and n + 1 + a < len(text) and d[a] == text[n + 1 + a]:
            a += 1
        drafts.append(d)
        leads.append(lead)
        accepted.append(a)
        n += a + 1
    return drafts, leads, accepted


def real_rounds(target, drafter, prompt, tokens):
    """The same with the target in the loop: each round's eight rows are run, then rolled back to
    the accepted ones.
    """
    state, taps = target.start(1, len(prompt) + tokens + 16), []
    for t in prompt:
        logits, tap = target.step(torch.tensor([t]), state)
        taps.append(tap)
    text, n, done, drafts, accepted = list(prompt) + [int(logits.argmax())], len(prompt), 0, [], []
    while len(text) < len(prompt) + tokens and text[-1] not in STOPS:
        drafter.append(torch.cat(taps[done:n]).double().numpy(), np.arange(done, n))
        done = n
        d, _ = drafter.draft(text[n], n)
        states, said, seen = [target.copy(state)], [], []
        for t in [text[n]] + d:
            logits, tap = target.step(torch.tensor([t]), state)
            states.append(target.copy(state))
            said.append(int(logits.argmax()))
            seen.append(tap)
        a, room = 0, len(prompt) + tokens - len(text)
        while a < min(len(d), room) and d[a] == said[a] and (a == 0 or d[a - 1] not in STOPS):
            a += 1
        for t in said[:min(a + 1, room)]:
            text.append(t)
            if t in STOPS:
                break
        state = states[a + 1]
        taps += seen[:a + 1]
        n += a + 1
        drafts.append(d)
        accepted.append(a)
    return text[len(prompt):], drafts, accepted


def real30():
    """The prompts of real30.jsonl through the chat template, thinking off."""
    tokenizer = Tokenizer.from_file(os.path.join(MODEL, "tokenizer.json"))
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
        open(os.path.join(MODEL, "chat_template.jinja"), encoding="utf-8").read())
    with open(os.path.join(MODEL, "..", "prompts", "real30.jsonl"), encoding="utf-8") as lines:
        texts = [
            template.render(messages=json.loads(line)["messages"],
                            add_generation_prompt=True,
                            enable_thinking=False) for line in lines
        ]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def answers(target, prompts):
    """Greedy replies and taps of all prompts, run in batches of like length."""
    out, order = [None] * len(prompts), sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for first in range(0, len(order), 8):
        group = order[first:first + 8]
        ids, _, taps, end = target.greedy([prompts[i] for i in group], REPLY)
        for j, i in enumerate(group):
            out[i] = ids[j, len(prompts[i]):end[j]].tolist(), taps[j, :end[j]].double().numpy()
    return out


# A mistake, and the kinds that can make it.
TWINS = {
    "target's mask row": KINDS,
    "taps a row late": KINDS,
    "taps a layer early": KINDS,
    "normed taps": KINDS,
    "no hidden_norm": KINDS,
    "input_layernorm on context": KINDS,
    "block rows kept": KINDS,
    "row 0 read": KINDS,
    "other block mask": KINDS,
    "interleaved rope": KINDS,
    "no window": ("dspark",),
    "no sinks": ("dspark",),
    "no Markov head": ("dspark",),
    "plain rope": ("dflash",),
    "no YaRN magnitude": ("dflash",),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twins", action="store_true")
    twins = parser.parse_args().twins
    target = Target(dtype=torch.float64)
    head = target.w["lm_head.weight"].numpy()
    table = target.w["backbone.embeddings.weight"].numpy()
    chat = real30()
    given = load_file(os.path.join(MODEL, "goldens", "goldens.safetensors"))
    own = [given[f"prompt{i}"].tolist() for i in range(OWN)]
    prompts, heard = own + chat, answers(target, own + chat)
    shown = list(range(OWN)) + [OWN + i for i in SHOWN]
    make = lambda kind, twin="": Drafter(os.path.join(HERE, kind), head, table, twin)
    out, i32 = {}, lambda v: np.array(v, np.int32)

    for g, i in enumerate(shown):
        out[f"prompt{g}"], out[f"reply{g}"] = i32(prompts[i]), i32(heard[i][0])
    for kind in KINDS:
        drafter, sums, depths = make(kind), np.zeros((len(chat), 2), np.int32), []
        for i, (prompt, (reply, taps)) in enumerate(zip(prompts, heard)):
            drafts, leads, accepted = rounds(drafter.fresh(), prompt, reply, taps)
            if i in shown:
                g = shown.index(i)
                out[f"{kind}.drafts{g}"], out[f"{kind}.accepted{g}"] = i32(drafts), i32(accepted)
                out[f"{kind}.leads{g}"] = np.array(leads, np.float32)
            if i >= OWN:
                sums[i - OWN] = len(reply) - 1, len(accepted)
                depths += accepted
            if i < OWN:  # the target in the loop must say and accept the same
                again = real_rounds(target, drafter.fresh(), prompt, REPLY)
                assert again == (reply, drafts, accepted), f"{kind}, prompt {i}: rounds differ"
        out[f"{kind}.real30"] = sums
        tokens, passes = sums.sum(0)
        by_position = " ".join(f"{np.mean(np.array(depths) >= j):.2f}" for j in range(1, 8))
        print(f"{kind} real30: {tokens} tokens in {passes} passes, {tokens / passes:.3f} a pass;",
              f"accepted by position {by_position}", flush=True)
    if not twins:
        save_file(out, os.path.join(HERE, "goldens.safetensors"))
        return

    early = answers(Target(dtype=torch.float64, taps=tuple(t - 1 for t in target.taps)), chat)
    for twin, kinds in TWINS.items():
        for kind in kinds:
            tokens, passes, wrong = 0, 0, make(kind, twin)
            for prompt, (reply, taps), (_, before) in zip(chat, heard[OWN:], early):
                if twin == "taps a row late":
                    taps = np.concatenate([taps[:1], taps[:-1]])
                elif twin == "taps a layer early":
                    taps = before
                elif twin == "normed taps":
                    rows = taps.reshape(len(taps), len(target.taps), -1)
                    taps = rms(rows, 1.0, target.c["layer_norm_epsilon"]).reshape(taps.shape)
                passes += len(rounds(wrong.fresh(), prompt, reply, taps)[2])
                tokens += len(reply) - 1
            print(f"{kind}, {twin}: {tokens / passes:.3f} tokens a pass", flush=True)


if __name__ == "__main__":
    main()
