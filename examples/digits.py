"""A small CNN for the digits that scikit-learn ships, made smaller without labels. No download.

Trains for some seconds, then cuts every layer to a quarter of its channels with 300 unlabelled
images: by the paper's method, by entrim's default, and by the same rebuild on random channels.
Nothing is trained after the cut.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import entrim

WIDTHS = {"*": 0.25}
METHODS = {
    "as in the paper": {"mode": "independent", "refit": False},
    "entrim": {},
    "random channels": {"selector": "random"},
}


def network() -> nn.Sequential:
    """Return an untrained LeNet-like network for 8x8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int = 30) -> None:
    """Fit `model` to the labelled images."""
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the percentage of images whose largest output is the right class."""
    return 100 * float((model(x).argmax(1) == y).double().mean())


def main() -> None:
    """Train, cut, print."""
    torch.manual_seed(0)
    pixels, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(classes))
    x = torch.as_tensor(pixels).float().view(-1, 1, 8, 8)[order] / 16
    y = torch.as_tensor(classes)[order]
    model = network()
    train(model, x[:1200], y[:1200])
    test = x[1200:], y[1200:]
    print(f"accuracy on {len(test[0])} images never seen, nothing trained after the cut")
    print(f"{'':<18}{'parameters':>12}{'MACs':>10}{'accuracy, %':>14}")
    cost = entrim.measure(model, x[:1])
    print(f"{'trained':<18}{cost.params:>12,}{cost.macs:>10,}{accuracy(model, *test):>14.1f}")
    for name, options in METHODS.items():
        generator = torch.Generator().manual_seed(0)
        small = entrim.sparsify(model, x[:300], widths=WIDTHS, generator=generator, **options)
        size = small.record.after
        right = accuracy(small.model, *test)
        print(f"{name:<18}{size.params:>12,}{size.macs:>10,}{right:>14.1f}")


if __name__ == "__main__":
    main()
