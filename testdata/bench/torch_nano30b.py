"""One decoding token of the Nano-30B shapes in plain PyTorch, bf16, random weights: the time that
`engine_bench --device cuda:0` on a generated nano-30b package stands beside. Needs a GPU of 80 GB.

    python3 torch_nano30b.py            median milliseconds a token, eager and as one CUDA graph
"""
import torch

D, VOCAB = 2688, 131072
PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
HEADS, HEAD_DIM, STATE, GROUPS, TAPS = 64, 64, 128, 8, 4
INNER = HEADS * HEAD_DIM
CONV = INNER + 2 * GROUPS * STATE
EXPERTS, TOP_K, D_EXPERT, D_SHARED = 128, 6, 1856, 3712
Q_HEADS, KV_HEADS, Q_DIM, CONTEXT = 32, 2, 128, 512
KIND = dict(device="cuda", dtype=torch.bfloat16)


def weight(*shape):
    return torch.randn(*shape, **KIND) * 0.02


def norm(x):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-5)


class Mamba:
    def __init__(self):
        self.in_proj, self.out_proj = weight(INNER + CONV + HEADS, D), weight(D, INNER)
        self.conv_w, self.raw = weight(CONV, TAPS), weight(CONV, TAPS)
        self.h = torch.zeros(HEADS, HEAD_DIM, STATE, device="cuda")
        self.a = -torch.rand(HEADS, device="cuda")

    def __call__(self, x):
        z, xbc, dt = (self.in_proj @ x).split([INNER, CONV, HEADS])
        self.raw.copy_(torch.cat([self.raw[:, 1:], xbc[:, None]], 1))
        conv = torch.nn.functional.silu((self.raw * self.conv_w).sum(1)).float()
        v, b, c = conv.split([INNER, GROUPS * STATE, GROUPS * STATE])
        v = v.view(HEADS, HEAD_DIM)
        b = b.view(GROUPS, STATE).repeat_interleave(HEADS // GROUPS, 0)
        c = c.view(GROUPS, STATE).repeat_interleave(HEADS // GROUPS, 0)
        dt = torch.nn.functional.softplus(dt.float())
        self.h.mul_((dt * self.a).exp()[:, None, None])
        self.h.add_((dt[:, None] * v)[:, :, None] * b[:, None, :])
        y = (self.h * c[:, None, :]).sum(2).reshape(INNER).to(torch.bfloat16)
        y = norm((y * torch.nn.functional.silu(z)).view(GROUPS, -1)).view(INNER)
        return self.out_proj @ y


class Moe:
    def __init__(self):
        self.router = weight(EXPERTS, D)
        self.up, self.down = weight(EXPERTS, D_EXPERT, D), weight(EXPERTS, D, D_EXPERT)
        self.shared_up, self.shared_down = weight(D_SHARED, D), weight(D, D_SHARED)

    def __call__(self, x):
        score, pick = torch.sigmoid(self.router @ x).topk(TOP_K)
        # index_select would copy the experts: multiply all rows that were picked, one by one.
        y = self.shared_down @ torch.relu(self.shared_up @ x).square()
        up = torch.bmm(self.up[pick], x.expand(TOP_K, D)[:, :, None])
        down = torch.bmm(self.down[pick], torch.relu(up).square())
        return y + (down[:, :, 0] * (score / score.sum())[:, None]).sum(0)


class Attention:
    def __init__(self):
        self.qkv = weight((Q_HEADS + 2 * KV_HEADS) * Q_DIM, D)
        self.o = weight(D, Q_HEADS * Q_DIM)
        self.k, self.v = weight(1, KV_HEADS, CONTEXT, Q_DIM), weight(1, KV_HEADS, CONTEXT, Q_DIM)

    def __call__(self, x):
        q = (self.qkv @ x)[: Q_HEADS * Q_DIM].view(1, Q_HEADS, 1, Q_DIM)
        y = torch.nn.functional.scaled_dot_product_attention(q, self.k, self.v, enable_gqa=True)
        return self.o @ y.reshape(-1)


def median_ms(run, n):
    times = []
    for _ in range(n):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[n // 2]


@torch.inference_mode()
def main():
    layers = [{"M": Mamba, "E": Moe, "*": Attention}[c]() for c in PATTERN]
    head, embedding = weight(VOCAB, D), weight(VOCAB, D)
    token = torch.zeros(1, dtype=torch.long, device="cuda")

    def step():
        x = embedding[token][0]
        for layer in layers:
            x = x + layer(norm(x))
        token.copy_((head @ norm(x)).argmax()[None])

    for _ in range(3):
        step()
    eager = median_ms(step, 11)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replayed = median_ms(graph.replay, 21)
    gib = torch.cuda.memory_allocated() / 2**30
    print(f"PyTorch {torch.__version__}, bf16, {gib:.1f} GiB: {eager:.2f} ms a token eager, "
          f"{replayed:.2f} ms as one CUDA graph")


main()
