"""The documents: their code runs and prints what they say, and what they refer to exists."""

import argparse
import ast
import contextlib
import functools
import importlib
import inspect
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import entrim
import entrim.errors
import entrim.report
from entrim.cli.main import parser
from experiments.__main__ import parser as experiments

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks_of(text: str) -> list[str]:
    """Return the Python code of a document."""
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def expected_output(block: str) -> list[str]:
    """Return the lines that a block says it prints."""
    return re.findall(r"^# -> ?(.*)", block, re.MULTILINE)


PAGES = [
    page
    for page in DOCUMENTS
    if page.relative_to(ROOT) != Path("README.md") and blocks_of(page.read_text())
]
USER_PROJECT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, x):
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(inner + self.downsample(x))


torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
    *(Block(16, 16, 1), Block(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
)
data = TensorDataset(torch.randn(300, 3, 16, 16), torch.zeros(300, dtype=torch.long))
train_loader = DataLoader(data, batch_size=64, shuffle=True)
"""
"""The network and the data that the README imports: a ResNet with the modules of torchvision."""


def test_every_block_of_code_in_the_documents_is_executed_or_not_python() -> None:
    for document in DOCUMENTS:
        fences = re.findall(r"^ *```+ *([\w{}]*)$", document.read_text(), re.MULTILINE)
        assert set(fences) <= {"", "python", "math"}, document
        indented = re.findall(r"^ +```python", document.read_text(), re.MULTILINE)
        assert not indented, document


@functools.cache
def page_variables() -> dict[str, Any]:
    """Return the variables of the pages: network and images of a user, and a result."""
    torch.manual_seed(0)
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 8, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(8, 16, 3, padding=1),
            relu2=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(2),
            flat=nn.Flatten(),
            fc=nn.Linear(64, 10),
        )
    ).eval()
    images, more_images = torch.randn(300, 3, 8, 8), torch.randn(200, 3, 8, 8)
    labels = model(images).argmax(1)

    def accuracy(net: nn.Module) -> float:
        return float((net(images).argmax(1) == labels).float().mean())

    return {
        "model": model,
        "images": images,
        "more_images": more_images,
        "labels": labels,
        "accuracy": accuracy,
        "small": entrim.sparsify(model, images, entrim.Widths(0.5)),
        "entrim": entrim,
    }


@pytest.mark.filterwarnings("ignore::entrim.errors.NothingCutWarning")  # a tiny network is fast
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_of_a_page_runs_and_prints_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = dict(page_variables())
    for block in blocks_of(page.read_text()):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(block, str(page), "exec"), names)
        if expected_output(block):
            assert output.getvalue().splitlines() == expected_output(block)


@pytest.mark.parametrize("number", range(len(blocks_of(README))))
def test_the_code_of_the_readme_runs_and_prints_what_it_says(number: int, tmp_path: Path) -> None:
    block = blocks_of(README)[number]
    (tmp_path / "my_project.py").write_text(USER_PROJECT)
    run = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == expected_output(block)


def test_the_readme_holds_an_example_of_ten_lines_that_says_what_it_prints() -> None:
    assert any(expected_output(block) for block in blocks_of(README))


def test_the_readme_fits_on_two_screens() -> None:
    assert len(README.split()) <= 700


def test_the_oldest_pytorch_is_that_of_the_project_file() -> None:
    (oldest,) = re.findall(r'"torch>=([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    for page in (README, (ROOT / "docs/quick-start.md").read_text()):
        assert re.findall(r"PyTorch ([0-9.]+) or newer", page) == [oldest]


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sources = [*(ROOT / "src").rglob("*.py"), ROOT / "docs/site/conf.py", ROOT / "CITATION.cff"]
    assert [file for file in sources if f'"{project["version"]}"' in file.read_text()] == []


@pytest.mark.parametrize("name", ["vgg16-full"])
def test_every_speed_up_of_the_tables_is_printed_with_its_spread(name: str) -> None:
    page = (ROOT / "docs/reproduce.md").read_text()
    record = json.loads((ROOT / f"experiments/results/reproduce/{name}.json").read_text())
    assert record["measured"]
    for one in record["measured"]:
        timing, accuracy = one["timing"], one["pruned"]["accuracy"]
        shown = f"| {timing['speedup']:.2f}x | {timing['deviation']:.2f} |"
        rows = [line for line in page.splitlines() if f"{accuracy:.2f}" in line]
        assert any(shown in line for line in rows), (one["row"], one["method"])


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^ {4}make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!http|#)([^)#]+)", document.read_text())
    missing = [link for link in links if not (document.parent / link).exists()]
    assert not missing


CURRENT = [document for document in DOCUMENTS if document.name != "CHANGELOG.md"]
"""The documents that describe the code as it is."""
REFERENCE = sorted((ROOT / "docs/reference").glob("*.rst"))


def resolve(name: str) -> object:
    """Return the module, class, function or member with this qualified name."""
    parts = name.split(".")
    found: object = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], 2):
        with contextlib.suppress(ImportError):
            importlib.import_module(".".join(parts[:number]))
        fields = getattr(found, "__dataclass_fields__", {})
        found = fields[part] if part in fields else getattr(found, part)
    return found


@pytest.mark.parametrize("document", [*CURRENT, *REFERENCE], ids=name_of)
def test_the_names_of_the_package_in_a_document_exist(document: Path) -> None:
    for name in set(re.findall(r"(?<![\w./-])entrim(?:\.[A-Za-z_]\w*)+", document.read_text())):
        resolve(name)


def test_a_name_that_does_not_exist_is_found() -> None:
    assert resolve("entrim.surgery.prune.prune")
    assert resolve("entrim.Record.tradeoff")
    with pytest.raises(AttributeError):
        resolve("entrim.network.cut")


@pytest.mark.parametrize("document", CURRENT, ids=name_of)
def test_the_files_that_a_document_names_exist(document: Path) -> None:
    folders = "src|docs|tests|experiments|examples"
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", document.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def calls_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield name and keywords of every call of a public name in the code of a document."""
    for code in [*re.findall(r"`([^`\n]+)`", text), *blocks_of(text)]:
        with contextlib.suppress(SyntaxError):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func).removeprefix("entrim.")
                    if name in entrim.__all__:
                        yield name, [word.arg for word in node.keywords if word.arg is not None]


