"""Images that a dataset on the Hub names by a path or an address: none is opened, and nobody is asked for one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_routes import Repo

from tests.hostile import damage

WAYS = ["/etc/hostname", "../secret.png", "file:///etc/hostname", "hf://datasets/a/b/x.png", "absent.png", "link.png"]
WAYS += [f"{kind}{damage.ADDRESS}" for kind in ("http", "https", "ftp", "s3", "zip")]
COMMANDS = {
    "show": "show {repo} --output {out}/sheet.html",
    "analyze": "analyze {repo} --output {out}",
    "train": "train --pairs {pairs} --split all --model {clip} --records {repo} --output {out} --use-cpu --dry-run",
}


def upload(hub, name: str, folder: Path) -> None:
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub.repos["dataset", name] = Repo(False, [(name.encode().hex().ljust(40, "0"), files)])


def nobody_was_asked(hub) -> bool:
    damage.LISTENER.setblocking(False)
    with pytest.raises(BlockingIOError):
        damage.LISTENER.accept()
    return not hub.count(".*(x|link|secret|absent).png")


@pytest.mark.parametrize("column", ["gt_image", "edit_image"])
def test_records_on_the_hub_open_no_file(column, hub, client, illustrated_folder, pairs_folder, clip_folder, tmp_path):
    folder, repo = tmp_path / "records", f"you/{column}"
    shutil.copytree(illustrated_folder, folder)
    shutil.copy(pairs_folder / "red_circle.png", folder / "link.png")
    damage.cells(column, [{"bytes": None, "path": path} for path in WAYS])(folder)
    upload(hub, repo, folder)
    for command in COMMANDS.values():
        places = {"repo": repo, "out": tmp_path / "out", "pairs": pairs_folder, "clip": clip_folder}
        code, _, error = client.main(*(word.format(**places) for word in command.split()))
        assert code == 2 and f"{repo}: {len(WAYS)} images of `{column}` cannot be used" in error
        assert not (tmp_path / "out").exists()
    assert nobody_was_asked(hub)


def test_pairs_on_the_hub_open_no_file(hub, client, pairs_folder, tmp_path):
    good = sorted(pairs_folder.glob("*.png"))
    cells = [{"bytes": path.read_bytes(), "path": path.name} for path in good]
    cells += [{"bytes": None, "path": path} for path in WAYS]
    rows = {"image": cells, "caption": [f"caption {k}" for k in range(len(cells))]}
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "data" / "train-0.parquet")
    shutil.copy(good[0], tmp_path / "link.png")
    feature = "- name: image\n    dtype: image\n  - name: caption\n    dtype: string\n"
    (tmp_path / "README.md").write_text(f"---\ndataset_info:\n  features:\n  {feature}---\n")
    upload(hub, "you/pairs", tmp_path)
    code = "from repair_hf.pairs.dataset import load_pairs\npairs = load_pairs('you/pairs', split='all')\n"
    count, problems = client.run(f"{code}result = [len(pairs.images), [[p.kind, p.count] for p in pairs.problems]]")
    assert count == len(good) and sum(number for _, number in problems) == len(WAYS), problems
    assert {kind for kind, _ in problems} <= {"outside_folder", "missing_image"} and nobody_was_asked(hub)
