"""The tables of the paper, printed and reproduced, and further studies."""
