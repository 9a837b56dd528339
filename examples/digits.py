"""Which pixels of an 8x8 digit tell its class? A sparse regression on data that scikit-learn ships.

Fits ten one-against-rest outputs on half of the images, with 10, 20 and 30 of the 64 pixels, and
measures the other half; random is the mean of 20 draws. No download, a few seconds.
"""

import torch
from sklearn.datasets import load_digits

import entrim


def accuracy(
    kept: torch.Tensor, moments: entrim.Moments, x: torch.Tensor, y: torch.Tensor
) -> float:
    """Return the percentage of rows whose largest output is the right class."""
    fit = entrim.refit(moments, kept)
    scores = x[:, kept] @ fit.weight.T + fit.bias
    return 100 * float((scores.argmax(1) == y).double().mean())


def main() -> None:
    """Choose, refit, print."""
    pixels, classes = load_digits(return_X_y=True)
    x, y = torch.as_tensor(pixels) / 16, torch.as_tensor(classes)
    half = len(x) // 2
    moments = entrim.Moments.of(x[:half], torch.nn.functional.one_hot(y[:half]).double())
    test = x[half:], y[half:]
    print(f"{moments}; accuracy on the other {len(x) - half} images, %")
    print(f"{'pixels':>7}{'entropic':>10}{'greedy':>10}{'lasso':>10}{'random':>10}")
    for k in (10, 20, 30):
        row = [
            entrim.select(moments, channels=k, method=m) for m in ("entropic", "greedy", "lasso")
        ]
        figures = [accuracy(kept, moments, *test) for kept in row]
        generator = torch.Generator().manual_seed(0)
        draws = [
            entrim.select(moments, channels=k, method="random", generator=generator)
            for _ in range(20)
        ]
        figures.append(sum(accuracy(kept, moments, *test) for kept in draws) / len(draws))
        print(f"{k:>7}" + "".join(f"{figure:>10.1f}" for figure in figures))
    solution = entrim.solve(moments, eps_w=-1e-3, eps_l2=1e-3)
    print(f"\neps 1e-3 keeps {len(solution.kept)} of 64 pixels ({solution.status})")
    w = solution.w.view(8, 8)
    for row in w:
        print("  " + "".join(" .:-=+*#%@"[min(9, int(9 * v / w.max() + 0.999))] for v in row))


if __name__ == "__main__":
    main()
