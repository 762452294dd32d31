"""Export and import of keys: the key stays secret, and none is lost."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import nosync_nb
from nosync.__main__ import main
from nosync_nb.collections.functions import signing
from nosync_nb.store.catalog import signature


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "home" / "key"))
    return tmp_path / "home"


def use_key_file(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Acts as another user with their own key."""
    patch.setenv("NOSYNC_KEY_FILE", str(path))


@pytest.mark.fault(43)
def test_imported_key_lets_log_continue_elsewhere(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        session.stage("big", session.input("numbers", "x int").filter("x > 1"))
    assert main(["key", "export", str(tmp_path / "carried")]) == 0
    assert stat.S_IMODE((tmp_path / "carried").stat().st_mode) == 0o600
    use_key_file(monkeypatch, tmp_path / "there" / "key")
    with nosync_nb.open(tmp_path / "log") as session:
        assert "key import" in session.stale["big"]
    assert main(["key", "import", str(tmp_path / "carried")]) == 0
    with nosync_nb.open(tmp_path / "log") as session:
        assert session.stale == {}
    assert stat.S_IMODE((tmp_path / "there" / "key").stat().st_mode) == 0o600


def test_export_and_import_overwrite_no_file_or_key(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = signing.user_key()
    carried = tmp_path / "carried"
    signature.export_user_key(str(carried))
    assert main(["key", "export", str(carried)]) == 1
    assert "exists already" in capsys.readouterr().err
    use_key_file(monkeypatch, tmp_path / "there" / "key")
    second = signing.user_key()
    assert main(["key", "import", str(carried)]) == 1
    assert "--replace" in capsys.readouterr().err
    assert signing.user_key() == second
    assert main(["key", "import", str(carried), "--replace"]) == 0
    assert signing.user_key() == first
    kept = tmp_path / "there" / f"key.{signing.key_id(second)}"
    assert kept.read_bytes() == signing.key_text(second)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert str(kept) in capsys.readouterr().out
    assert signature.import_user_key(str(carried)) == (signing.key_id(first), "")


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [("secret?", 0o600, "is damaged"), ("", 0o600, "is damaged"), ("ab" * 32, 0o644, "mode 0644")],
)
def test_import_refuses_invalid_or_readable_key(
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    mode: int,
    says: str,
) -> None:
    (tmp_path / "carried").write_text(content)
    (tmp_path / "carried").chmod(mode)
    assert main(["key", "import", str(tmp_path / "carried")]) == 1
    assert says in capsys.readouterr().err
    assert not (home / "key").exists()
    assert main(["key", "import", str(tmp_path / "nowhere")]) == 1
    assert main(["key", "export", str(tmp_path / "nothing")]) == 1
    assert "there is no key" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["r", "w"])
def test_trust_report_names_signer_and_stages(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "x int")
        session.stage("big", numbers.filter("x > 1 and '\u202e\x1b' <> '<b>'"))
        assert "signed with your key" in str(session.info.trust())
    mine = signing.key_id(signing.user_key())
    use_key_file(monkeypatch, tmp_path / "there" / "key")
    with nosync_nb.open(tmp_path / "log", mode=mode) as session:  # type: ignore[arg-type]
        report = session.info.trust()
    assert mine in report.whose
    assert report.yours == "none"
    (big,) = report.stages
    assert (big.name, big.whose) == ("big", f"of key {mine}")
    assert big.text.startswith("filter(numbers, predicate=")
    assert "x > 1" in big.text
    assert str(report).isprintable() or str(report).replace("\n", "").isprintable()
    assert not (tmp_path / "there").exists()


def test_trust_report_of_reader_follows_new_definitions(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing was defined when the reader opened the log."""
    log = tmp_path / "log"
    with nosync_nb.open(log) as session, nosync_nb.open(log, mode="r") as reader:
        session.stage("big", session.input("numbers", "x int").filter("x > 1"))
        mine = signing.key_id(signing.user_key())
        assert reader.refresh() == 0
        assert reader.info.trust().whose == "signed with your key"
        use_key_file(monkeypatch, tmp_path / "there" / "key")
        report = reader.info.trust()
    assert report.whose == f"claims to be signed with key {mine}; not trusted"
    assert [(each.name, each.whose) for each in report.stages] == [("big", f"of key {mine}")]
