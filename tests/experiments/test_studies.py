"""Studies beyond the paper: criteria of others, numbers of images, attacks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import entrim
from entrim import ProgressEvent, trace
from entrim.errors import BadSettingError
from experiments.__main__ import main
from experiments.normalization import Normalization
from experiments.paper import robustness
from experiments.paper.criteria import CRITERIA, NoCriterionError
from experiments.paper.panels import Panel, lenet_panel
from experiments.paper.report import NOT_RUN
from experiments.paper.reproduce import Options
from experiments.paper.robustness import ROBUSTNESS, FromPixels, accuracy_under
from experiments.paper.rows import half_row
from experiments.paper.studies import STUDIES, Study
from experiments.work import NotFinishedError, Work
from tests.experiments.toys import pictures, toy


def on_toys(*rows: str, epochs: int = 0) -> Panel:
    return replace(lenet_panel(*rows, epochs=epochs), load=toy)


def study(name: str, variants: list[str], panel: Panel) -> Study:
    complete = STUDIES[name]
    some = tuple(variant for variant in complete.variants if variant.name in variants)
    assert len(some) == len(variants)
    return replace(complete, panels=(panel,), variants=some)


def test_a_study_shows_every_row(tmp_path: Path) -> None:
    greedy = study("comparison", ["greedy, rebuilt"], on_toys("E1", "E2"))
    work = Work(tmp_path)
    report = greedy.run(work, Options())
    (ours,) = report.lines
    assert (ours.row, list(ours.ours)) == ("greedy, rebuilt", ["E1", "E2"])
    assert [one["pruned"]["widths"]["conv1"] for one in report.measured] == [8, 4]
    assert [one["baseline"] - one["pruned"]["accuracy"] for one in report.measured] == [
        value for values in ours.ours.values() for value in values
    ]
    assert greedy.run(replace(work, only_finished=True), Options()).lines == report.lines


def test_a_criterion_that_a_network_lacks_says_so_in_its_cell(tmp_path: Path) -> None:
    scale = study("comparison", ["BatchNorm scale, old weights"], on_toys("E2", epochs=1))
    raw, tuned, *_ = scale.run(Work(tmp_path), Options()).lines
    assert raw.cells()[3:] == tuned.cells()[3:] == ["no BatchNorm", ""]


def test_old_weights_stay_and_are_fine_tuned_alike(tmp_path: Path) -> None:
    names = ["L1 norm, old weights", "L1 norm, rebuilt"]
    report = study("comparison", names, on_toys("E2", epochs=1)).run(Work(tmp_path), Options())
    old, rebuilt = report.measured
    assert set(old["tuned"]) == {1}
    assert "tuned" not in rebuilt
    trained = toy(Work(tmp_path))
    kept = trained.model.get_parameter("conv1.weight").abs().flatten(1).sum(1).topk(4).indices
    (place,) = (p for p in tmp_path.iterdir() if p.is_dir() and "old-weights" in p.name)
    assert torch.equal(
        entrim.load(trained.model, place).get_parameter("conv1.weight"),
        trained.model.get_parameter("conv1.weight")[kept.sort().values],
    )
    assert [line.quantity for line in report.lines[:3]] == [
        "drop, raw", "drop, fine tuned 1 epoch", "drop, raw",
    ]  # fmt: skip


def test_more_images_than_there_are_are_not_run(tmp_path: Path) -> None:
    lines = study("images", ["10,000 images"], on_toys("E1")).run(Work(tmp_path), Options()).lines
    assert [line.cells()[3:] for line in lines] == [[NOT_RUN, ""]] * 2


def test_another_number_of_images_is_another_stage(tmp_path: Path) -> None:
    few = study("images", ["25 images", "50 images"], on_toys("E1"))
    assert len(few.run(Work(tmp_path), Options()).measured) == 2
    first, second = (
        entrim.load(toy(Work(tmp_path)).model, place).get_parameter("fc1.weight")
        for place in tmp_path.glob("LeNet*images_*/")
    )
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", list(CRITERIA))
def test_a_criterion_ranks_every_channel(name: str, tmp_path: Path) -> None:
    trained = toy(Work(tmp_path))
    if name == "BatchNorm scale":
        with pytest.raises(NoCriterionError, match="no BatchNorm"):
            CRITERIA[name](trained, ["conv1"])
        return
    before = [p.clone() for p in trained.model.parameters()]
    scores = CRITERIA[name](trained, ["conv1", "fc1"])
    assert {layer: tuple(found.shape) for layer, found in scores.items()} == {
        "conv1": (16,), "fc1": (120,),
    }  # fmt: skip
    assert all(bool((found >= 0).all()) and len(found.unique()) > 8 for found in scores.values())
    for was, parameter in zip(before, trained.model.parameters(), strict=True):
        assert torch.equal(was, parameter)
        assert parameter.grad is None


def test_the_batchnorm_scale_is_that_of_the_next_batchnorm(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 676, 10)
    )
    scale = net.get_parameter("1.weight")
    nn.init.uniform_(scale, -1, 1)
    trained = replace(toy(Work(tmp_path)), model=net.eval())
    found = CRITERIA["BatchNorm scale"](trained, ["0"])["0"]
    assert torch.equal(found.argsort(), scale.abs().argsort())


def test_the_half_row_names_groups_of_one_producer_and_one_consumer() -> None:
    from experiments.models import ZOO

    row = half_row("ResNet-20")
    graph = trace(ZOO["ResNet-20"].model(), ZOO["ResNet-20"].images(2))
    channels = {group.name: group.channels for group in graph.groups}
    assert row.widths == {name: channels[name] // 2 for name in row.eps}
    assert len(row.eps) == 9


class Brightness(nn.Module):
    """Predicts 1 if the mean pixel is above a half, else 0; its gradient is known."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x.flatten(1).mean(1) - 0.5
        return torch.stack([-bright, bright, *[torch.full_like(bright, -9.0)] * 8], 1)


