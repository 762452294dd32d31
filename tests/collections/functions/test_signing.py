"""Signed functions: they run again only with the key, context and versions of their signature."""

from __future__ import annotations

import importlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from internals import SIGNED, other_versions, signed_again

from nosync_nb.collections.functions import signing
from nosync_nb.collections.functions.signing import (
    existing_user_key,
    key_path,
    load_signed_function,
    sign_function,
    user_key,
)
from nosync_nb.errors import StageError, TrustError
from nosync_nb.files.filesystem import Files

KEY = bytes(range(32))
CELL = "run the stage's cell"


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home" / "key"
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(path))
    return path


class Bomb:
    """Records that it was unpickled."""

    gone_off = False

    def __reduce__(self) -> Any:
        return setattr, (Bomb, "gone_off", True)


def sealed_bomb(key: bytes) -> bytes:
    """A signed pickle with a side effect."""
    import cloudpickle

    data = sign_function(len, key=key)
    size = int.from_bytes(data[SIGNED : SIGNED + 4], "big")
    return signed_again(data, key, data[SIGNED : SIGNED + 4 + size] + cloudpickle.dumps(Bomb()))


def test_signed_function_runs_in_another_process(key_file: Path) -> None:
    limit = 3
    data = sign_function(lambda x: x + limit, key=user_key())
    program = (
        "import sys\n"
        "from nosync_nb.collections.functions.signing import load_signed_function, user_key\n"
        "print(load_signed_function(sys.stdin.buffer.read(), key=user_key())(4))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], input=data, capture_output=True, check=True, timeout=60
    )
    assert run.stdout.strip() == b"7"


@pytest.mark.parametrize("at", range(0, 400, 3))
def test_changed_byte_prevents_loading(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(payload: bytes) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("cloudpickle.loads", load)
    data = bytearray(sign_function(lambda x: x + 1, key=KEY))
    data[at % len(data)] ^= 1 << (at % 8)
    with pytest.raises(TrustError) as caught:
        load_signed_function(bytes(data), key=KEY)
    assert caught.value.hint == CELL


@pytest.mark.parametrize("data", [b"", b"NSF1", b"{}", b"NSF1" + bytes(40), b"\x80\x04N." * 30])
def test_malformed_signature_is_refused(data: bytes) -> None:
    with pytest.raises(TrustError) as caught:
        load_signed_function(data, key=KEY)
    assert caught.value.hint == CELL


def test_function_signed_with_another_key_is_not_loaded() -> None:
    data = sealed_bomb(b"1" * 32)
    with pytest.raises(TrustError, match="signed with another key") as caught:
        load_signed_function(data, key=KEY)
    assert not Bomb.gone_off
    assert caught.value.hint == CELL
    with pytest.raises(AssertionError):
        load_signed_function(data, key=b"1" * 32)
    assert Bomb.gone_off


def test_id_of_key_does_not_forge_signature() -> None:
    forged = bytearray(sealed_bomb(b"1" * 32))
    forged[4:12] = bytes.fromhex(signing.key_id(KEY))
    with pytest.raises(TrustError, match="does not match its signature"):
        load_signed_function(bytes(forged), key=KEY)


def test_signed_function_is_bound_to_its_context() -> None:
    data = sign_function(len, key=KEY, context="stage slow")
    assert load_signed_function(data, key=KEY, context="stage slow")("ab") == 2
    for context in ("", "stage worst"):
        with pytest.raises(TrustError, match="does not match its signature"):
            load_signed_function(data, key=KEY, context=context)


@pytest.mark.parametrize("name", ["python", "cloudpickle"])
def test_other_version_of_python_or_cloudpickle_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sign_function(lambda x: x, key=KEY)
    here = other_versions(monkeypatch, **{name: "9.9"})
    with pytest.raises(TrustError, match=f"stored with {name} {here[name]}, this is 9.9") as caught:
        load_signed_function(data, key=KEY)
    assert str(caught.value.hint).startswith(CELL)


@pytest.mark.parametrize(("found", "says"), [("0.1", "this is 0.1"), (None, "not installed")])
def test_other_version_of_package_is_refused(
    found: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    data = sign_function(lambda x: np.log(x), key=KEY)
    assert load_signed_function(data, key=KEY)(1) == 0
    monkeypatch.setattr(signing, "code_version", lambda name: found)
    with pytest.raises(TrustError, match=f"numpy {np.__version__}, .*{says}"):
        load_signed_function(data, key=KEY)


def test_helpers_of_user_are_stored_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cloudpickle

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "sealed_helpers.py"
    file.write_text("STEP = 1\ndef go(x):\n    return x + STEP\n")
    helpers = importlib.import_module("sealed_helpers")
    try:
        whole = sign_function(lambda x: helpers.go(x), key=KEY)
        one = sign_function(helpers.go, key=KEY)
        assert cloudpickle.list_registry_pickle_by_value() == set()
        file.write_text("def go(x):\n    return -x\n")
        del sys.modules["sealed_helpers"]
        assert importlib.import_module("sealed_helpers").go(2) == -2
        assert [load_signed_function(data, key=KEY)(2) for data in (whole, one)] == [3, 3]
    finally:
        sys.modules.pop("sealed_helpers", None)


@pytest.mark.parametrize("captured", [sys.stdout, object(), iter([1])])
def test_function_without_identity_is_not_signed(captured: Any) -> None:
    with pytest.raises(StageError, match=r"function '<lambda>' cannot be stored: .*'captured'"):
        sign_function(lambda x: (captured, x), key=KEY)


class Elsewhere(Files):
    def exists(self, path: str) -> bool:
        return False


def test_key_is_created_once_and_private(key_file: Path) -> None:
    key = user_key()
    assert len(key) == 32
    assert key == user_key() == existing_user_key()
    assert existing_user_key(Elsewhere()) is None
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file.parent.stat().st_mode) == 0o700


def test_racing_processes_create_one_key(key_file: Path) -> None:
    program = (
        "import sys\nfrom nosync_nb.collections.functions.signing import user_key\n"
        "sys.stdin.read()\nprint(user_key().hex())"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()
    keys = set()
    for racer in racers:
        with racer:
            assert racer.stdout is not None
            keys.add(racer.stdout.read().strip())
    assert keys == {user_key().hex().encode()}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o601])
