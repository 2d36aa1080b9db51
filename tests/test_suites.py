"""The embedded layer tables, and the reader's errors."""

import csv
from importlib.resources import files

import pytest

from convalgos.tools.bench.suites import COLUMNS, read_lines, read_table, suites

HEADER = ",".join(COLUMNS)
GOOD = "net,one,2,8,64,56x40,128,3x1,2x1,1x0,1x1,2"


def test_every_row_of_the_embedded_table_is_a_layer():
    with (files("convalgos.tools.bench.suites") / "layers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    layers = [layer for found in suites().values() for layer in found]
    assert len(rows) == len(layers) == 108
    by_name = {(layer.suite, layer.name): layer.problem for layer in layers}
    assert len(by_name) == len(layers)
    for row in rows:
        problem = by_name[row["suite"], row["name"]]
        assert (problem.N, problem.C, problem.K, problem.groups) == tuple(
            int(row[c]) for c in ("N", "C", "K", "groups")
        )
        assert "x".join(map(str, problem.spatial)) == row["spatial"]
        assert "x".join(map(str, problem.kernel)) == row["kernel"]
        assert "x".join(map(str, problem.stride)) == row["stride"]
        assert "x".join(map(str, problem.dilation)) == row["dilation"]
        assert "x".join(str(low) for low, high in problem.padding if low == high) == row["pad"]


def test_suites_keep_the_order_of_the_table():
    assert list(suites())[:4] == ["alexnet", "vgg16", "googlenet", "resnet50"]
    assert str(suites()["resnet50"][0].problem) == "n8 c3 h224 w224 k64 r7 s7 p3 stride2"
    assert {layer.problem.ndim for found in suites().values() for layer in found} == {1, 2, 3}


def test_a_table_reads_its_columns_by_name(tmp_path):
    path = tmp_path / "mine.csv"
    columns = ["groups", *(c for c in COLUMNS if c != "groups")]
    path.write_text(
        "\ufeff" + ",".join(columns) + "\n2,net,one,2,8,64,56x40,128,3x1,2x1,1x0,1x1\n\n", "utf-8"
    )
    (layer,) = read_table(path)
    assert (layer.suite, layer.name, layer.count) == ("net", "one", 1)
    assert str(layer.problem) == "n8 c64 h56 w40 k128 r3 s1 p1,0 stride2,1 groups2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("8,64", "8,sixty"), "t.csv, line 3, column C: 'sixty' must be a whole number"),
        (("56x40", "56"), "t.csv, line 3, column spatial: '56' must be 2 whole numbers joined by x"),
        (("3x1", "3x"), "t.csv, line 3, column kernel: '3x' must be 2 whole numbers"),
        (("3x1", "0x1"), "t.csv, line 3, column kernel: w_shape=(128, 32, 0, 1) must have kernel sizes"),
        (("2x1,1x0", "0x1,1x0"), "t.csv, line 3, column stride: stride=0 must be"),
        (("1x0", "-1x0"), "t.csv, line 3, column pad: '-1x0'"),
        ((",2,8", ",4,8"), "t.csv, line 3, column ndim: 4 must be 1, 2 or 3"),
        (("1x1,2", "1x1,5"), "t.csv, line 3, column groups: 5 must be at least 1 and divide C=64"),
        (("128", "127"), "t.csv, line 3, column groups: groups=2 must divide the K=127"),
        (("56x40", "1x40"), "t.csv, line 3, column pad: padding=((1, 1), (0, 0)) must make x_shape"),
        (("net,", ","), "t.csv, line 3, column suite: must not be empty"),
        (("1x1,2", "1x1"), "t.csv, line 3: has 11 columns; the header has 12"),
    ],
)
def test_errors_name_file_line_and_column(change, message):
    bad = GOOD.replace(*change, 1)
    assert bad != GOOD
    if "1x40" in change:  # a kernel that spans more than the padded input
        bad = bad.replace("3x1", "5x1")
    with pytest.raises(ValueError) as error:
        read_lines("t.csv", [HEADER, GOOD, bad])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "t.csv, line 1: the header must be suite,name"),
        ([HEADER], "t.csv lists no layers"),
        ([HEADER.replace("groups", "group"), GOOD], "it is missing groups"),
        ([HEADER + ",count", GOOD + ",1"], "it has count too many"),
    ],
)
def test_a_wrong_table_is_refused(lines, message):
    with pytest.raises(ValueError) as error:
        read_lines("t.csv", lines)
    assert message in str(error.value)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "binary.csv"
    path.write_bytes(b"\xff\xfe\x00\x93")
    with pytest.raises(ValueError, match=r"binary.csv is not a text file in UTF-8"):
        read_table(path)
