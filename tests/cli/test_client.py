"""The address of a running server in its data folder."""

import json
from pathlib import Path

from turnwire.cli.client import announce, announced_server, withdraw
from turnwire.stores.sqlite.disk import FolderLock


def test_server_with_a_database_leaves_the_folder_to_the_server_that_uses_it(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    announce(tmp_path, "http://with-a-folder", "token")
    announce(tmp_path, "http://with-a-database", "token", has_database=True)
    assert announced_server(tmp_path).url == "http://with-a-folder"
    lock.release()
    announce(tmp_path, "http://with-a-database", "token", has_database=True)
    assert announced_server(tmp_path).url == "http://with-a-database"


def test_withdraw_removes_the_address_of_this_process_only(tmp_path: Path) -> None:
    announce(tmp_path, "http://other", "token")
    path = tmp_path / "server.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 1}))
    withdraw(tmp_path)
    assert announced_server(tmp_path).url == "http://other"
    announce(tmp_path, "http://own", "token")
    withdraw(tmp_path)
    assert not path.exists()
    withdraw(tmp_path)
