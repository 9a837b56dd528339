"""Benchmarks, run by hand: everything that is compared is measured in one run."""

BENCHMARKS = {
    "solver": "cost of the solver, and quality of its selections",
    "network": "cost of tracing and pruning, and savings of a half-size network",
    "spartan": "SPARTAn against six regressions, and its cost",
    "sparsify": "accuracy without training, and its cost",
    "allocation": "methods to choose the widths under a budget",
    "trust": "coverage of the figures on hold-out images",
    "depth": "removal of entire residual blocks under a budget",
    "candidates": "measures of the sensitivity to pruning",
    "timing": "seconds of full runs, and latencies",
    "scale": "forward passes, memory and accuracy of budgeted runs",
    "distill": "accuracy recovered by distillation",
    "accuracy": "accuracy without labels, with and without recovery",
    "imagenet": "accuracy on ImageNet without labels, in five folds",
    "search": "TPE against random search, early stopping against none",
    "searches": "TPE, random and grid search on trained networks, next to a budget",
    "export": "accuracy as ONNX and in eight bits",
    "onnx": "ONNX files: import, pruning, agreement and latency",
    "stop": "where the paper's alternation stops",
    "readings": "readings of the paper on VGG-16",
    "resuming": "cost of checkpoints, and the time they save",
    "gallery": "five networks before and after, with charts",
    "paper": "plots of the paper's tables, from their records",
}
"""What each module measures."""
IN_PARTS = (
    "sparsify",
    "allocation",
    "candidates",
    "distill",
    "accuracy",
    "imagenet",
    "scale",
    "trust",
    "depth",
    "readings",
    "searches",
    "onnx",
    "gallery",
)
"""Modules whose `main` takes networks or parts to measure; none means all."""