@pytest.mark.parametrize("document", CURRENT, ids=name_of)
def test_the_keywords_of_a_call_in_a_document_exist(document: Path) -> None:
    for name, keywords in calls_in(document.read_text()):
        known = inspect.signature(getattr(entrim, name)).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in known.values()):
            assert set(keywords) <= known.keys(), name


ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][
    0
]


def test_the_architecture_fits_on_two_hundred_lines() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 200


def test_the_contract_has_at_most_thirteen_layers() -> None:
    assert len(LAYERS["layers"]) <= 13
    assert LAYERS["exhaustive"]


def test_the_architecture_lists_the_layers_of_the_contract() -> None:
    assert "\n".join(f"    {layer}" for layer in LAYERS["layers"]) in ARCHITECTURE


def test_the_architecture_describes_every_package_and_what_it_may_import() -> None:
    layers = [layer.split(" | ") for layer in LAYERS["layers"]]
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([^|]*) \|$", ARCHITECTURE, re.MULTILINE)
    described = {name: set(re.findall(r"`(\w+)`", allowed)) for name, allowed in rows}
    assert described.keys() == {name for layer in layers for name in layer}
    for height, layer in enumerate(layers):
        below = {name for lower in layers[height + 1 :] for name in lower}
        for name in layer:
            assert described[name] <= below, name


