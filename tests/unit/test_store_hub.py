"""Models from the hub, against a small stand-in for it on the loopback device."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from puna.errors import StoreError
from puna.settings import Settings
from puna.store import resolve
from puna.store.hub import HubModel, choose, groups
from puna.store.progress import Silent

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Repositories as {"owner/repo": {file: bytes}}.

    refused: repository -> (status, error code) as the hub gives them.
    wrong: files whose bytes are sent damaged.
    broken: files of which the first answer breaks off half way.
    asked: (method, path) of every request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.refused: dict[str, tuple[int, str]] = {}
        self.wrong: set[str] = set()
        self.broken: set[str] = set()
        self.asked: list[tuple[str, str]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    """The two routes that are asked for: /api/models/<repo> and /<repo>/resolve/<revision>/<file>."""

    server: Hub

    def log_message(self, *args: Any) -> None: ...

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.partition("?")[0].strip("/")
        self.server.asked.append((self.command, path))
        api = path.startswith("api/models/")
        repo, _, file = path.removeprefix("api/models/").partition("/resolve/" if not api else "/revision/")
        if repo in self.server.refused or repo not in self.server.repos:
            status, code = self.server.refused.get(repo, (401, "RepoNotFound"))
            self.send(status, {"X-Error-Code": code, "X-Error-Message": "as told"}, b"")
        elif api:
            self.send(200, {"Content-Type": "application/json"}, json.dumps(self.listing(repo)).encode())
        else:
            self.file(self.server.repos[repo], file.partition("/")[2], body)

    def listing(self, repo: str) -> dict[str, Any]:
        files = self.server.repos[repo].items()
        return {
            "id": repo,
            "sha": COMMIT,
            "siblings": [
                {
                    "rfilename": name,
                    "size": len(data),
                    "blobId": "b",
                    "lfs": {"sha256": sha256(data), "size": len(data), "pointerSize": 1},
                }
                for name, data in files
            ],
        }

    def file(self, files: dict[str, bytes], name: str, body: bool) -> None:
        data = files[name]
        sent = bytes(len(data)) if name in self.server.wrong else data
        headers = {"ETag": f'"{sha256(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cut = len(data) // 2 if body and name in self.server.broken else None
        self.server.broken -= {name} if body else set()
        self.send(206 if start else 200, headers, sent[start:], body, cut)

    def send(
        self, status: int, headers: dict[str, str], data: bytes, body: bool = True, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data[:cut])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def started() -> Hub:
    """A hub that can be reached; where it cannot, the test is skipped."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(Hub())
            socket.create_connection(("127.0.0.1", server.server_port), timeout=5).close()
        except OSError as error:
            pytest.skip(f"the loopback device does not work: {error}")
        stack.pop_all()
    return server


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a repository of several quantisations, and a cache folder of its own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for name in ("NO_PROXY", "no_proxy"):  # a proxy could not reach it
        monkeypatch.setenv(name, "127.0.0.1")
    server = started()
    server.repos["owner/repo-GGUF"] = {
        "README.md": b"text",
        "M-Q2_K.gguf": b"two",
        "M-Q4_K_M.gguf": b"four" * 50_000,
        "M-Q8_0-00001-of-00002.gguf": b"eight",
        "M-Q8_0-00002-of-00002.gguf": b"eighteight",
        "BF16/M-BF16.gguf": b"sixteen",
        "mmproj-Q4_0.gguf": b"pictures",
    }
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(hub: Hub, name: str, models: Path) -> Path:
    return HubModel.parse(name).fetch(models, Silent(), endpoint=hub.endpoint)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("hf:owner/repo-GGUF", ["M-Q4_K_M.gguf"]),
        ("hf:owner/repo-GGUF:q2_k", ["M-Q2_K.gguf"]),
        ("hf:owner/repo-GGUF:Q8_0", ["M-Q8_0-00001-of-00002.gguf", "M-Q8_0-00002-of-00002.gguf"]),
        ("hf:owner/repo-GGUF/BF16/M-BF16.gguf", ["BF16/M-BF16.gguf"]),
        (
            "hf:owner/repo-GGUF/M-Q8_0-00002-of-00002.gguf",
            ["M-Q8_0-00001-of-00002.gguf", "M-Q8_0-00002-of-00002.gguf"],
        ),
    ],
)
def test_fetch(hub: Hub, name: str, files: list[str], tmp_path: Path) -> None:
    """The model's files, and no others, lie below hf/owner/repo with the hub's bytes; then no network is needed."""
    folder = tmp_path / "models" / "hf" / "owner" / "repo-GGUF"
    path = fetch(hub, name, tmp_path / "models")
    assert path == folder / files[0]
    found = {file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf")}
    assert found == set(files)
    for file in files:
        assert (folder / file).read_bytes() == hub.repos["owner/repo-GGUF"][file]
    asked = len(hub.asked)
    assert resolve(name, Settings(tmp_path / "models"), fetch=False) == path
    assert len(hub.asked) == asked


def test_progress_adds_up(hub: Hub, tmp_path: Path) -> None:
    """The stages of a fetch are the download and the check, each with all its bytes and an end."""
    told: list[tuple[str, int]] = []

    class Recorder:
        def start(self, label: str, total_bytes: int) -> None:
            told.append((label, total_bytes))

        def advance(self, count: int) -> None:
            told[-1] = (told[-1][0], told[-1][1] - count)

        def done(self) -> None:
            told.append(("done", 0))

    HubModel.parse("hf:owner/repo-GGUF").fetch(tmp_path, Recorder(), endpoint=hub.endpoint)
    assert told == [("hf:owner/repo-GGUF", 0), ("done", 0), ("checking M-Q4_K_M.gguf", 0), ("done", 0)]


def test_fetching_again_downloads_nothing(hub: Hub, tmp_path: Path) -> None:
    """A file that is current is not sent again; one that changed on the hub is."""
    fetch(hub, "hf:owner/repo-GGUF", tmp_path)
    hub.asked.clear()
    fetch(hub, "hf:owner/repo-GGUF", tmp_path)
    assert not [path for method, path in hub.asked if method == "GET" and path.endswith(".gguf")]


def test_a_broken_connection_is_tried_again(hub: Hub, tmp_path: Path) -> None:
    """When the connection breaks half way the download goes on, and the file is whole."""
    hub.broken = {"M-Q4_K_M.gguf"}
    path = fetch(hub, "hf:owner/repo-GGUF", tmp_path)
    assert path.read_bytes() == b"four" * 50_000
    assert [method for method, path in hub.asked if path.endswith(".gguf")].count("GET") == 2


def test_a_damaged_download_is_removed(hub: Hub, tmp_path: Path) -> None:
    """Bytes that do not have the digest the hub gave are an error, and the file does not stay."""
    hub.wrong = {"M-Q4_K_M.gguf"}
    with pytest.raises(
        StoreError, match=r"hf:owner/repo-GGUF: M-Q4_K_M\.gguf arrived damaged; fetch it again"
    ):
        fetch(hub, "hf:owner/repo-GGUF", tmp_path)
    assert HubModel("owner", "repo-GGUF").find(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:owner/repo-GGUF:Q5_K", r"the repository has no Q5_K; use one of BF16, Q2_K, Q4_K_M, Q8_0$"),
        ("hf:owner/repo-GGUF/x.gguf", r"the repository has no x\.gguf; use one of BF16/M-BF16, M-Q2_K, "),
        ("hf:owner/text", r"the repository has no complete GGUF model; choose a repository with"),
        ("hf:owner/half:Q8_0", r"the repository has no complete GGUF model"),
        ("hf:owner/evil", r"lists '\.\./\.\./M-Q4_0\.gguf', which is no safe file name"),
        ("hf:owner/none", r"the hub has no such repository \(.*\); check the name; for a private"),
        (
            "hf:owner/gated",
            r"access on request only \(.*\); ask for it at https://huggingface\.co/owner/gated, then",
        ),
        ("hf:owner/failing", r"the hub answered with an error \(.*403"),
    ],
)
def test_errors_are_one_line(hub: Hub, name: str, message: str, tmp_path: Path) -> None:
    """What goes wrong is told in one line that starts with the name."""
    hub.repos["owner/text"] = {"README.md": b""}
    hub.repos["owner/half"] = {"M-Q8_0-00001-of-00002.gguf": b""}
    hub.repos["owner/evil"] = {"../../M-Q4_0.gguf": b""}
    hub.refused = {"owner/gated": (403, "GatedRepo"), "owner/failing": (403, "")}
    with pytest.raises(StoreError, match=message) as caught:
        fetch(hub, name, tmp_path / "models")
    assert str(caught.value).startswith(f"{name}: ")
    assert len(str(caught.value).splitlines()) == 1


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that cannot be reached, and one that may not be asked, are told apart."""
    model = HubModel("owner", "repo")
    with pytest.raises(StoreError, match=r"hf:owner/repo: the download failed \(.*\); check the network"):
        model.fetch(tmp_path, Silent(), endpoint="http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(StoreError, match="hf:owner/repo: HF_HUB_OFFLINE is set"):
        model.fetch(tmp_path, Silent(), endpoint="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("files", "quant", "expected"),
    [
        (["b-Q8_0.gguf", "a-Q4_0.gguf", "c-Q4_K_M.gguf"], None, "c-Q4_K_M.gguf"),
        (["b-Q8_0.gguf", "a-Q4_0.gguf"], None, "a-Q4_0.gguf"),
        (["b-Q8_0.gguf", "a-IQ1_S.gguf"], None, "b-Q8_0.gguf"),
        (["z-IQ1_S.gguf", "a-Q5_1.gguf", "mmproj-Q4_K_M.gguf"], None, "a-Q5_1.gguf"),
        (["m.Q4_K_M.gguf"], "q4_k_m", "m.Q4_K_M.gguf"),
        (["Q4_K/m.gguf", "Q4_K_M/m.gguf"], "Q4_K", "Q4_K/m.gguf"),
        (["m-IQ4_XS.gguf"], "Q4_XS", None),
        (["m-Q4_K_M.gguf"], "Q4_K", None),
        (["m-UD-Q4_K_XL.gguf"], "Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        (["readme.md"], None, None),
    ],
)
def test_choice_of_a_file(files: list[str], quant: str | None, expected: str | None) -> None:
    """Q4_K_M, then Q4_0, then Q8_0, then the first; a quantisation is matched whole and in any case."""
    assert next(iter(choose(files, quant, None)), None) == expected


def test_groups_leave_out_incomplete_sets() -> None:
    """A split model counts when all its parts are there, in order."""
    parts = [f"d/m-Q8_0-{n:05}-of-00003.gguf" for n in (3, 1, 2)]
    assert groups(parts) == {"d/m-Q8_0": sorted(parts)}
    assert groups(parts[:2]) == {}
    assert groups(["m-00001-of-99999.gguf"]) == {}
