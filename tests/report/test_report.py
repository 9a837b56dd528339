import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import entrim
from entrim.errors import LoadError, SaveError
from entrim.records import Distilled, Record, Score
from entrim.report.markup import tag
from entrim.report.page import html, write
from entrim.report.report_data import read
from tests.report.runs import HOSTILE, by_budget, by_eps, network, texts


@pytest.fixture(scope="module")
def eps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_eps(tmp_path_factory.mktemp("runs") / "eps")


@pytest.fixture(scope="module")
def budget(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_budget(tmp_path_factory.mktemp("runs") / "budget")


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
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def test_a_record_comes_back_from_its_json_as_it_was(eps: Path, budget: Path) -> None:
    for folder in (eps, budget):
        record = read(folder).record
        assert Record.from_json(record.to_json()) == record
        assert record.groups[0].kept == tuple(record.groups[0].kept)
    taught = Distilled(
        images=9, holdout=1, settings={}, before=2.0, after=1.0, epochs=3, best=2,
        ending="it ended", seconds=1.0,
    )  # fmt: skip
    record = replace(read(eps).record, distilled=taught)
    assert Record.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "groups": []}', "null"]
)
def test_what_is_no_record_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(LoadError, match="update entrim"):
        Record.from_json(text)


def test_the_layers_are_those_of_the_network_in_its_order(budget: Path) -> None:
    story = read(budget)
    kept = {group.name: len(group.kept) for group in story.record.groups}
    assert [(layer.name, layer.before, layer.after) for layer in story.layers] == [
        ("first", 16, 16),
        ("second", 24, kept["second"]),
        ("last", 3, 3),
    ]
    assert [layer.looked_at for layer in story.layers] == [False, True, True]
    assert story.layers[2].reasons == ("it is an output of the network",)


def test_every_figure_of_the_record_is_told(eps: Path, budget: Path) -> None:
    for folder in (eps, budget):
        story = read(folder)
        said = texts(html(story))
        for group in story.record.groups:
            assert f"{len(group.kept)} of {group.channels} channels" in said
        for _, _, reason in story.record.frozen:
            assert reason in said
        for version in story.record.versions.values():
            assert version in said
        taken = sum(point.selected for point in story.record.tradeoff)
        assert said.count("taken") == 4 * taken  # in two charts, the head and a row of the table


def test_a_page_is_whole_and_asks_for_nothing_from_outside(eps: Path, budget: Path) -> None:
    for folder in (eps, budget):
        page = html(read(folder))
        outline = Outline(page)
        loaded = {"script", "link", "img", "iframe", "object", "embed", "image", "use", "base"}
        assert not loaded & {name for name, _ in outline.tags}
        assert not any(key.startswith("on") for _, found in outline.tags for key in found)
        assert "http:" not in page
        assert "https:" not in page
        assert "@import" not in page
        assert [a["href"] for a in outline.named("a")][1:] == [
            f"#{section['id']}" for section in outline.named("section")
        ]


def test_a_screen_reader_finds_headings_names_and_captions(eps: Path, budget: Path) -> None:
    for folder in (eps, budget):
        outline = Outline(html(read(folder)))
        assert outline.named("html") == [{"lang": "en"}]
        levels = [int(name[1]) for name, _ in outline.tags if re.fullmatch("h[1-6]", name)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b - a <= 1 for a, b in pairwise(levels))
        assert all(svg["role"] == "img" and svg["aria-label"] for svg in outline.named("svg"))
        assert len(outline.named("caption")) == len(outline.named("table")) > 0
        assert all(th["scope"] in ("row", "col") for th in outline.named("th"))
        ids = [found["id"] for _, found in outline.tags if "id" in found]
        assert len(ids) == len(set(ids))