def commands_in(text: str) -> list[list[str]]:
    """Return the entrim commands that a document shows on lines of their own, as words."""
    lines = re.findall(r"^ {4}(entrim [a-z]+ .*)", text.replace("\\\n", " "), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the commands of a parser by name."""
    return {
        name: command
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, command in action.choices.items()
    }


SHOWN = [words for page in DOCUMENTS for words in commands_in(page.read_text())]
OFFERED = {name: set(one._option_string_actions) for name, one in commands_of(parser()).items()}


@pytest.mark.parametrize("words", [w for w in SHOWN if w[1] in OFFERED], ids=" ".join)
def test_the_options_of_a_command_in_the_documents_exist(words: list[str]) -> None:
    given = {word for word in words[2:] if word.startswith("--")}
    assert given <= OFFERED[words[1]]


RECORDS = sorted((ROOT / "experiments/results").glob("*.md"))
EXPERIMENTS = commands_of(experiments())


def experiments_in(text: str) -> set[str]:
    """Return the words after `python -m experiments` wherever a document shows them."""
    shown = re.findall(r"`python\s+-m\s+experiments\s+([^`]+)`", text)
    shown += re.findall(r"^ {4}python -m experiments (.+?)(?: #.*)?$", text, re.MULTILINE)
    return {" ".join(words.split()) for words in shown}


@pytest.mark.parametrize("document", [*DOCUMENTS, *RECORDS], ids=name_of)
def test_the_experiments_that_a_document_names_exist(document: Path) -> None:
    for shown in experiments_in(document.read_text()):
        command, *words = shown.split()
        offered = EXPERIMENTS[command]
        options = {word for word in words if word.startswith("--")}
        assert options <= set(offered._option_string_actions), shown
        if words and words[0].islower() and words[0] not in options:
            (known,) = (a.choices for a in offered._actions if a.choices and not a.option_strings)
            assert words[0] in known, shown


def test_every_record_names_the_command_that_made_it() -> None:
    assert RECORDS
    for record in RECORDS:
        name = record.stem.split("-", 3)[3]
        command = rf"Made by `python -m experiments (bench )?{name}[ \w]*` with entrim"
        assert re.search(command, record.read_text()), name


def test_every_error_and_warning_has_its_line_in_the_troubleshooting_page() -> None:
    page = (ROOT / "docs/how-to/troubleshoot.md").read_text()
    kinds = [k for k in vars(entrim.errors).values() if isinstance(k, type)]
    assert [k.__name__ for k in kinds if f"`{k.__name__}`" not in page] == []


SITE = '<link rel="stylesheet" href="{}"><img src="a.png"><a href="https://example.org">there</a>'


@pytest.mark.parametrize(
    ("address", "code"),
    [("style.css", 0), ("https://fonts.example/a.css", 1), ("//fonts.example/a.css", 1)],
)
def test_a_site_that_loads_from_another_host_is_refused(
    address: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text(SITE.format(address))
    run = subprocess.run(
        [sys.executable, ROOT / "docs/site/offline.py", tmp_path], capture_output=True, text=True
    )
    assert run.returncode == code
    assert (f"index.html loads {address}" in run.stderr) == bool(code)


@pytest.mark.parametrize(
    ("link", "code"),
    [
        ("other.html#here", 0),
        ("other.html#caf%C3%A9", 0),
        ("#top", 0),
        ("https://example.org/#nowhere", 0),
        ("other.html#nowhere", 1),
        ("#nowhere", 1),
        ("gone.html", 1),
    ],
)
def test_a_site_with_a_link_that_leads_nowhere_is_refused(
    link: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text(f'<h1 id="top">A</h1><a href="{link}">there</a>')
    (tmp_path / "other.html").write_text('<p id="here">B</p><a name="café">C</a>')
    run = subprocess.run(
        [sys.executable, ROOT / "docs/site/offline.py", tmp_path], capture_output=True, text=True
    )
    assert run.returncode == code
    assert (f"index.html links to {link}, which does not exist" in run.stderr) == bool(code)


def functions_of(module: ModuleType) -> dict[str, Callable[..., Any]]:
    found = {name: getattr(module, name) for name in module.__all__}
    return {n: f for n, f in found.items() if callable(f) and not isinstance(f, type)}


@pytest.mark.parametrize("module", [entrim, entrim.report])
def test_every_public_function_has_an_example(module: ModuleType) -> None:
    found = functions_of(module)
    assert found
    assert [name for name, function in found.items() if ">>>" not in (function.__doc__ or "")] == []