def test_key_readable_by_others_is_refused(key_file: Path, mode: int) -> None:
    user_key()
    key_file.chmod(mode)
    with pytest.raises(TrustError, match=f"has mode 0{mode:o}") as caught:
        user_key()
    assert str(caught.value.hint).startswith("chmod 600")


def test_linked_damaged_or_foreign_key_is_refused(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_key()
    real = key_file.rename(key_file.with_name("other"))
    key_file.symlink_to(real)
    with pytest.raises(TrustError, match="not a plain file"):
        user_key()
    key_file.unlink()
    Files().replace(str(key_file), b"secret?")
    with pytest.raises(TrustError, match="is damaged"):
        user_key()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(TrustError, match="belongs to user"):
        user_key()


def test_key_that_cannot_be_created_names_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "file" / "key"))
    with pytest.raises(TrustError, match="not available") as caught:
        user_key()
    assert "NOSYNC_KEY_FILE" in str(caught.value.hint)


def test_key_is_outside_every_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOSYNC_KEY_FILE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert key_path() == str(tmp_path / "nosync" / "key")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert key_path() == str(tmp_path / ".local" / "share" / "nosync" / "key")


@pytest.mark.parametrize("data", ["data", "./data", "..", "~/data", ""])
def test_relative_data_folder_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str
) -> None:
    """The key would be beside the work, and be copied with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOSYNC_KEY_FILE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", data)
    assert key_path() == str(tmp_path / "home" / ".local" / "share" / "nosync" / "key")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_key_in_folder_writable_by_others_is_refused(key_file: Path, mode: int) -> None:
    for there in (False, True):
        key_file.parent.mkdir(exist_ok=True)
        key_file.parent.chmod(mode)
        with pytest.raises(TrustError, match=f"mode {mode:04o}: other users can") as caught:
            user_key()
        assert "chmod 700" in (caught.value.hint or "")
        assert key_file.exists() == there
        if there:
            with pytest.raises(TrustError, match="other users can"):
                existing_user_key()
        key_file.parent.chmod(0o700)
        user_key()
    key_file.parent.chmod(0o1777)  # like /tmp: only owners change their files
    assert user_key()
    key_file.parent.chmod(0o755)
    assert user_key() == existing_user_key()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_key_in_folder_of_another_user_is_refused(key_file: Path) -> None:
    user_key()
    os.chown(key_file.parent, 12345, 12345)
    with pytest.raises(TrustError, match=r"folder .* belongs to user 12345"):
        user_key()


def test_key_folder_may_be_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "way").symlink_to(tmp_path / "real")
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "way" / "key"))
    assert user_key() == user_key()
    assert (tmp_path / "real" / "key").is_file()


def test_signed_function_contains_no_key_and_no_path(key_file: Path) -> None:
    data = sign_function(lambda x: x, key=user_key())
    assert user_key() not in data
    size = int.from_bytes(data[SIGNED : SIGNED + 4], "big")
    header = json.loads(data[SIGNED + 4 : SIGNED + 4 + size])
    assert set(header) == {"python", "cloudpickle", "packages", "fingerprint"}
