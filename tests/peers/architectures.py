"""Small networks of the usual architectures, as modules of PyTorch."""

import torch
from torch import nn
from torch.nn import functional

__all__ = ["ARCHITECTURES", "POOLS"]

Tensor = torch.Tensor


class Formula(nn.Module):
    """Modules, and a function of them and of the input."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function, self.parts = function, nn.ModuleDict(parts)

    def forward(self, x):
        return self.function(x, **dict(self.parts.items()))


def conv(inputs, outputs, size=3, stride=1, **options):
    """Return a convolution with normalization and activation."""
    act = options.pop("act", nn.ReLU)()
    padding = options.pop("padding", size // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding, bias=False, **options),
        nn.BatchNorm2d(outputs), act,
    )  # fmt: skip


def residual(body, shortcut=None):
    return Formula(
        lambda x, body, shortcut: functional.relu(body(x) + shortcut(x)),
        body=body, shortcut=shortcut or nn.Identity(),
    )  # fmt: skip


def head(channels):
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5)]


def excite(channels, gate=nn.Sigmoid):
    scale = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 2, 1), nn.SiLU(), nn.Conv2d(2, channels, 1),
        gate(),
    )  # fmt: skip
    return Formula(lambda x, scale: x * scale(x), scale=scale)


def inverted(act, gate=None):
    """Return a block of MobileNet or EfficientNet."""
    parts = [conv(4, 8, 1, act=act), conv(8, 8, groups=8, act=act)]
    parts += [excite(8, gate)] if gate else []
    body = nn.Sequential(*parts, nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4))
    return Formula(lambda x, body: x + body(x), body=body)


def lenet():
    return nn.Sequential(
        nn.Conv2d(3, 6, 5, padding=2), nn.Sigmoid(), nn.AvgPool2d(2), nn.Conv2d(6, 8, 5),
        nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 12), nn.Softplus(),
        nn.Linear(12, 5), nn.Softmax(1),
    )  # fmt: skip


def alexnet():
    return nn.Sequential(
        nn.Conv2d(3, 4, 5, 2, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d((3, 3)), nn.Flatten(),
        nn.Dropout(), nn.Linear(54, 8), nn.ReLU(), nn.Linear(8, 5),
    )  # fmt: skip


def resnet():
    down = residual(nn.Sequential(conv(4, 6, stride=2), conv(6, 6)), nn.Conv2d(4, 6, 1, 2))
    same = residual(nn.Sequential(conv(6, 6), nn.Conv2d(6, 6, 3, padding=1)))
    return nn.Sequential(conv(3, 4), nn.MaxPool2d(3, 2, 1), down, same, *head(6))


def densenet():
    layers = [Formula(lambda x, f: torch.cat([x, f(x)], 1), f=conv(n, 3)) for n in (4, 7)]
    return nn.Sequential(conv(3, 4), *layers, conv(10, 4, 1), nn.AvgPool2d(2), *head(4))


def inception():
    pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(4, 2, 1))
    averaged = nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(4, 2, 1))
    return nn.Sequential(conv(3, 4), Formula(
        lambda x, a, b, c, d: torch.cat([a(x), b(x), c(x), d(x)], 1),
        a=conv(4, 2, 1), b=conv(4, 3), c=pooled, d=averaged), *head(9))  # fmt: skip


def squeezenet():
    fire = Formula(
        lambda x, s, a, b: torch.cat([a(s(x)), b(s(x))], 1),
        s=conv(4, 2, 1), a=conv(2, 3, 1), b=conv(2, 3),
    )  # fmt: skip
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    return nn.Sequential(conv(3, 4), pool, fire, nn.Conv2d(6, 5, 1), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten())  # fmt: skip


def shufflenet():
    def shuffled(x, f):
        a, b = x.chunk(2, 1)
        x = torch.cat([a, f(b)], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)

    return nn.Sequential(conv(3, 4), Formula(shuffled, f=conv(2, 2)), *head(4))


def convnext():
    block = Formula(
        lambda x, f, n, a, b: x + b(functional.gelu(a(n(f(x).permute(0, 2, 3, 1))))).permute(
            0, 3, 1, 2),
        f=nn.Conv2d(4, 4, 7, padding=3, groups=4), n=nn.LayerNorm(4), a=nn.Linear(4, 8),
        b=nn.Linear(8, 4),
    )  # fmt: skip
    return nn.Sequential(nn.Conv2d(3, 4, 4, 4), block, *head(4))


def unet(mode):
    up = nn.ConvTranspose2d(6, 4, 2, 2) if mode == "transposed" else nn.Sequential(
        nn.Upsample(scale_factor=2, mode=mode), nn.Conv2d(6, 4, 1))  # fmt: skip

    def joined(x, first, down, up, last):
        x = first(x)
        return last(torch.cat([x, up(down(x))], 1))

    down = nn.Sequential(nn.MaxPool2d(2), conv(4, 6))
    return Formula(joined, first=conv(3, 4), down=down, up=up, last=nn.Conv2d(8, 2, 1))


def pyramid():
    """Features of two sizes, as for detection."""

    def both(x, a, b, c):
        x = a(x)
        y = b(x)
        x = x + functional.interpolate(y, size=x.shape[2:])
        return torch.cat([c(x).flatten(2), c(y).flatten(2)], 2).transpose(1, 2)

    return Formula(both, a=conv(3, 4, stride=2), b=conv(4, 4, stride=2), c=nn.Conv2d(4, 6, 1))


def focus():
    """The first layers of YOLO: every second cell, spatial pyramid pooling."""

    def cut(x, f):
        parts = [x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)]
        x = f(torch.cat(parts, 1))
        pooled = [functional.max_pool2d(x, k, 1, k // 2) for k in (3, 5)]
        return torch.cat([x, *pooled], 1)

    return nn.Sequential(Formula(cut, f=conv(12, 4, act=nn.SiLU)), *head(12))


def generator():
    return nn.Sequential(
        nn.Linear(6, 32), nn.Unflatten(1, (8, 2, 2)), nn.ConvTranspose2d(8, 4, 4, 2, 1),
        nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def discriminator():
    return nn.Sequential(nn.Conv2d(3, 4, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4, 6, 4, 2, 1),
                         nn.InstanceNorm2d(6, affine=True), nn.LeakyReLU(0.2),
                         nn.Flatten(), nn.Linear(96, 1))  # fmt: skip


def super_resolution():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.PReLU(4), nn.Conv2d(4, 12, 3, padding=1),
                         nn.PixelShuffle(2))  # fmt: skip


def style():
    return nn.Sequential(nn.ReflectionPad2d(2), nn.Conv2d(3, 4, 5), nn.ReLU(),
                         nn.InstanceNorm2d(4, affine=True), nn.ReplicationPad2d((1, 0, 0, 1)),
                         nn.ZeroPad2d((0, 1, 1, 0)), nn.Conv2d(4, 3, 3))  # fmt: skip


def audio():
    return nn.Sequential(
        nn.Conv1d(3, 6, 3, padding=1), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(6, 8, 3, padding=2, dilation=2), nn.GELU(), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


def wavenet():
    def gated(x, f, g, last):
        padded = functional.pad(x, (2, 0))
        return x + last(torch.tanh(f(padded)) * torch.sigmoid(g(padded)))

    return Formula(gated, f=nn.Conv1d(3, 4, 2, dilation=2), g=nn.Conv1d(3, 4, 2, dilation=2),
                   last=nn.Conv1d(4, 3, 1))  # fmt: skip


def transformer(layers, **options):
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, **options)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class Vision(nn.Module):
    """A transformer of patches, with a token for the class."""

    def __init__(self):
        super().__init__()
        self.patch, self.layer, self.out = nn.Conv2d(3, 6, 4, 4), transformer(1), nn.Linear(6, 5)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.places = nn.Parameter(torch.randn(1, 17, 6))

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.out(self.layer(x)[:, 0])


class Written(nn.Module):
    """Attention written by hand, causal."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(6, 18), nn.Linear(6, 6), nn.LayerNorm(6)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))

    def forward(self, x):
        n, t, f = x.shape
        q, k, v = self.qkv(self.norm(x)).split(6, 2)
        q, k, v = (y.view(n, t, 2, 3).transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / 3**0.5
        shares = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf")).softmax(-1)
        return x + self.out((shares @ v).transpose(1, 2).reshape(n, t, f))


def fused():
    return Formula(
        lambda x, q, k, v: functional.scaled_dot_product_attention(
            *(f(x)[:, None] for f in (q, k, v)))[:, 0],
        q=nn.Linear(6, 6), k=nn.Linear(6, 6), v=nn.Linear(6, 6),
    )  # fmt: skip


def mixer():
    tokens = nn.Sequential(nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 8))
    channels = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6))

    def mixed(x, norm, tokens, channels):
        x = x + tokens(norm(x).transpose(1, 2)).transpose(1, 2)
        return (x + channels(x)).mean(1)

    return Formula(mixed, norm=nn.LayerNorm(6), tokens=tokens, channels=channels)


