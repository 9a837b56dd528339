import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import entrim
from entrim.cli.run_dir import next_command
from entrim.errors import LoadError, SaveError
from entrim.records import Distilled, Guarantee, Record, Score
from entrim.report import ribbon
from entrim.report.assessment import assess, rank
from entrim.report.comparison import RunComparison
from entrim.report.markup import tag
from entrim.report.page import html, write
from entrim.report.report_data import COMMAND, Layer, ReportData, read
from entrim.report.tradeoff import LETTER
from tests.report.runs import HOSTILE, network, save_budget_run, save_penalty_run, visible_text


@pytest.fixture(scope="module")
def eps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_penalty_run(tmp_path_factory.mktemp("runs") / "eps")


@pytest.fixture(scope="module")
def budget(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_budget_run(tmp_path_factory.mktemp("runs") / "budget")


class Outline(HTMLParser):
    """The tags of a page, checked to be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def attributes_of(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def test_record_survives_json(eps: Path, budget: Path) -> None:
    for folder in (eps, budget):
        record = read(folder).record
        assert Record.from_json(record.to_json()) == record
        assert record.groups[0].kept == tuple(record.groups[0].kept)
    distilled = Distilled(
        images=9, holdout=1, settings={}, before=2.0, after=1.0, epochs=3, best=2,
        ending="it ended", seconds=1.0,
    )  # fmt: skip
    record = replace(read(eps).record, distilled=distilled)
    assert Record.from_json(record.to_json()) == record


@pytest.mark.parametrize("text", ["", "[]", "{}", "null"])
def test_invalid_records_are_refused(text: str) -> None:
    with pytest.raises(LoadError, match="update entrim"):
        Record.from_json(text)


@pytest.mark.parametrize("text", ['{"format": 99}', '{"format": 1, "groups": []}'])
def test_records_of_another_format_are_refused(text: str) -> None:
    with pytest.raises(LoadError, match="another format: read it with the version that wrote it"):
        Record.from_json(text)


def test_layers_are_in_the_order_of_the_network(budget: Path) -> None:
    data = read(budget)
    kept = {group.name: len(group.kept) for group in data.record.groups}
    assert [(layer.name, layer.before, layer.after) for layer in data.layers] == [
        ("first", 16, 16),
        ("second", 24, kept["second"]),
        ("last", 3, 3),
    ]
    assert [layer.included for layer in data.layers] == [False, True, True]
    assert data.layers[2].reasons == ("it is an output of the network",)


def test_report_contains_the_record(eps: Path, budget: Path) -> None:
    for folder in (eps, budget):
        data = read(folder)
        page = html(data)
        text = visible_text(page)
        for group in data.record.groups:
            assert f"{len(group.kept)} of {group.channels} channels" in text
        for _, _, reason in data.record.frozen:
            assert reason in text
        for version in data.record.versions.values():
            assert version in text
        selected = sum(point.selected for point in data.record.tradeoff)
        assert text.count("selected: ") == 6 * selected  # three sizes, two widths of the screen
        assert page.count(">selected<") == 2 * selected  # the head and a row of the table


def test_page_is_well_formed_and_self_contained(eps: Path, budget: Path) -> None:
    for folder in (eps, budget):
        page = html(read(folder))
        outline = Outline(page)
        loaded = {"link", "img", "iframe", "object", "embed", "image", "use", "base"}
        assert not loaded & {name for name, _ in outline.tags}
        assert outline.attributes_of("script") == [{}]  # no src
        assert not any(key.startswith("on") for _, found in outline.tags for key in found)
        assert "http:" not in page
        assert "https:" not in page
        assert "@import" not in page
        assert [a["href"] for a in outline.attributes_of("a")][1:] == [
            f"#{section['id']}" for section in outline.attributes_of("section")
        ]


def test_page_is_accessible(eps: Path, budget: Path) -> None:
    for folder in (eps, budget):
        outline = Outline(html(read(folder)))
        assert outline.attributes_of("html") == [{"lang": "en"}]
        levels = [int(name[1]) for name, _ in outline.tags if re.fullmatch("h[1-6]", name)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b - a <= 1 for a, b in pairwise(levels))
        assert all(
            svg["role"] == "img" and svg["aria-label"] for svg in outline.attributes_of("svg")
        )
        assert len(outline.attributes_of("caption")) == len(outline.attributes_of("table")) > 0
        assert all(th["scope"] in ("row", "col") for th in outline.attributes_of("th"))
        ids = [found["id"] for _, found in outline.tags if "id" in found]
        assert len(ids) == len(set(ids))


def _luminance(color: str) -> float:
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(c * share for c, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def test_text_has_enough_contrast(eps: Path) -> None:
    themes = re.findall(r":root \{(.*?)\}", html(read(eps)), re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        colors = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})\b", theme))
        pairs = [("ink", "sheet"), ("soft", "sheet"), ("soft", "paper"), ("note-ink", "note")]
        for foreground, background in [*pairs, ("limit", "sheet"), ("ink", "paper")]:
            low, high = sorted((_luminance(colors[foreground]), _luminance(colors[background])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (foreground, background)


def test_hostile_names_are_escaped(eps: Path) -> None:
    data = read(eps)
    assert data.layers[1].name == HOSTILE
    hostile = replace(
        data,
        folder=HOSTILE,
        commands=(("entrim", HOSTILE),),
        record=replace(
            data.record, model=HOSTILE + '"', notes=(HOSTILE,), settings={"include": HOSTILE}
        ),
    )
    names = [name for name, _ in Outline(html(hostile)).tags]
    assert "img" not in names
    assert names.count("script") == 1
    assert "&lt;img src=x" in html(hostile)


def test_scripts_in_names_and_notes_are_text(budget: Path) -> None:
    data, script = read(budget), "<script>alert(1)</script>"
    clean = html(data)
    for changes in (
        {"model": script},
        {"notes": (script,)},
        {"groups": tuple(replace(group, name=script) for group in data.record.groups)},
        {"layers": tuple(replace(layer, layer=script) for layer in data.record.layers)},
        {"frozen": ((script, 3, script),)},
        {"score": Score(name=script, before=1.0, after=1.0, on=script)},
        {"versions": {script: script}},
    ):
        page = html(replace(data, record=replace(data.record, **changes)))
        assert page != clean
        assert page.count("<script") == 1
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_empty_sections_are_omitted(eps: Path) -> None:
    data = read(eps)
    bare = replace(data.record, groups=(), layers=(), frozen=(), notes=(), seconds={}, tradeoff=())
    page = html(replace(data, record=bare, layers=()))
    sections = {section["id"] for section in Outline(page).attributes_of("section")}
    assert sections == {"unseen", "next", "proof", "again"}


def test_score_is_the_first_card(eps: Path) -> None:
    data = read(eps)
    score = Score(name="accuracy, %", before=91.984, after=86.62, on="5,000 images of t.npz")
    for one, bars in ((score, 6), (replace(score, before=-2.0), 5)):
        page = html(replace(data, record=replace(data.record, score=one)))
        head = page.partition("<nav")[0]
        assert head.index("accuracy, %") < head.index("fewer parameters")
        assert f"{one.before:.4g} → 86.62, on 5,000 images of t.npz" in head
        assert head.count('class="bar"') == bars  # a share of a negative score means nothing
    assert "accuracy" not in html(data)


def test_output_error_and_date_are_reported(eps: Path) -> None:
    data = read(eps)
    record = replace(data.record, error=0.0123, date="2026-11-16T18:34:07+00:00")
    text = visible_text(html(replace(data, record=record)))
    assert "entrim report · 2026-11-16 " in text
    assert "error, fitting images 0.0123" in text
    assert "2026-11-16, 18:34 UTC" in text
    bare = visible_text(html(replace(data, record=replace(record, error=None, date=None))))
    assert "entrim report S" in bare
    assert "error, fitting images" not in bare
    assert "None" not in bare


def test_figures_on_unseen_images_are_reported(eps: Path) -> None:
    data = read(eps)
    holdout = data.record.holdout
    assert holdout is not None
    assert holdout.agreement is not None
    text = visible_text(html(data))
    value, low, high = holdout.figures()["agreement"]
    assert f"agreement, unseen images {value} {low} to {high}" in text
    assert "compared as logits, which was recognized automatically" in text
    assert f"on {holdout.images} unseen images" in text
    given = Guarantee(agreement=0.9, confidence=0.95, low=0.93, tested=4, holds=False)
    marked = replace(holdout, guarantee=given, selection_images=40)
    text = visible_text(html(replace(data, record=replace(data.record, holdout=marked))))
    assert "Not guaranteed, because these hold-out images were used for another target" in text
    trained = replace(data.record, holdout=None)
    text = visible_text(html(replace(data, record=trained)))
    assert "unseen images: the hold-out images were not available after the training." in text
    none = replace(trained, holdout_digests=())
    text = visible_text(html(replace(data, record=none)))
    assert "Nothing was measured on unseen images: no images were held out." in text


def test_common_reason_of_groups_is_stated_once(budget: Path) -> None:
    data = read(budget)
    one = data.record.groups[0]
    for reasons, once, cards in (
        (("greedy", "greedy", "greedy"), "Selection of all groups: greedy.", 0),
        (("greedy", "greedy", "scores"), "Selection unless stated otherwise: greedy.", 1),
        (("greedy", "scores"), None, 2),
    ):
        groups = tuple(replace(one, reason=reason) for reason in reasons)
        page = html(replace(data, record=replace(data.record, groups=groups)))
        assert once is None or once in page
        assert page.count('class="small"') == cards
        assert page.lower().count("greedy") == 1


def test_terms_are_consistent(eps: Path, budget: Path) -> None:
    for folder in (eps, budget):
        text = visible_text(html(read(folder)))
        assert "multiplications" not in text
        assert "multiply-accumulates (MACs)" in text


@pytest.mark.parametrize(
    ("after", "deviation", "word"),
    [
        (0.5, 0.1, "2× lower latency "),
        (0.5, 1.0, "2× lower latency, within the noise"),
        (1.5, 0.1, "1.5× higher latency "),
        (1.5, 1.0, "1.5× higher latency, within the noise"),
    ],
)
def test_latency_within_the_deviation_is_noise(
    eps: Path, after: float, deviation: float, word: str
) -> None:
    data = read(eps)
    record = replace(
        data.record,
        before=replace(data.record.before, latency=1.0, deviation=0.1),
        after=replace(data.record.after, latency=after, deviation=deviation),
    )
    assert word in visible_text(html(replace(data, record=record)))


def test_degenerate_values_are_drawn(eps: Path) -> None:
    data = read(eps)
    group = replace(data.record.groups[0], channels=1, kept=(0,), w=(1.0,), trace=(0.5, 0.5))
    layer = replace(data.record.layers[0], error=0.0)
    none = replace(data.record.after, params=0, macs=0, bytes=0, latency=0.0)
    record = replace(
        data.record, groups=(group,), layers=(layer,), after=none, notes=("look out",),
        proof={"sliced": 0.0, "final": 0.0, "tolerance": 1e-9},
    )  # fmt: skip
    page = html(replace(data, record=record))
    Outline(page)
    assert "look out" in page
    assert not re.search(r"\b(nan|inf)\b", page.split("</style>")[1])


def test_report_is_written_to_the_folder_or_a_given_file(eps: Path, tmp_path: Path) -> None:
    assert write(eps) == eps / "report.html"
    other = write(eps, tmp_path / "other.html")
    assert other.read_text(encoding="utf-8") == (eps / "report.html").read_text(encoding="utf-8")
    with pytest.raises(SaveError, match="name another file"):
        write(eps, tmp_path / "missing" / "report.html")


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="pass a folder of save"):
        read(tmp_path)
    model, plan = network(), entrim.Plan({"first": [0, 3]})
    entrim.save(entrim.apply_plan(model, plan, torch.randn(3, 12)), plan, tmp_path / "bare")
    with pytest.raises(LoadError, match=r"result\.save"):
        read(tmp_path / "bare")


def test_tags_escape_text() -> None:
    assert tag("a", "<b>", tag("i", "&"), title='"') == '<a title="&#34;">&lt;b&gt;<i>&amp;</i></a>'


def test_long_names_of_many_layers_are_inside_of_the_picture() -> None:
    layers = [Layer(name=f"node_convolution_{k}", before=16, after=8) for k in range(56)]
    drawn = str(ribbon.across(layers))
    names = re.findall(r'translate\(([\d.]+),[\d.]+\) rotate\(-60\)"[^>]*>([^<]*)', drawn)
    assert len(names) == len(layers)
    for x, name in names:
        assert float(x) - 6 * len(name) * math.cos(math.radians(60)) >= 0, name


@pytest.mark.parametrize("number", [3, 9])
def test_names_in_a_comparison_do_not_cover_each_other(tmp_path: Path, number: int) -> None:
    data = read(save_budget_run(tmp_path / "run"))
    names = tuple(f"network {k}" for k in range(number))
    chart = str(RunComparison(names, (data,) * number).chart())
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="caption">(.*?)<', chart)
    assert [name for *_, name in found] == list(names)
    places = [(float(x), float(y)) for x, y, _ in found]
    for k, (x, y) in enumerate(places):
        assert all(abs(x - a) >= 8 * LETTER or abs(y - b) >= 12 for a, b in places[:k])


def test_best_of_several_networks_is_the_smallest_that_is_close(tmp_path: Path) -> None:
    data = read(save_budget_run(tmp_path / "run"))
    holdout = data.record.holdout
    assert holdout is not None
    agreed = holdout.agreement
    assert agreed is not None

    def made(agreement: float, macs: int) -> ReportData:
        value = replace(agreed, value=agreement)
        record = replace(
            data.record,
            holdout=replace(holdout, agreement=value),
            after=replace(data.record.after, macs=macs),
        )
        return replace(data, record=record)

    for runs, expected in (
        ([(1.0, 70), (0.95, 50), (0.5, 30)], 50),
        ([(0.9, 70), (0.85, 50), (0.5, 30)], 70),
    ):
        assert min((made(*run) for run in runs), key=rank).record.after.macs == expected


def test_next_command_recovers_a_network_that_differs(tmp_path: Path) -> None:
    place = save_budget_run(tmp_path / "run")
    (place / COMMAND).write_text('{"command": ["entrim", "sparsify", "net"]}')
    assert assess(read(place).record).level == "changed"
    assert next_command(place).startswith(f"next: entrim distill {place} --out ")
