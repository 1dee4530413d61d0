"""The block drafters DSpark and DFlash as torch modules, and their checkpoints.

Both read rows tapped from the target (fc, hidden_norm) as context keys and values, and a block
[anchor, mask x7], whose row r predicts the token at its own position.  DSpark is causal in the
block, with a window and sinks, and adds a Markov bias by the previous token; DFlash sees the whole
block and context, through YaRN.
"""
import json
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from target import TAPS

MASK = 18  # <SPECIAL_18>, which no text of the corpus holds
BLOCK, LAYERS, HEADS, KV, DIM, WIDE, RANK, WINDOW = 8, 2, 4, 1, 64, 384, 32, 128
EPS, THETA = 1e-6, 1e4
YARN = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 1024,
    "rope_theta": THETA
}


def rope_table(kind):
    """Inverse frequencies [DIM/2] and the factor on cosine and sine."""
    j = torch.arange(DIM // 2, dtype=torch.float64)
    plain = THETA**(-2 * j / DIM)
    if kind == "dspark":
        return plain.float(), 1.0
    turns = lambda beta: DIM * math.log(YARN["original_max_position_embeddings"] /
                                        (beta * 2 * math.pi)) / (2 * math.log(THETA))
    low, high = math.floor(turns(32)), math.ceil(turns(1))
    ramp = ((j - low) / (high - low)).clamp(0, 1)
    return (plain * (1 - ramp + ramp / YARN["factor"])).float(), 1 + 0.1 * math.log(YARN["factor"])


def linear(i, o, gain=1.0):
    layer = nn.Linear(i, o, bias=False)
    nn.init.normal_(layer.weight, std=gain / math.sqrt(i))
    return layer


class RMSNorm(nn.Module):

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))


class Attention(nn.Module):

    def __init__(self, hidden, sinks):
        super().__init__()
        self.q_proj, self.k_proj = linear(hidden, HEADS * DIM), linear(hidden, KV * DIM)
        self.v_proj, self.o_proj = linear(hidden, KV * DIM), linear(HEADS * DIM, hidden, .5)
        self.q_norm, self.k_norm = RMSNorm(DIM), RMSNorm(DIM)
        # From the start a share worth keeping: sinks that begin at 0 stay idle.
        self.attention_sink_bias = nn.Parameter(torch.linspace(2, 5, HEADS)) if sinks else None


class MLP(nn.Module):

    def __init__(self, hidden):
        super().__init__()
        self.gate_proj, self.up_proj = linear(hidden, WIDE), linear(hidden, WIDE)
        self.down_proj = linear(WIDE, hidden, .5)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):

    def __init__(self, hidden, sinks):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden), RMSNorm(hidden)
        self.self_attn, self.mlp = Attention(hidden, sinks), MLP(hidden)


class Markov(nn.Module):

    def __init__(self, vocab):
        super().__init__()
        self.markov_w1, self.markov_w2 = nn.Embedding(vocab, RANK), linear(RANK, vocab, .1)
        nn.init.normal_(self.markov_w1.weight, std=1.0)


