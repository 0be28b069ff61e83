"""Archives of records, and suites that ran in parts: one reader, one table."""

from __future__ import annotations

import json
import lzma
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.records import dense, record, score, typed, write_full_suite, write_run
from workflows import ROOT
from workflows.records.archive import ARCHIVE, LEFT_OUT, MOST
from workflows.report.cautions import gap_cautions
from workflows.report.figures.data import curve_frame
from workflows.report.results import read_results
from workflows.report.tables import make_frames


def frames(*places: Path) -> dict[str, str]:
    made = make_frames(read_results(*places))
    return {name: frame.to_csv(index=False) for name, frame in made.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``whole``; its ``archive``; ``first`` and ``second``, parts by seeds that share dense."""
    folder = tmp_path_factory.mktemp("places")
    whole = write_full_suite(folder / "whole")
    read_results(whole).write_archive(folder / "archive" / ARCHIVE)
    for part in ("first", "second"):
        shutil.copytree(whole, folder / part)
    for run in whole.rglob("s4[2-4]"):
        part = "first" if run.name == "s44" else "second"
        if run.parent.parent.name in ("hero", "random-skip"):
            shutil.rmtree(folder / part / run.relative_to(whole))
    return folder


@pytest.mark.parametrize("place", ["archive", f"archive/{ARCHIVE}"])
def test_an_archive_gives_the_frames_of_its_folder(place: str, made: Path) -> None:
    assert frames(made / place) == frames(made / "whole")


def test_an_archive_keeps_no_texts(made: Path) -> None:
    results = read_results(made / "archive")
    for file in results.files:
        items = file.with_suffix(".items.parquet")
        assert not items.is_file() or not {*pd.read_parquet(items)} & {*LEFT_OUT}


def test_the_same_records_make_the_same_bytes(made: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(made / "whole", tmp_path / "copy", copy_function=shutil.copyfile)
    for number, place in enumerate((copy, made / "archive")):
        read_results(place).write_archive(tmp_path / f"{number}.xz")
        content = (tmp_path / f"{number}.xz").read_bytes()
        assert content == (made / "archive" / ARCHIVE).read_bytes()


def test_parts_make_the_table_of_a_suite_that_ran_at_once(made: Path, tmp_path: Path) -> None:
    assert frames(made / "first", made / "second") == frames(made / "whole")
    read_results(made / "first").write_archive(tmp_path / ARCHIVE)
    assert frames(tmp_path, made / "second") == frames(made / "whole")


def test_of_a_run_that_two_places_have_the_last_counts(tmp_path: Path) -> None:
    for name, values in (("old", [1, 0, 0]), ("new", [1, 1, 0])):
        write_run(tmp_path / name, dense(score("a", [1, 1, 1])))
        write_run(tmp_path / name, record("cut", 0.25, score("a", values)))
    for places, k in ((("old", "new"), 2), (("new", "old"), 1)):
        results = read_results(*(tmp_path / place for place in places))
        assert [run.scores[0].k for run in results.records] == [3, k]


def config(**changes: Any) -> dict[str, Any]:
    demo = yaml.safe_load((ROOT / "workflows/suites/demo.yaml").read_text())
    return demo | {
        "rows": ["dense", "random-skip"], "seeds": [42, 43], "budgets": [0.25], "row_seeds": {},
        "params": {}, "noise_batch_sizes": [], "tasks": ["demo_facts"],
    } | changes  # fmt: skip


def part(folder: Path, written: list[int], suite: dict[str, Any], task: str = "demo_facts") -> Path:
    """Dense and random-skip; dense has the first seed that the suite names."""
    backbone = dense()["backbone"] | {"name": "demo"}
    labels = {"backbone": backbone, "suite": suite["suite"]}
    write_run(folder, dense(score(task, [1, 1, 0]), **labels, seed=suite["seeds"][0]))
    for seed in written:
        write_run(folder, record("random-skip", 0.25, score(task, [1, 0, 0]), **labels, seed=seed))
    (folder / "suite.json").write_text(json.dumps(suite))
    return folder


def test_an_archive_that_was_cut_is_named(made: Path, tmp_path: Path) -> None:
    whole = (made / "archive" / ARCHIVE).read_bytes()
    (tmp_path / ARCHIVE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is no whole archive of records: it is cut"):
        read_results(tmp_path)


def test_what_any_part_names_and_none_has_is_missing(tmp_path: Path) -> None:
    first = part(tmp_path / "first", [42], config())
    second = part(tmp_path / "second", [44], config(seeds=[44, 45]))
    results = read_results(first, second)
    assert gap_cautions(results) == ["No record yet: all of s43, all of s45."]
    assert results.settings["seeds"] == [44, 45]
    # Dense is not stochastic: its later run stands for the earlier, though of another seed.
    runs = [(run.row, run.seed) for run in results.records]
    assert runs == [("dense", 44), ("random-skip", 42), ("random-skip", 44)]
    results.write_archive(tmp_path / "published" / ARCHIVE)
    assert gap_cautions(read_results(tmp_path / "published")) == gap_cautions(results)
    third = part(tmp_path / "third", [43], config(seeds=[43]))
    again = read_results(tmp_path / "published", third)
    assert gap_cautions(again) == ["No record yet: all of s45."]


def test_places_that_make_no_table_are_refused(tmp_path: Path) -> None:
    mine = part(tmp_path / "mine", [42], config())
    other = part(tmp_path / "other", [42], config(suite="other"))
    with pytest.raises(ValueError, match=r"of one suite, not .*mine of 'demo', .*other of 'other'"):
        read_results(mine, other)
    tasks = part(tmp_path / "tasks", [43], config(tasks=["demo_boolean"]), "demo_boolean")
    with pytest.raises(ValueError, match="was not scored on task 'demo_"):
        read_results(mine, tasks)
    with pytest.raises(ValueError, match=r"gone holds no record\.json"):
        read_results(mine, tmp_path / "gone")
    unlisted = part(tmp_path / "unlisted", [42], config())
    (unlisted / "suite.json").write_text(json.dumps(config(seeds=[44])))
    with pytest.raises(ValueError, match="unlisted holds no record of a run that its suite lists"):
        read_results(unlisted)


@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_a_damaged_archive_is_refused_by_its_name(damage: str, made: Path, tmp_path: Path) -> None:
    content = bytearray((made / "archive" / ARCHIVE).read_bytes())
    content[len(content) // 2] ^= 1 if damage == "flipped" else 0
    half = content[: len(content) // 2]
    (tmp_path / ARCHIVE).write_bytes({"cut": half, "other": b"no archive"}.get(damage, content))
    with pytest.raises(ValueError, match=rf"{ARCHIVE} is no whole archive of records: "):
        read_results(tmp_path)


def test_files_with_holes_are_refused(tmp_path: Path) -> None:
    """A few bytes of archive stand for any number of zeros."""
    entry = tarfile.TarInfo("toy/record.json")
    entry.pax_headers = {"GNU.sparse.size": "9999", "GNU.sparse.map": "0,0,9999,0"}
    content = entry.tobuf(tarfile.PAX_FORMAT) + bytes(1024)
    (tmp_path / ARCHIVE).write_bytes(lzma.compress(content))
    with pytest.raises(ValueError, match=r"'toy/record.json' is no file of a results folder"):
        read_results(tmp_path)


def test_a_file_that_is_longer_than_the_archive_is_refused(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("toy/record.json")
    entry.size = MOST + 1
    content = entry.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    (tmp_path / ARCHIVE).write_bytes(lzma.compress(content))
    with pytest.raises(ValueError, match="is no whole archive of records"):
        read_results(tmp_path)


def test_curves_under_split_are_those_of_answer_tokens(tmp_path: Path) -> None:
    run = record("hero", 0.25, score("a", [1, 1, 0]), match="split")
    file = write_run(tmp_path, run)
    point = {"update": 0, "loss": 2.0, "skip_prompt": 0.1, "skip_answer": 0.2, "alpha_answer": 3.0}
    file.with_suffix(".decisions.json").write_text(json.dumps({"training": [point]}))
    (line,) = curve_frame([(typed(run)[0], file)]).to_dict("records")
    assert (line["skip"], line["alpha"]) == (20.0, 3.0)
