"""Measurements made by hand: everything compared stands side by side in one run."""

BENCHMARKS = {
    "solver": "what the solver costs, and what its choices are worth",
    "network": "what following and cutting channels costs, and what a half cut saves",
    "spartan": "SPARTAn against six regressions, and its cost",
    "sparsify": "what networks hold without training, and what that costs",
    "allocation": "ways to choose the widths under a budget",
    "candidates": "what tells the damage of a cut",
    "timing": "seconds of whole runs, and latencies",
    "distill": "what distillation brings back",
    "search": "TPE against chance, pruned against all scored",
    "export": "what ONNX and eight bits lose",
    "stop": "where the paper's alternation stops",
    "readings": "how the paper can be read on VGG-16",
    "resuming": "what a journal costs, and what it saves",
    "paper": "the paper's tables as pictures, drawn from their records",
}
"""What each module here measures."""
IN_PARTS = ("sparsify", "allocation", "candidates", "distill")
"""Those whose `main` is told which networks or parts to measure, all where none is named."""