def rms():
    def swiglu(x, a, b, c):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return c(functional.silu(a(x)) * b(x))

    return Formula(swiglu, a=nn.Linear(6, 8), b=nn.Linear(6, 8), c=nn.Linear(8, 6))


def recurrent(kind, **options):
    width = 5 * (1 + options.get("bidirectional", False))
    return Formula(lambda x, rnn, out: out(rnn(x)[0]), rnn=kind(6, 5, **options),
                   out=nn.Linear(width, 4))  # fmt: skip


def classifier(kind, pool, **options):
    """Return a recurrence whose outputs or last state become the class of each sequence."""

    def pooled(x, rnn, out):
        y, state = rnn(x)
        return out(pool(y, state)).log_softmax(-1)

    width = 5 * (1 + options.get("bidirectional", False))
    return Formula(pooled, rnn=kind(6, 5, **options), out=nn.Linear(width, 3))


def last_state(y, state):
    return torch.cat(list(state[0] if isinstance(state, tuple) else state), dim=-1)


#: What becomes of the outputs of a recurrence.
POOLS = {
    "last step": lambda y, _: y[-1],
    "last state": last_state,
    "mean": lambda y, _: y.mean(dim=0),
    "maximum": lambda y, _: y.amax(dim=0),
}


def tagger(**options):
    """Return a recurrence over words with an output for each of them."""
    return Formula(lambda x, words, rnn, out: out(rnn(words(x))[0]), words=nn.Embedding(9, 6),
                   rnn=nn.LSTM(6, 5, **options), out=nn.Linear(5, 3))  # fmt: skip


