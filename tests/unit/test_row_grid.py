"""The grid of a batch: lines of cells, with words and crosses beside colours."""

from __future__ import annotations

from sleipnir.batches.records import BatchInfo
from sleipnir.batches.rollups import MOST_CELLS, RowGrid
from sleipnir_console.pages.batch_states import bar_of, batch_state_of, in_words
from sleipnir_console.pages.row_grid import drawing_of


def test_a_million_rows_are_ten_lines_of_124_cells() -> None:
    drawing = drawing_of(RowGrid(807, ("completed",) * 1_239 + ("failed",)), 999_900)
    assert (len(drawing.lines), drawing.columns, drawing.height) == (10, 124, 100)
    assert MOST_CELLS == 10 * 124
    assert [line.first for line in drawing.lines][:2] == [1, 124 * 807 + 1]
    last = drawing.lines[-1]
    assert last.label == ("Rows 900,613 to 999,900. Cells by their worst row: completed in 123, failed in 1")
    assert [fill for fill, _ in last.paths] == ["ok", "bad"]
    assert last.crosses.count("M") == 1
    assert not drawing.lines[0].crosses


def test_few_rows_have_wide_cells() -> None:
    drawing = drawing_of(RowGrid(1, ("active", "waiting", "cancelled")), 3)
    assert drawing.columns == 31
    [line] = drawing.lines
    assert line.label == "Rows 1 to 3. Cells by their worst row: cancelled in 1, under way in 1, not begun in 1"
    assert line.width == 120
    assert drawing_of(RowGrid(1, ()), 0).lines == []


def test_a_bar_adds_up_to_all_rows() -> None:
    info = BatchInfo("b", "agent", "running", 1, 2, total=200, waiting=100, active=10, completed=80, failed=10)
    parts = bar_of(info)
    assert [(part.state, part.left, part.width) for part in parts] == [
        ("completed", 0, 40), ("failed", 40, 5), ("cancelled", 45, 0), ("active", 45, 5), ("waiting", 50, 50),
    ]  # fmt: skip
    assert in_words(parts) == "80 completed, 10 failed, 10 under way, 100 not begun"
    assert batch_state_of(info).word == "Running"
