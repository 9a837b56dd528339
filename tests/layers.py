"""Random layers for the tests: correlated, rectified inputs and the outputs of a linear map."""

import torch
from hypothesis import strategies as st

import entrim


def layer_rows(
    seed: int, *, rows: int = 200, channels: int = 6, block: int = 1, outputs: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (inputs, outputs) of one random layer with noise on the outputs."""
    g = torch.Generator().manual_seed(seed)
    factors = torch.randn(rows, max(2, channels // 2), generator=g, dtype=torch.float64)
    mixing = torch.randn(factors.shape[1], channels * block, generator=g, dtype=torch.float64)
    own = torch.randn(rows, channels * block, generator=g, dtype=torch.float64)
    x = torch.relu(factors @ mixing + own)
    x[0] += 0.1  # so that no channel is dead
    weight = torch.randn(channels * block, outputs, generator=g, dtype=torch.float64)
    weight *= torch.rand(channels, 1, generator=g, dtype=torch.float64).repeat_interleave(block, 0)
    noise = torch.randn(rows, outputs, generator=g, dtype=torch.float64)
    return x, x @ weight + 0.5 + 0.1 * noise


def layer_moments(seed: int, **shape: int) -> entrim.Moments:
    """Return the moments of `layer_rows`."""
    x, y = layer_rows(seed, **shape)
    return entrim.Moments.of(x, y, block=shape.get("block", 1))


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int]:
    """Draw the seed and shape of a random layer, tall or wide."""
    return {
        "seed": draw(st.integers(0, 10_000)),
        "rows": draw(st.sampled_from([5, 40, 300])),
        "channels": draw(st.integers(1, 12)),
        "block": draw(st.sampled_from([1, 4, 9])),
        "outputs": draw(st.integers(1, 6)),
    }


eps_values = st.sampled_from([1e-5, 1e-3, 1e-2, 0.1, 1.0])
