"""`repair-hf push` from the command line, as far as it needs no Hub; tests/hub has the rest."""

from repair_hf.cli.main import main


def test_a_dry_run_of_records_shows_files_bytes_and_card(records_folder, capsys):
    assert main(["push", "records", str(records_folder), "--repo", "me/x-repair", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    file = next(records_folder.glob("records/*.parquet"))
    assert f"{file.stat().st_size / 1e3:,.1f} kB   records/{file.name}" in printed
    assert "\n# x-repair\n" in printed and "config_name: records" in printed and "config_name: dropped" not in printed
    assert "samples/1-edit.png" in printed and "to me/x-repair; nothing was sent." in printed


def test_a_dry_run_of_a_model_shows_files_bytes_and_card(clip_folder, capsys):
    assert main(["push", "model", str(clip_folder), "--repo", "me/clip", "--license", "mit", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "   model.safetensors" in printed and "\nlicense: mit\n" in printed