class Drafter(nn.Module):
    """Parameters are named as in the checkpoint; the target's table and head are not trained."""

    def __init__(self, kind, raw):
        super().__init__()
        head = raw["lm_head.weight"].float()
        vocab, hidden = head.shape
        self.kind = kind
        self.fc = linear(hidden * len(TAPS), hidden)
        self.hidden_norm, self.norm = RMSNorm(hidden), RMSNorm(hidden)
        self.norm.weight.data.copy_(raw["backbone.norm_f.weight"])
        self.layers = nn.ModuleList(Layer(hidden, kind == "dspark") for _ in range(LAYERS))
        self.markov_head = Markov(vocab) if kind == "dspark" else None
        self.register_buffer("head", head, persistent=False)
        self.register_buffer("table", raw["backbone.embeddings.weight"].float(), persistent=False)
        self.mask_row = nn.Parameter(torch.randn(hidden) * self.table.std())
        frequency, self.magnitude = rope_table(kind)
        self.register_buffer("frequency", frequency, persistent=False)

    def rope(self, x, positions):
        """Rotates x [..., heads, DIM] at positions [...]: pairs (i, i + DIM/2)."""
        angle = positions[..., None, None].float() * self.frequency
        c, s = angle.cos() * self.magnitude, angle.sin() * self.magnitude
        a, b = x.chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def context(self, taps, positions):
        """Taps [..., len(TAPS)*hidden] at `positions` to (k, v) [..., KV, DIM] of every layer."""
        c, out = self.hidden_norm(self.fc(taps.float())), []
        for layer in self.layers:
            a = layer.self_attn
            k = self.rope(a.k_norm(a.k_proj(c).unflatten(-1, (KV, DIM))), positions)
            out.append((k, a.v_proj(c).unflatten(-1, (KV, DIM))))
        return out

    def block(self, context, anchors, at):
        """Hidden rows [b, a, 7, hidden] of blocks with tokens `anchors` at positions `at` [b, a].

        context: (k, v) [b, t, KV, DIM] of every layer; a block sees the rows before its anchor
        only.
        """
        b, a = anchors.shape
        position = at[..., None] + torch.arange(BLOCK, device=at.device)  # [b, a, 8]
        x = torch.cat([
            F.embedding(anchors, self.table)[:, :, None],
            self.mask_row.expand(b, a, BLOCK - 1, -1)
        ], 2)
        key = torch.arange(context[0][0].shape[1], device=at.device)
        seen = key < at[..., None, None]  # [b, a, 1, t]
        inside = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=at.device)
        if self.kind == "dspark":
            seen = seen & (key > position[..., None] - WINDOW)
            inside = inside.tril()
        for layer, (ck, cv) in zip(self.layers, context):
            s, h = layer.self_attn, layer.input_layernorm(x)
            q = self.rope(s.q_norm(s.q_proj(h).unflatten(-1, (HEADS, DIM))), position)
            k = self.rope(s.k_norm(s.k_proj(h).unflatten(-1, (KV, DIM))), position)[..., 0, :]
            v = s.v_proj(h)  # one kv head: [b, a, 8, DIM]
            q = q * DIM**-0.5
            far = torch.matmul(q.reshape(b, -1, DIM),
                               ck[:, :, 0].transpose(1, 2)).view(b, a, BLOCK, HEADS, -1)
            near = torch.matmul(q.reshape(b, a, -1, DIM),
                                k.transpose(2, 3)).view(b, a, BLOCK, HEADS, BLOCK)
            far = far.masked_fill(~seen[:, :, :, None], -math.inf)
            near = near.masked_fill(~inside[:, None], -math.inf)
            columns = [far, near]
            if s.attention_sink_bias is not None:
                columns.append(s.attention_sink_bias[:, None].expand(b, a, BLOCK, HEADS, 1))
            share = torch.softmax(torch.cat(columns, -1), -1)
            t = far.shape[-1]
            o = torch.matmul(share[..., :t].reshape(b, -1, t), cv[:, :, 0]).view_as(q)
            o = o + torch.matmul(share[..., t:t + BLOCK].reshape(b, a, -1, BLOCK), v).view_as(q)
            x = x + s.o_proj(o.flatten(-2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x[:, :, 1:])

    def bias(self, previous):
        m = self.markov_head
        return m.markov_w2(m.markov_w1(previous))

    def draft(self, context, anchors, at):
        """Seven drafts of each block, [b, a, 7]."""
        base = F.linear(self.block(context, anchors, at), self.head)
        if self.markov_head is None:
            return base.argmax(-1)
        out = [anchors]
        for r in range(BLOCK - 1):
            out.append((base[:, :, r] + self.bias(out[-1])).argmax(-1))
        return torch.stack(out[1:], -1)


def config(kind, target):
    """config.json in the spelling of NVIDIA's drafters for Nemotron 3.5 Lightning."""
    spark, taps = kind == "dspark", list(TAPS)
    out = {
        "architectures": ["Qwen3DSparkModel" if spark else "DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "hidden_size": target["hidden_size"],
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": DIM,
        "intermediate_size": WIDE,
        "hidden_act": "silu",
        "rms_norm_eps": EPS,
        "vocab_size": target["vocab_size"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": target["max_position_embeddings"],
        "mask_token_id": MASK,
        "pard_token": MASK,
        "target_layer_ids": taps,
        "eagle_aux_hidden_state_layer_ids": [t + 1 for t in taps],
        "num_aux_layers": len(taps),
        "has_embed_tokens": True,
        "has_lm_head": False,
        "draft_vocab_size": None,
        "sample_from_anchor": False,
        "dflash_config": {
            "causal": spark, "mask_token_id": MASK, "target_layer_ids": taps, "use_swa": spark,
            "attention_sink_bias": spark
        },
        "dflash_query_causal": spark,
        "attention_sink_bias": spark,
        "sliding_window": WINDOW if spark else None,
        "layer_types": ["sliding_attention" if spark else "full_attention"] * LAYERS,
        "rope_theta": THETA,
        "rope_parameters": None if spark else YARN,
        "markov_rank": RANK if spark else None,
        "dspark_markov_rank": RANK if spark else None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if spark:
        out["dflash_config"]["swa_window_size"] = WINDOW
        out |= {
            "swa_window_size": WINDOW, "block_size": BLOCK, "markov_head_type": "vanilla",
            "dspark_fixup_head_type": "markov", "dspark_bonus_anchor": True
        }
    return out


def save(drafter, target, out):
    os.makedirs(out, exist_ok=True)
    tensors = {
        n: p.detach().bfloat16().cpu().contiguous()
        for n, p in drafter.named_parameters()
        if n != "mask_row"
    }
    table = target.raw["backbone.embeddings.weight"].clone()
    table[MASK] = drafter.mask_row.detach().bfloat16().cpu()
    save_file(tensors | {"embed_tokens.weight": table}, os.path.join(out, "model.safetensors"),
              {"format": "pt"})
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config(drafter.kind, target.c), f, indent=2)
        f.write("\n")


def load(path, target):
    with open(os.path.join(path, "config.json")) as f:
        spark = json.load(f)["architectures"] == ["Qwen3DSparkModel"]
    drafter = Drafter("dspark" if spark else "dflash", target.raw)
    tensors = load_file(os.path.join(path, "model.safetensors"))
    drafter.mask_row.data.copy_(tensors.pop("embed_tokens.weight")[MASK])
    with torch.no_grad():
        parameters = dict(drafter.named_parameters())
        assert set(tensors) == set(parameters) - {"mask_row"}, set(tensors) ^ set(parameters)
        for n, t in tensors.items():
            parameters[n].copy_(t)
    return drafter