def crnn():
    """Convolutions whose columns are steps of a recurrence, as for reading lines of text."""

    def read(x, conv, rnn, out):
        return out(rnn(conv(x).mean(2).permute(2, 0, 1))[0]).log_softmax(-1)

    return Formula(read, conv=conv(3, 6), rnn=nn.LSTM(6, 5), out=nn.Linear(5, 4))


def text_cnn():
    def classified(x, words, a, b, out):
        x = words(x).transpose(1, 2)
        return out(torch.cat([f(x).amax(2) for f in (a, b)], 1))

    return Formula(classified, words=nn.Embedding(9, 6), a=nn.Conv1d(6, 4, 2),
                   b=nn.Conv1d(6, 4, 3), out=nn.Linear(8, 3))  # fmt: skip


def autoencoder():
    return nn.Sequential(nn.Linear(6, 4), nn.SELU(), nn.Linear(4, 2), nn.ELU(), nn.Linear(2, 6),
                         nn.Hardtanh())  # fmt: skip


def tabular():
    return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.Mish(), nn.Dropout(),
                         residual(nn.Linear(8, 8)), nn.Linear(8, 3), nn.LogSoftmax(-1))  # fmt: skip


def quantity():
    return Formula(lambda x, f: functional.normalize(f(x), dim=1), f=nn.Linear(6, 4))


IMAGE, ROWS, STEPS, SIGNAL, WORDS = (2, 3, 16, 16), (3, 6), (2, 8, 6), (2, 3, 12), (2, 8)
KINDS = nn.RNN, nn.GRU, nn.LSTM

