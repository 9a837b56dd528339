"""A notebook, executed in a kernel: progress in one line, results as tables and charts."""

import html
import re
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install ipykernel")

CELLS = (
    """
import torch, entrim
_ = torch.manual_seed(0)
nn = torch.nn
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
images = torch.randn(300, 16)
""",
    "result = entrim.sparsify(net, images, entrim.Budget(macs=0.6))",
    "result",
    "result.summary()",
    'result.plot("macs")',
    "quiet = entrim.sparsify(net, images, entrim.Widths(0.5), callbacks=())",
    "better = entrim.distill(result, distillation=entrim.Distillation(epochs=3))",
    "result.record",
    "entrim.trace(net, images[:4])",
    "print(repr(result))",
)


@pytest.fixture(scope="module")
def outputs() -> list[list[Any]]:
    """Return the outputs of every cell."""
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


def html_of(found: list[Any]) -> str:
    (one,) = (output for output in found if "data" in output)
    return one.data["text/html"]


def test_progress_is_one_line_that_ends_with_the_time(outputs: list[list[Any]]) -> None:
    for number, name in ((1, "sparsify"), (6, "distill")):
        shown = [output for output in outputs[number] if output.output_type == "display_data"]
        assert len(shown) == 1
        assert re.fullmatch(rf"{name}: \d+:\d\d", shown[0].data["text/plain"])
        assert "<progress" not in shown[0].data["text/html"]
    assert not [output for output in outputs[1] if output.output_type == "stream"]


def test_no_callbacks_are_silent(outputs: list[list[Any]]) -> None:
    assert outputs[5] == []


@pytest.mark.parametrize("number", [2, 3])
def test_result_is_a_table_with_an_assessment(outputs: list[list[Any]], number: int) -> None:
    page = html_of(outputs[number])
    text = html.unescape(re.sub(r"<[^>]+>", " ", page.partition("</style>")[2]))
    for part in ("parameters", "MACs", "agreement", "unseen images", "Next steps", "distill("):
        assert part in text


def test_chart_is_an_svg(outputs: list[list[Any]]) -> None:
    assert html_of(outputs[4]).startswith("<svg")


def test_record_and_graph_are_tables(outputs: list[list[Any]]) -> None:
    record, graph = (outputs[number][0].data["text/plain"] for number in (7, 8))
    assert "times fewer" in record.splitlines()[0]
    assert graph.splitlines()[0].split() == ["group", "channels", "produced", "by"]


def test_repr_is_one_line(outputs: list[list[Any]]) -> None:
    text = outputs[9][0].text.rstrip("\n")
    assert "\n" not in text
    assert "60% of the MACs" in text
    assert len(text) < 200
