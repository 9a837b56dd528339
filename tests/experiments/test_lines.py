"""The lines of a table: digits, seeds, differences."""

from dataclasses import replace

from experiments.paper.published import Cell
from experiments.paper.report import NOT_RUN, Line
from experiments.paper.rows import rows_of


def test_seeds_are_shown_as_mean_and_deviation() -> None:
    line = Line(row="E1", quantity="accuracy", paper=Cell("98.49%"), ours={"a": [98.0, 99.0]})
    assert line.cells() == ["E1", "accuracy", "98.49%", "98.50 ± 0.71", "+0.01"]


def test_seeds_are_shown_one_by_one_and_missing_ones_counted() -> None:
    widths = Line(row="E1", quantity="kept", ours={"a": ["9", "8", "8"], "b": ["8", "8"]})
    assert widths.cells()[3:] == ["9; 8; 8", "", "8", ""]
    drops = Line(row="E1", quantity="drop", ours={"a": [1.0, 3.0], "b": [2.0], "c": []})
    assert drops.cells()[3::2] == ["2.00 ± 1.41", "2.00 (1 of 2 seeds)", NOT_RUN]
    of_three = replace(drops, ours={"a": [1.0], "b": [2.0]}, seeds=3)
    assert of_three.cells()[3::2] == ["1.00 (1 of 3 seeds)", "2.00 (1 of 3 seeds)"]


def test_a_difference_has_the_digits_of_the_paper_and_heeds_its_slips() -> None:
    ours = {"a": [14_350_281.0]}
    printed = Line(row="x", quantity="p", paper=Cell("1.47e7"), ours=ours, decimals=0)
    assert printed.cells()[2:] == ["1.47e7", "14,350,281", "-300,000"]
    mended = replace(printed, arithmetic=Cell("1.44e7"))
    assert mended.cells()[2:] == ["1.47e7, must be 1.44e7", "14,350,281", "+0"]
    rows = {row.name: row for row in (*rows_of("vgg16-groups"), *rows_of("vgg16-full"))}
    assert rows["conv5-7"].arithmetic["parameters"].printed == "1.44e7"
    assert rows["conv_all+fc"].arithmetic["size"].printed == "6.6MB"