#: Name to the module, the shape of its input, and the letters of its axes.
ARCHITECTURES = {
    "LeNet": (lenet, IMAGE, "BCHW"),
    "AlexNet": (alexnet, (2, 3, 15, 15), "BCHW"),
    "VGG": (lambda: nn.Sequential(conv(3, 4), conv(4, 4), nn.MaxPool2d(2), nn.Flatten(),
                                  nn.Linear(256, 5)), IMAGE, "BCHW"),
    "ResNet": (resnet, IMAGE, "BCHW"),
    "ResNeXt": (lambda: residual(nn.Sequential(conv(4, 4, groups=2), conv(4, 4, 1))),
                (2, 4, 8, 8), "BCHW"),
    "SENet": (lambda: nn.Sequential(conv(3, 4), excite(4), *head(4)), IMAGE, "BCHW"),
    "DenseNet": (densenet, IMAGE, "BCHW"),
    "Inception": (inception, IMAGE, "BCHW"),
    "SqueezeNet": (squeezenet, IMAGE, "BCHW"),
    "ShuffleNet": (shufflenet, IMAGE, "BCHW"),
    "MobileNetV2": (lambda: nn.Sequential(conv(3, 4, stride=2, act=nn.ReLU6), inverted(nn.ReLU6),
                                          *head(4)), IMAGE, "BCHW"),
    "MobileNetV3": (lambda: nn.Sequential(conv(3, 4, act=nn.Hardswish),
                                          inverted(nn.Hardswish, nn.Hardsigmoid), *head(4)),
                    IMAGE, "BCHW"),
    "EfficientNet": (lambda: nn.Sequential(conv(3, 4, act=nn.SiLU), inverted(nn.SiLU, nn.Sigmoid),
                                           *head(4)), IMAGE, "BCHW"),
    "ConvNeXt": (convnext, IMAGE, "BCHW"),
    "UNet, transposed": (lambda: unet("transposed"), IMAGE, "BCHW"),
    "UNet, nearest": (lambda: unet("nearest"), IMAGE, "BCHW"),
    "UNet, bilinear": (lambda: unet("bilinear"), IMAGE, "BCHW"),
    "feature pyramid": (pyramid, IMAGE, "BCHW"),
    "YOLO": (focus, IMAGE, "BCHW"),
    "generator": (generator, ROWS, "BF"),
    "discriminator": (discriminator, IMAGE, "BCHW"),
    "super resolution": (super_resolution, IMAGE, "BCHW"),
    "style transfer": (style, IMAGE, "BCHW"),
    "audio": (audio, SIGNAL, "BCL"),
    "WaveNet": (wavenet, SIGNAL, "BCL"),
    "ViT": (Vision, IMAGE, "BCHW"),
    "TransformerEncoder": (lambda: transformer(2), STEPS, "BSF"),
    "TransformerEncoder, norm first": (lambda: transformer(1, norm_first=True, activation="gelu"),
                                       STEPS, "BSF"),
    "BERT": (lambda: nn.Sequential(nn.Embedding(9, 6), transformer(1), nn.Linear(6, 9)), WORDS,
             "BS"),
    "MultiheadAttention": (lambda: Formula(lambda x, f: f(x, x, x)[0],
                                           f=nn.MultiheadAttention(6, 2, batch_first=True)),
                           STEPS, "BSF"),
    "GPT": (Written, STEPS, "BSF"),
    "scaled dot product": (fused, STEPS, "BSF"),
    "MLP-Mixer": (mixer, STEPS, "BSF"),
    "LLaMA's feed-forward": (rms, STEPS, "BSF"),
    **{kind.__name__: (lambda kind=kind: recurrent(kind), STEPS, "TBF")
       for kind in KINDS},
    **{f"{kind.__name__}, both directions": (
        lambda kind=kind: recurrent(kind, bidirectional=True, num_layers=2), STEPS, "TBF")
       for kind in KINDS},
    "LSTM, batch first": (lambda: recurrent(nn.LSTM, batch_first=True), STEPS, "BTF"),
    **{f"the {what} of {kind.__name__}": (
        lambda kind=kind, pool=pool: classifier(kind, pool), STEPS, "TBF")
       for kind in KINDS for what, pool in POOLS.items()},
    "last states in both directions": (
        lambda: classifier(nn.GRU, last_state, bidirectional=True, batch_first=True), STEPS, "BTF"),
    "the first step": (lambda: classifier(nn.LSTM, lambda y, _: y[0]), STEPS, "TBF"),
    "the last cell": (lambda: classifier(nn.LSTM, lambda y, state: state[1][0]), STEPS, "TBF"),
    "words": (tagger, (8, 2), "TB"),
    "words, batch first": (lambda: tagger(batch_first=True), WORDS, "BT"),
    "CRNN": (crnn, IMAGE, "BCHW"),
    "TextCNN": (text_cnn, WORDS, "BS"),
    "bag of words": (lambda: Formula(lambda x, w, f: f(w(x).mean(1)), w=nn.Embedding(9, 6),
                                     f=nn.Linear(6, 3)), WORDS, "BS"),
    "MLP": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)),
            ROWS, "BF"),
    "autoencoder": (autoencoder, ROWS, "BF"),
    "tabular": (tabular, ROWS, "BF"),
    "embedding of unit length": (quantity, ROWS, "BF"),
    "GLU": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GLU()), ROWS, "BF"),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 3, 3), nn.BatchNorm3d(3), nn.ReLU(),
                                     nn.AdaptiveAvgPool3d(1), nn.Flatten()),
               (2, 2, 5, 5, 5), "BCDHW"),
    "3-D pooling": (lambda: nn.Sequential(nn.Conv3d(2, 3, 3), nn.MaxPool3d(2)), (2, 2, 6, 6, 6),
                    "BCDHW"),
    "groups of channels": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ELU()),
                           IMAGE, "BCHW"),
    "signals": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten(),
                                      nn.Linear(40, 2)), SIGNAL, "BCL"),
    "pooled with zeros": (lambda: nn.Sequential(nn.ZeroPad2d((1, 0, 0, 2)), nn.AvgPool2d(3, 2, 1),
                                                nn.ConstantPad2d(1, 0.5), nn.ELU()),
                          IMAGE, "BCHW"),
    "convolutional autoencoder": (lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 8), nn.Tanh(),
        nn.Linear(8, 64), nn.Unflatten(1, (4, 4, 4)), nn.ConvTranspose2d(4, 1, 3, 2, 1, 1),
        nn.Sigmoid()), IMAGE, "BCHW"),
    "sorted": (lambda: Formula(lambda x, f: f(x).topk(2)[0], f=nn.Linear(6, 4)), ROWS, "BF"),
}  # fmt: skip