@pytest.mark.parametrize("attack", robustness.ATTACKS)
def test_an_attack_moves_every_pixel_by_its_strength_and_no_further(attack: str) -> None:
    g = torch.Generator().manual_seed(0)
    level = torch.rand(40, generator=g)
    images = (255 * level).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 6, 6).contiguous()
    data = replace(pictures(40, 0), images=images, labels=(level > 0.5).long())
    plain = Normalization((0.0,), (1.0,))
    for strength in (0.0, 0.1, 0.3):
        far = (images[:, 0, 0, 0] / 255 - 0.5).abs() > strength
        expected = 100 * float(far.float().mean())
        found = accuracy_under(Brightness().eval(), plain, data, attack, strength, seed=0)
        assert found == pytest.approx(expected, abs=2.6)


def test_pixels_are_normalized_as_the_network_wants_them() -> None:
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8, generator=g)
    for normalization in (
        Normalization((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
        Normalization((100.0, 110.0, 120.0), (1.0, 1.0, 1.0), scale=1.0, bgr=True),
    ):
        found = FromPixels(nn.Identity(), normalization)(images / 255)
        torch.testing.assert_close(found, normalization(images), rtol=1e-5, atol=1e-4)


def test_attacks_leave_numpys_random_numbers_and_the_network_alone() -> None:
    trained = toy(Work(Path("unused")))
    data = pictures(10, 4)
    before = {k: v.clone() for k, v in trained.model.state_dict().items()}
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    first = accuracy_under(trained.model, trained.normalization, data, "PGD", 0.1, seed=0)
    assert np.random.random() == expected  # noqa: NPY002
    assert accuracy_under(trained.model, trained.normalization, data, "PGD", 0.1, seed=0) == first
    for name, tensor in trained.model.state_dict().items():
        assert torch.equal(before[name], tensor)


def test_robustness_is_a_table_by_attack_and_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(robustness, "IMAGES", 20)
    monkeypatch.setitem(robustness.STRENGTHS, "LeNet", (0.1,))
    toys = replace(ROBUSTNESS, panels=(on_toys("E2", epochs=1),))
    assert "2 prunings" in toys.plan(Options())
    empty = toys.run(Work(tmp_path, only_finished=True), Options())
    assert {cell for line in empty.lines for cell in line.cells()[3:]} == {NOT_RUN, ""}
    report = toys.run(Work(tmp_path), Options())
    assert [line.quantity for line in report.lines] == ["no attack", "FGSM, 0.1000", "PGD, 0.1000"]
    assert len(report.measured) == 15
    for line in report.lines:
        assert all(len(values) == 1 for values in line.ours.values())
    steps: list[ProgressEvent] = []
    again = toys.run(Work(tmp_path, steps.append, only_finished=True), Options())
    assert (steps, again.lines) == ([], report.lines)
    monkeypatch.setattr("experiments.paper.command.ROBUSTNESS", toys)
    assert main(["reproduce", "robustness", "--finished", "--work", str(tmp_path)]) == 0
    assert "FGSM, 0.1000" in capsys.readouterr().out


def test_a_network_whose_weights_are_missing_does_not_keep_others_from_being_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENTRIM_ASSETS", raising=False)
    whole = study("comparison", ["greedy, rebuilt"], on_toys("E2"))
    both = replace(whole, panels=(STUDIES["comparison"].panels[1], *whole.panels))
    report = both.run(Work(tmp_path), Options())
    assert [one["row"] for one in report.measured] == ["E2"]
    (missing, _) = report.notes
    assert missing.startswith("ResNet-20, seed 0: not run (cifar10_resnet20.safetensors is looked")
    assert report.lines[0].cells()[3:5] == [NOT_RUN, ""]


def test_a_training_that_is_not_finished_is_not_handed_out(tmp_path: Path) -> None:
    trained = toy(Work(tmp_path))
    config = trained.fine_tuning(2, 0)

    def stop(step: ProgressEvent) -> None:
        raise KeyboardInterrupt

    for work in (Work(tmp_path, stop), Work(tmp_path, only_finished=True)):
        with pytest.raises((KeyboardInterrupt, NotFinishedError)):
            work.train("train", trained.model, trained.task(), config)
    done = Work(tmp_path).train("train", trained.model, trained.task(), config)
    again = Work(tmp_path, stop, only_finished=True).train(
        "train", trained.model, trained.task(), config
    )
    for one, other in zip(done.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.is_contiguous()


def test_the_comparison_prunes_the_smallest_rows_of_the_paper() -> None:
    rows = {row.name: row for panel in STUDIES["comparison"].panels for row in panel.rows}
    assert [*rows][-2:] == ["VGG-16, conv_all+fc", "ResNet18, conv_all"]
    assert list(rows["ResNet18, conv_all"].widths.values()) == [122, 92, 228, 94, 110, 23]


def test_only_the_requested_variants_are_run(tmp_path: Path) -> None:
    two = study("comparison", ["greedy, rebuilt", "random, rebuilt"], on_toys("E2"))
    report = two.run(Work(tmp_path), Options(variants=("greedy*",)))
    assert [one["variant"] for one in report.measured] == ["greedy, rebuilt"]
    assert [line.cells()[3] == "not run" for line in report.lines] == [False, True]
    with pytest.raises(BadSettingError, match=r"no variant 'gready\*': name some of greedy"):
        two.run(Work(tmp_path), Options(variants=("gready*",)))


def test_seconds_are_shown_next_to_drops(tmp_path: Path) -> None:
    images = study("images", ["25 images"], on_toys("E2"))
    report = images.run(Work(tmp_path), Options())
    drop, seconds = report.lines
    spent = report.measured[0]["pruned"]["seconds"]
    stages = [spent[stage] for stage in ("collect", "select", "reconstruct")]
    assert (drop.quantity, seconds.quantity) == ("drop, raw", "seconds")
    assert seconds.ours["E2"] == [pytest.approx(sum(stages))]


def test_label_free_rows_stand_next_to_what_others_published(tmp_path: Path) -> None:
    found, trained = STUDIES["labelfree"], toy(Work(tmp_path))
    assert set(found.published) == set(found.columns)
    rows = {row.name: row for panel in found.panels for row in panel.rows}
    budgets = [found.variants[0].options(trained, row)["budget"] for row in rows.values()]
    assert budgets == [entrim.Widths(0.5), entrim.Widths(0.25), entrim.Budget(params=0.36)]
    assert [variant.images for variant in found.variants] == [128, 500]
