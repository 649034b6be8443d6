"""The folder of a vault: reading and writing notes, and no way out of it."""

import os
import threading
from pathlib import Path

import pytest

from turnwire.core.errors import ToolError
from turnwire.retrieval.notes import Vault, VaultLimits

SECRET = "what nobody may read"


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    """Return a vault with a note and a hidden folder, beside a secret with the name of a note."""
    root = tmp_path / "vault"
    (root / "Projects").mkdir(parents=True)
    (root / ".obsidian").mkdir()
    (root / "Projects" / "Plan.md").write_text("# Plan\n")
    (root / ".obsidian" / "hidden.md").write_text(SECRET)
    (tmp_path / "secret.md").write_text(SECRET)
    return Vault(root, VaultLimits(note_bytes=1_000, write_bytes=500))


@pytest.mark.parametrize(
    "path",
    [
        "../secret.md",
        "Projects/../../secret.md",
        "Projects/./Plan.md",
        "./Projects/Plan.md",
        "Projects//Plan.md",
        "{outside}/secret.md",
        "//server/share/secret.md",
        "~/secret.md",
        "C:\\secret.md",
        "C:secret.md",
        "\\\\server\\share\\secret.md",
        "..\\secret.md",
        "Projects\\..\\..\\secret.md",
        "Plan.md:stream.md",
        "Projects/Plan.md\0.md",
        "../secret\0.md",
        ".obsidian/hidden.md",
        "Projects/../.obsidian/hidden.md",
        ".trash/old.md",
        "Projects/.hidden.md",
        "\u200d.obsidian/hidden.md",
        "\u200c.obsidian/hidden.md",
        "\ufeff.obsidian/hidden.md",
        "Projects/\u202edm.nalP.md",
        "Projects/Plan.md\n",
        "\udcff.md",
        "CON.md",
        "Projects/nul.md",
        "Projects /Plan.md",
        "Projects./Plan.md",
        ".md",
        "",
        ".",
        "Projects",
        "Projects/Plan.txt",
        "Projects/Plan.md/",
        "x" * 300 + ".md",
        "x/" * 600 + "x.md",
    ],
)
def test_no_path_leads_out_of_the_vault(vault: Vault, path: str, tmp_path: Path) -> None:
    path = path.replace("{outside}", str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    for act in (vault.read, lambda path: vault.create(path, "gotcha"), lambda path: vault.append(path, "gotcha")):
        with pytest.raises(ToolError) as refused:
            act(path)
        assert str(tmp_path) not in str(refused.value).replace(repr(path), "")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "secret.md").read_text() == (vault.root / ".obsidian" / "hidden.md").read_text() == SECRET


@pytest.mark.parametrize("folder", ["..", "../", "/etc", "Projects/../..", ".obsidian", "C:\\", "Nothing", "linked"])
def test_folder_outside_the_vault_is_not_listed(vault: Vault, folder: str, tmp_path: Path) -> None:
    (vault.root / "linked").symlink_to(tmp_path)
    with pytest.raises(ToolError):
        vault.notes(folder)


def test_link_in_any_part_of_a_path_is_refused(vault: Vault, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text(SECRET)
    (vault.root / "folder").symlink_to(outside, target_is_directory=True)
    (vault.root / "note.md").symlink_to(outside / "secret.md")
    (vault.root / "new.md").symlink_to(outside / "made.md")
    (vault.root / "loop.md").symlink_to("loop.md")
    for path in ("folder/secret.md", "note.md", "new.md", "loop.md"):
        for act in (vault.read, lambda path: vault.create(path, "gotcha"), lambda path: vault.append(path, "gotcha")):
            with pytest.raises(ToolError):
                act(path)
    with pytest.raises(ToolError):
        vault.create("folder/made.md", "gotcha")
    assert [path.name for path in outside.iterdir()] == ["secret.md"]
    assert (outside / "secret.md").read_text() == SECRET
    assert vault.notes() == ["Projects/Plan.md"]


def test_folder_replaced_by_a_link_is_refused(vault: Vault, tmp_path: Path) -> None:
    assert vault.read("Projects/Plan.md") == b"# Plan\n"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "Plan.md").write_text(SECRET)
    (vault.root / "Projects").rename(tmp_path / "elsewhere")
    (vault.root / "Projects").symlink_to(outside)
    with pytest.raises(ToolError, match="goes through a link"):
        vault.read("Projects/Plan.md")


