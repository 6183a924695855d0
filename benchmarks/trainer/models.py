"""Models for the benchmarks, with nothing but torch: a small CNN, ResNet-50, and GPTs
of two sizes.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class ConvNet(nn.Module):
    """For 32 x 32 images, ten classes; 0.3 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 128)
        layers = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [
                nn.Conv2d(inputs, outputs, 3, stride=2, padding=1),
                nn.GroupNorm(8, outputs),
                nn.ReLU(),
            ]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions, stride in the middle one (v1.5)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """He et al. 2016, table 1: 25.6 million parameters, 224 x 224 images, 1,000
    classes.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        inputs = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for index in range(count):
                layers.append(Bottleneck(inputs, width, stride if index == 0 else 1))
                inputs = 4 * width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@dataclass(frozen=True, kw_only=True)
class GPTSize:
    """context: tokens. width: of the residual stream."""

    vocabulary: int
    context: int
    width: int
    num_layers: int
    num_heads: int


GPT_SMALL = GPTSize(vocabulary=256, context=64, width=128, num_layers=4, num_heads=4)
GPT_124M = GPTSize(
    vocabulary=50304, context=1024, width=768, num_layers=12, num_heads=12
)


class Block(nn.Module):
    """Attention and MLP, each after a layer norm and beside a residual connection."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.norm_1 = nn.LayerNorm(size.width)
        self.norm_2 = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """GPT-2's shape (Radford et al. 2019), embeddings tied with the output."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.num_layers)))
        self.norm = nn.LayerNorm(size.width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(
            torch.arange(ids.shape[1], device=ids.device)
        )
        return self.norm(self.blocks(x)) @ self.tokens.weight.T
