"""A sensitivity of your own: which change of the outputs matters, for a network with two heads.

A sensitivity compares the outputs of the pruned network with those of the original and returns one
value per image: 0 for equal outputs, larger is worse. It decides which groups a budget makes
narrower. The default is the KL divergence for the logits of a classifier, and otherwise the
squared error relative to the variance, summed over all outputs.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

import entrim


class Detector(nn.Module):
    """One trunk, and one branch each for the class and the box of an object."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Conv2d(3, 16, 3, padding=1)
        self.class_branch = nn.Conv2d(16, 32, 3, padding=1)
        self.classes = nn.Linear(32, 5)
        self.box_branch = nn.Conv2d(16, 32, 3, padding=1)
        self.box = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of five classes, and the four sides of a box."""
        x = self.trunk(x).relu()
        classes = self.class_branch(x).relu().mean((2, 3))
        box = self.box_branch(x).relu().mean((2, 3))
        return self.classes(classes), self.box(box)


def class_only(outputs: tuple[Tensor, Tensor], reference: tuple[Tensor, Tensor]) -> Tensor:
    """Return the KL divergence of the classes; the box may change."""
    found, wanted = (functional.log_softmax(logits[0], 1) for logits in (outputs, reference))
    return (wanted.exp() * (wanted - found)).sum(1)


def box_only(outputs: tuple[Tensor, Tensor], reference: tuple[Tensor, Tensor]) -> Tensor:
    """Return the squared error of the box; the class may change."""
    return (outputs[1] - reference[1]).square().mean(1)


def main() -> None:
    """Prune to half of the parameters with three sensitivities, and compare the widths."""
    torch.manual_seed(0)
    model, images = Detector().eval(), torch.randn(200, 3, 12, 12)
    for name, sensitivity in {"default": None, "class": class_only, "box": box_only}.items():
        result = entrim.sparsify(
            model,
            images,
            entrim.Budget(params=0.5),
            calibration=entrim.Calibration(sensitivity=sensitivity),
        )
        widths = {group.name: len(group.kept) for group in result.record.groups}
        print(f"{name:<8} {widths}")


if __name__ == "__main__":
    main()