def test_vault_stays_on_its_opened_folder(vault: Vault, tmp_path: Path) -> None:
    vault.read("Projects/Plan.md")
    vault.root.rename(tmp_path / "moved")
    vault.root.symlink_to(tmp_path)
    assert vault.notes() == ["Projects/Plan.md"]
    with pytest.raises(ToolError):
        vault.read("secret.md")


def test_special_file_is_refused_without_blocking(vault: Vault) -> None:
    os.mkfifo(vault.root / "pipe.md")
    (vault.root / "folder.md").mkdir()
    for path in ("pipe.md", "folder.md"):
        with pytest.raises(ToolError):
            vault.read(path)
        with pytest.raises(ToolError):
            vault.append(path, "anything")


def test_note_is_created_once_with_its_folders(vault: Vault) -> None:
    vault.create("Journal/2026/Größe 👩‍🚀.md", "# Today\n\nFine.")
    assert vault.read("Journal/2026/Größe 👩‍🚀.md").decode() == "# Today\n\nFine.\n"
    with pytest.raises(ToolError, match="is there already"):
        vault.create("Journal/2026/Größe 👩‍🚀.md", "another")
    with pytest.raises(ToolError, match="none of"):
        vault.create("What?.md", "no phone could have it")
    assert vault.notes("Journal/") == ["Journal/2026/Größe 👩‍🚀.md"]
    assert vault.notes() == ["Journal/2026/Größe 👩‍🚀.md", "Projects/Plan.md"]


def test_appended_text_begins_on_its_own_line(vault: Vault) -> None:
    (vault.root / "What?.md").write_text("no line break")
    vault.append("What?.md", "one")
    vault.append("What?.md", "two\n")
    assert vault.read("What?.md") == b"no line break\none\ntwo\n"
    with pytest.raises(ToolError, match="there is no 'Nothing"):
        vault.append("Nothing.md", "one")
    assert not (vault.root / "Nothing.md").exists()


def test_note_and_write_sizes_are_limited(vault: Vault) -> None:
    (vault.root / "long.md").write_text("x" * 1_001)
    (vault.root / "full.md").write_text("x" * 900)
    with pytest.raises(ToolError, match="over 1,000 bytes"):
        vault.read("long.md")
    with pytest.raises(ToolError, match="over 500 bytes at once"):
        vault.create("new.md", "x" * 500)
    with pytest.raises(ToolError, match="would be, over 1,000 bytes"):
        vault.append("full.md", "x" * 200)
    assert not (vault.root / "new.md").exists()
    assert (vault.root / "full.md").stat().st_size == 900


def test_failed_write_is_rolled_back(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    whole = os.write

    def full(descriptor: int, content: memoryview) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(whole(descriptor, content[:3]))
        return 3

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ToolError, match="No space left"):
        vault.create("new.md", "a long text")
    written.clear()
    with pytest.raises(ToolError, match="No space left"):
        vault.append("Projects/Plan.md", "a long text")
    assert vault.notes() == ["Projects/Plan.md"]
    assert vault.read("Projects/Plan.md") == b"# Plan\n"


def test_parallel_appends_lose_nothing(vault: Vault) -> None:
    made: list[int] = []

    def write(number: int) -> None:
        vault.append("Projects/Plan.md", f"- line {number}")
        try:
            vault.create("new.md", str(number))
            made.append(number)
        except ToolError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = vault.read("Projects/Plan.md").decode().splitlines()
    assert sorted(lines[1:]) == sorted(f"- line {number}" for number in range(20))
    assert vault.read("new.md").decode() == f"{made[0]}\n"
    assert len(made) == 1


def test_vault_that_is_closed_during_a_read_is_still_read(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    duplicate = os.dup
    closing = threading.Thread(target=vault.close)

    def close_and_duplicate(descriptor: int) -> int:
        closing.start()
        closing.join(0.1)  # It can end only after the duplicate is made.
        return duplicate(descriptor)

    monkeypatch.setattr(os, "dup", close_and_duplicate)
    assert vault.read("Projects/Plan.md") == b"# Plan\n"
    closing.join()


def test_missing_vault_is_reported(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "nowhere")
    with pytest.raises(ToolError, match="the vault cannot be opened: No such file"):
        vault.notes()