def _brightness(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(c * share for c, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def test_text_stands_out_in_light_and_in_dark(eps: Path) -> None:
    themes = re.findall(r":root \{(.*?)\}", html(read(eps)), re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})\b", theme))
        pairs = [("ink", "sheet"), ("soft", "sheet"), ("soft", "paper"), ("note-ink", "note")]
        for text, ground in [*pairs, ("limit", "sheet"), ("ink", "paper")]:
            low, high = sorted((_brightness(colours[text]), _brightness(colours[ground])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_a_hostile_name_is_text_wherever_it_stands(eps: Path) -> None:
    story = read(eps)
    assert story.layers[1].name == HOSTILE
    hostile = replace(
        story,
        folder=HOSTILE,
        commands=(("entrim", HOSTILE),),
        record=replace(
            story.record, model=HOSTILE + '"', notes=(HOSTILE,), settings={"layers": HOSTILE}
        ),
    )
    names = {name for name, _ in Outline(html(hostile)).tags}
    assert not names & {"img", "script"}
    assert "&lt;img src=x" in html(hostile)


def test_empty_parts_make_no_section(eps: Path) -> None:
    story = read(eps)
    bare = replace(story.record, groups=(), layers=(), frozen=(), notes=(), seconds={}, tradeoff=())
    page = html(replace(story, record=bare, layers=()))
    sections = {section["id"] for section in Outline(page).named("section")}
    assert sections == {"proof", "again"}


def test_a_score_is_the_first_figure_with_what_it_was_measured_on(eps: Path) -> None:
    story = read(eps)
    score = Score(name="accuracy, %", before=91.984, after=86.62, on="5,000 images of t.npz")
    for one, bars in ((score, 5), (replace(score, before=-2.0), 4)):
        page = html(replace(story, record=replace(story.record, score=one)))
        head = page.partition("<nav")[0]
        assert head.index("accuracy, %") < head.index("fewer parameters")
        assert f"{one.before:.4g} → 86.62, on 5,000 images of t.npz" in head
        assert head.count('class="bar"') == bars  # a share of a negative score means nothing
    assert "accuracy" not in html(story)


def test_the_error_of_the_outputs_and_the_date_are_told_where_they_are_known(eps: Path) -> None:
    story = read(eps)
    record = replace(story.record, error=0.0123, date="2026-11-16T18:34:07+00:00")
    said = texts(html(replace(story, record=record)))
    assert "entrim report · 2026-11-16 " in said
    assert "its outputs are 1.2 % of their variance away from the original's" in said
    assert "2026-11-16, 18:34 UTC" in said
    bare = texts(html(replace(story, record=replace(record, error=None, date=None))))
    assert "entrim report S" in bare
    assert "away from the original" not in bare
    assert "None" not in bare


def test_how_groups_were_chosen_is_said_once_where_it_is_the_same(budget: Path) -> None:
    story = read(budget)
    one = story.record.groups[0]
    for hows, once, cards in (
        (("greedy", "greedy", "greedy"), "All were chosen alike (greedy)", 0),
        (("greedy", "greedy", "scored"), "does not say how, as usual (greedy)", 1),
        (("greedy", "scored"), None, 2),
    ):
        groups = tuple(replace(one, how=how) for how in hows)
        page = html(replace(story, record=replace(story.record, groups=groups)))
        assert once is None or once in page
        assert page.count('class="small"') == cards
        assert page.lower().count("greedy") == 1


def test_one_word_is_used_for_one_thing(eps: Path, budget: Path) -> None:
    for folder in (eps, budget):
        said = texts(html(read(folder)))
        assert "multiplications" not in said
        assert "multiply-accumulates (MACs)" in said


@pytest.mark.parametrize(
    ("after", "spread", "word"),
    [
        (0.5, 0.1, "2× faster here "),
        (0.5, 1.0, "2× faster here, within the noise"),
        (1.5, 0.1, "1.5× slower here "),
        (1.5, 1.0, "1.5× slower here, within the noise"),
    ],
)
def test_a_time_within_its_spread_is_called_noise(
    eps: Path, after: float, spread: float, word: str
) -> None:
    story = read(eps)
    record = replace(
        story.record,
        before=replace(story.record.before, latency=1.0, spread=0.1),
        after=replace(story.record.after, latency=after, spread=spread),
    )
    assert word in texts(html(replace(story, record=record)))


def test_odd_figures_are_drawn_too(eps: Path) -> None:
    story = read(eps)
    group = replace(story.record.groups[0], channels=1, kept=(0,), w=(1.0,), trace=(0.5, 0.5))
    layer = replace(story.record.layers[0], error=0.0)
    none = replace(story.record.after, params=0, macs=0, bytes=0, latency=0.0)
    record = replace(
        story.record, groups=(group,), layers=(layer,), after=none, notes=("look out",),
        proof={"sliced": 0.0, "final": 0.0, "tolerance": 1e-9},
    )  # fmt: skip
    page = html(replace(story, record=record))
    Outline(page)
    assert "look out" in page
    assert not re.search(r"\b(nan|inf)\b", page.split("</style>")[1])


def test_the_file_lies_in_the_folder_or_where_it_is_wanted(eps: Path, tmp_path: Path) -> None:
    assert write(eps) == eps / "report.html"
    other = write(eps, tmp_path / "other.html")
    assert other.read_text(encoding="utf-8") == (eps / "report.html").read_text(encoding="utf-8")
    with pytest.raises(SaveError, match="name another file"):
        write(eps, tmp_path / "missing" / "report.html")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="hand over a folder of save"):
        read(tmp_path)
    model, plan = network(), entrim.Plan({"first": [0, 3]})
    entrim.save(entrim.apply_plan(model, plan, torch.randn(3, 12)), plan, tmp_path / "bare")
    with pytest.raises(LoadError, match=r"small\.save"):
        read(tmp_path / "bare")


def test_a_tag_escapes_what_is_not_a_tag() -> None:
    assert (
        tag("a", "<b>", tag("i", "&"), title='"') == '<a title="&quot;">&lt;b&gt;<i>&amp;</i></a>'
    )
