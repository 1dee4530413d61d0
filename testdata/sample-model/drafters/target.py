"""The sample model one token at a time: a plain batched recurrence with taps, for training and for
goldens.

Written from the checkpoint's tensors alone.  The batch is fixed; a state can be copied, which is
all that a rollback takes.  In float64 it is the reference that goldens.py rounds its drafts
against.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

MODEL = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
STOPS = (2, 11)  # </s>, <|im_end|>
TAPS = (3, 8, 11)  # the tapped layers, counted from 0; 11 is the last


def weights(path=MODEL):
    """Every tensor of the checkpoint in `path`, by name, in its own type."""
    out = {}
    for name in sorted(os.listdir(path)):
        if name.startswith("model") and name.endswith(".safetensors"):
            out |= load_file(os.path.join(path, name))
    return out


class Target:

    def __init__(self, path=MODEL, device="cpu", dtype=torch.float32, taps=TAPS):
        self.c = c = json.load(open(os.path.join(path, "config.json")))
        self.raw = weights(path)
        self.w = {n: t.to(device, dtype) for n, t in self.raw.items() if not n.startswith("mtp.")}
        self.device, self.dtype, self.taps = device, dtype, taps
        self.inner = c["mamba_num_heads"] * c["mamba_head_dim"]
        self.conv = self.inner + 2 * c["n_groups"] * c["ssm_state_size"]
        for i, kind in enumerate(c["hybrid_override_pattern"]):
            p = f"backbone.layers.{i}.mixer."
            if kind == "E":  # the experts side by side: all are computed, the unchosen weigh 0
                e = range(c["n_routed_experts"])
                self.w[p + "up"] = torch.cat(
                    [self.w.pop(f"{p}experts.{j}.up_proj.weight") for j in e])
                self.w[p + "down"] = torch.cat(
                    [self.w.pop(f"{p}experts.{j}.down_proj.weight") for j in e], 1)

    def start(self, batch, length):
        """A state for `batch` sequences of at most `length` tokens."""
        c, new = self.c, lambda *s: torch.zeros(*s, device=self.device, dtype=self.dtype)
        state = {"n": 0}
        for i, kind in enumerate(c["hybrid_override_pattern"]):
            if kind == "M":
                state[i] = (new(batch, c["conv_kernel"] - 1, self.conv),
                            new(batch, c["mamba_num_heads"], c["mamba_head_dim"],
                                c["ssm_state_size"]))
            elif kind == "*":
                width = c["num_key_value_heads"] * c["head_dim"]
                state[i] = (new(batch, length, width), new(batch, length, width))
        return state

    @staticmethod
    def copy(state):
        """For a later rollback.  Attention rows past `n` are never read, so their buffers are
        shared.
        """
        return {
            i: s if i == "n" or s[0].dim() == 3 and s[1].dim() == 3 else tuple(t.clone() for t in s)
            for i, s in state.items()
        }

    def norm(self, x, name, groups=1):
        g = x.reshape(x.shape[0], groups, -1)
        g = g * torch.rsqrt(g.pow(2).mean(-1, keepdim=True) + self.c["layer_norm_epsilon"])
        return g.reshape(x.shape) * self.w[name]

    def mamba(self, u, p, state):
        c, w = self.c, self.w
        heads, dim, groups, n = (
            c[k] for k in ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size"))
        z, xbc, dt = F.linear(u, w[p + "in_proj.weight"]).split([self.inner, self.conv, heads], -1)
        past, s = state
        window = torch.cat([past, xbc[:, None]], 1)
        past.copy_(window[:, 1:])
        v = F.silu((window * w[p + "conv1d.weight"][:, 0].T).sum(1) + w[p + "conv1d.bias"])
        x, b, cc = v.split([self.inner, groups * n, groups * n], -1)
        x = x.view(-1, heads, dim)
        b, cc = (t.view(-1, groups, n).repeat_interleave(heads // groups, 1) for t in (b, cc))
        dt = F.softplus(dt + w[p + "dt_bias"])
        s.mul_(torch.exp(-torch.exp(w[p + "A_log"]) * dt)[..., None, None])
        s.addcmul_((x * dt[..., None])[..., None], b[:, :, None])
        y = torch.matmul(s, cc[..., None])[..., 0] + w[p + "D"][:, None] * x
        y = self.norm(y.reshape(-1, self.inner) * F.silu(z), p + "norm.weight", groups)
        return F.linear(y, w[p + "out_proj.weight"])

    def attention(self, u, p, state, at):
        c, w = self.c, self.w
        heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        q = F.linear(u, w[p + "q_proj.weight"]).view(-1, kv, heads // kv, dim)
        for cache, name in zip(state, ("k_proj", "v_proj")):
            cache[:, at] = F.linear(u, w[f"{p}{name}.weight"])
        k, v = (cache[:, :at + 1].view(len(u), at + 1, kv, dim).transpose(1, 2) for cache in state)
        share = torch.softmax(torch.matmul(q, k.transpose(2, 3)) * dim**-0.5, -1)
        return F.linear(torch.matmul(share, v).reshape(len(u), -1), w[p + "o_proj.weight"])

    def moe(self, u, p):
        c, w = self.c, self.w
        act = lambda t: F.relu(t).square()
        score = torch.sigmoid(F.linear(u, w[p + "gate.weight"]))
        top = torch.topk(score + w[p + "gate.e_score_correction_bias"], c["num_experts_per_tok"],
                         -1)[1]
        chosen = torch.zeros_like(score).scatter_(1, top, score.gather(1, top))
        chosen = chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]
        h = act(F.linear(F.linear(u, w[p + "fc1_latent_proj.weight"]), w[p + "up"]))
        h = (h.view(len(u), c["n_routed_experts"], -1) * chosen[..., None]).reshape(len(u), -1)
        routed = F.linear(F.linear(h, w[p + "down"]), w[p + "fc2_latent_proj.weight"])
        shared = act(F.linear(u, w[p + "shared_experts.up_proj.weight"]))
        return routed + F.linear(shared, w[p + "shared_experts.down_proj.weight"])

    @torch.no_grad()
    def step(self, ids, state):
        """Consumes one token of each sequence; returns logits [batch, vocab], taps [batch,
        taps*hidden].

        A tap is the residual after the layer's mixer, without a norm, rounded to bfloat16.
        """
        x, taps = self.w["backbone.embeddings.weight"][ids], []
        for i, kind in enumerate(self.c["hybrid_override_pattern"]):
            u, p = self.norm(x, f"backbone.layers.{i}.norm.weight"), f"backbone.layers.{i}.mixer."
            if kind == "M":
                x = x + self.mamba(u, p, state[i])
            elif kind == "*":
                x = x + self.attention(u, p, state[i], state["n"])
            else:
                x = x + self.moe(u, p)
            if i in self.taps:
                taps.append(x.bfloat16())
        state["n"] += 1
        logits = F.linear(self.norm(x, "backbone.norm_f.weight"), self.w["lm_head.weight"])
        return logits, torch.cat(taps, -1)

    @torch.no_grad()
    def greedy(self, prompts, more):
        """Extends every prompt (a list of ids) greedily by at most `more` tokens, up to a stop id.

        Returns ids, best [batch, T], taps [batch, T, -] and end [batch]: ids[:end] is prompt and
        reply, best[i] is the target's choice after token i, taps[i] its taps at i (both up to
        end-1, whose token is consumed as well).
        """
        size, longest = torch.tensor([len(p) for p in prompts]), max(map(len, prompts)) + more
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        for i, p in enumerate(prompts):
            ids[i, :len(p)] = torch.tensor(p)
        ids, size = ids.to(self.device), size.to(self.device)
        best = torch.zeros_like(ids)
        taps = torch.zeros(len(prompts),
                           longest,
                           len(self.taps) * self.c["hidden_size"],
                           dtype=torch.bfloat16,
                           device=self.device)
        end, state = size + more, self.start(len(prompts), longest)
        stops = torch.tensor(STOPS, device=self.device)
        for t in range(longest):
            logits, taps[:, t] = self.step(ids[:, t], state)
            best[:, t] = logits.argmax(-1)
            over = torch.isin(ids[:, t], stops) & (t >= size)
            end = torch.where(over & (t + 1 < end), t + 1, end)
            if t % 16 == 0 and bool((end <= t + 1).all()):
                break
            if t + 1 < longest:
                ids[:, t + 1] = torch.where((t + 1 >= size) & (t + 1 < end), best[:, t], ids[:,
                                                                                             t + 1])
        return ids, best, taps, end
