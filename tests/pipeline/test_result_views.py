"""A result as text, page and charts; figures of a network that was changed afterwards."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import entrim
from entrim.errors import BadImagesError, BadSettingError
from entrim.results import STALE


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)),
    ).eval()


def images(count: int = 200) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def result() -> entrim.SparsifyResult:
    return entrim.sparsify(network(), images(), entrim.Budget(macs=0.6), callbacks=())


def test_every_repr_is_one_short_line(result: entrim.SparsifyResult) -> None:
    for value in (result, result.plan, result.record, entrim.trace(result.original, images(4))):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 200
    share = result.record.after.macs / result.record.before.macs
    assert f"{share:.0%} of the MACs" in repr(result)


def test_summary_contains_sizes_agreement_assessment_and_next_steps(
    result: entrim.SparsifyResult,
) -> None:
    text, record = str(result.summary()), result.record
    assert record.holdout is not None
    assert record.holdout.figures()["agreement"][0] in text
    for part in ("parameters", "MACs", "latency", "unseen images", "next steps:", "result.save("):
        assert part in text
    assert max(map(len, text.split("\n\n")[1].splitlines())) <= 80


def test_report_and_charts_are_files(result: entrim.SparsifyResult, tmp_path: Path) -> None:
    page = result.report(tmp_path / "r.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "The trade-off" in page
    for kind in ("network", "params", "macs", "bytes"):
        chart = result.plot(kind).save(tmp_path / f"{kind}.svg")
        assert ET.parse(chart).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    with pytest.raises(BadSettingError, match="name must be one of 'network', 'params'"):
        result.plot("pie")


def test_points_of_the_trade_off_contain_the_widths_of_all_groups(
    result: entrim.SparsifyResult,
) -> None:
    record = result.record
    for point in record.tradeoff:
        assert len(point.widths) == len(record.groups)
    (selected,) = (point for point in record.tradeoff if point.selected)
    assert selected.widths == tuple(len(group.kept) for group in record.groups)
    assert entrim.Record.from_json(record.to_json()).tradeoff == record.tradeoff


def test_point_of_the_trade_off_can_be_pruned_to(result: entrim.SparsifyResult) -> None:
    points = result.record.tradeoff
    for point in (points[len(points) // 4], points[len(points) // 2]):
        again = entrim.sparsify(network(), images(), entrim.Budget(macs=point.macs), callbacks=())
        assert again.record.after.macs == point.macs


def change(result: entrim.SparsifyResult) -> entrim.SparsifyResult:
    """Return a result whose network was trained further."""
    model = entrim.apply_plan(result.original, result.plan, images(4))
    with torch.no_grad():
        model[0].weight.mul_(1.5)  # pyright: ignore[reportIndexIssue, reportArgumentType, reportCallIssue]
    return entrim.SparsifyResult(
        model=model,
        plan=result.plan,
        record=result.record,
        original=result.original,
        fitting_images=result.fitting_images,
        holdout_images=result.holdout_images,
    )


def test_figures_of_another_network_are_not_saved(
    result: entrim.SparsifyResult, tmp_path: Path
) -> None:
    assert result.valid_record() == result.record
    scored = result.with_scores(lambda _: 1.0)
    scored.save(tmp_path / "same")
    known = entrim.SparsifyResult.load(result.original, tmp_path / "same").record
    assert known.score is not None
    assert known.holdout == result.record.holdout
    changed = change(scored)
    changed.save(tmp_path / "changed")
    stale = entrim.SparsifyResult.load(result.original, tmp_path / "changed").record
    assert (stale.score, stale.holdout, stale.error, stale.layers) == (None, None, None, ())
    assert stale.notes.count(STALE) == 1
    assert "not measured" in repr(changed)
    assert "unknown" in str(changed.summary())
    assert "    result = result.refresh(images)" in str(changed.summary())


def test_refresh_measures_the_changed_network(result: entrim.SparsifyResult) -> None:
    changed = change(result)
    again = changed.refresh().record
    before = result.record.holdout
    assert again.holdout is not None
    assert before is not None
    assert again.holdout.images == before.images
    assert again.holdout.error != before.error
    assert STALE not in again.notes
    unchanged = result.refresh().record.holdout
    assert unchanged is not None
    assert unchanged.agreement == before.agreement


def test_refresh_leaves_fitting_images_out(result: entrim.SparsifyResult) -> None:
    assert result.record.holdout is not None
    refreshed = result.refresh(images()).record.holdout
    assert refreshed is not None
    assert refreshed.images == result.record.holdout.images
    assert result.fitting_images is not None
    fitted = result.fitting_images.batch(slice(0, 20))
    with pytest.raises(BadImagesError, match="all images were used for pruning"):
        result.refresh(fitted)  # pyright: ignore[reportArgumentType]


def test_distilled_figures_are_those_of_the_trained_network(result: entrim.SparsifyResult) -> None:
    better = entrim.distill(result, distillation=entrim.Distillation(epochs=2), callbacks=())
    assert better.valid_record() == better.record


def test_lists_and_datasets_of_images_give_the_same_network(
    result: entrim.SparsifyResult,
) -> None:
    x, widths = images(), entrim.Widths(0.5)
    arrays, samples = [image.numpy() for image in x], [(image, 3) for image in x]
    plans = [
        entrim.sparsify(network(), given, widths, callbacks=()).plan
        for given in (x, list(x), arrays, samples, TensorDataset(x))
    ]
    assert all(plan.kept == plans[0].kept for plan in plans)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (images()[0], "this is a single image: pass a few hundred"),
        (images(1), "there is only one image: pass a few hundred"),
        ([images()[0], images()[0, :, :4]], "the images have shapes .* resize or crop"),
    ],
)
def test_wrong_images_are_refused(given: object, expected: str) -> None:
    with pytest.raises(BadImagesError, match=expected):
        entrim.sparsify(network(), given, entrim.Widths(0.5))  # pyright: ignore[reportArgumentType]


def test_networks_of_data_parallelism_are_unwrapped() -> None:
    wrapped = nn.DataParallel(network())
    small = entrim.sparsify(wrapped, images(), entrim.Widths(0.5), callbacks=())
    assert isinstance(small.model, nn.Sequential)


def test_networks_of_distributed_training_are_unwrapped(tmp_path: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    try:
        wrapped = nn.parallel.DistributedDataParallel(network())
        small = entrim.sparsify(wrapped, images(), entrim.Widths(0.5), callbacks=())
    finally:
        torch.distributed.destroy_process_group()
    assert isinstance(small.model, nn.Sequential)
