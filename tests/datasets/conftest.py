"""No test here may reach a network or the user's own cache; real files are used where they are present."""

from __future__ import annotations

import os
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fedspan.datasets import registry
from fedspan.datasets.entry import Entry, RemoteFile

REAL_DATA = Path(os.environ.get("FEDSPAN_DATA") or "no-data-folder")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """An empty cache, no data folder, and a network that ends at this machine."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDSPAN_CACHE", str(folder))
    monkeypatch.delenv("FEDSPAN_DATA", raising=False)
    real_open = urllib.request.urlopen

    def only_here(request, *args, **kwargs):
        address = urlsplit(request.full_url)
        assert address.scheme == "file" or address.hostname == "127.0.0.1", f"a test asked for {request.full_url}"
        return real_open(request, *args, **kwargs)

    monkeypatch.setattr(urllib.request, "urlopen", only_here)
    return folder


@pytest.fixture
def real_data(monkeypatch):
    """The folder of real files; a function that skips where a set is absent."""

    def need(name):
        if not (REAL_DATA / f"{name}.npz").is_file():
            pytest.skip(f"{name}.npz is not in {REAL_DATA}; set FEDSPAN_DATA to a folder that has it")
        monkeypatch.setenv("FEDSPAN_DATA", str(REAL_DATA))

    return need


@pytest.fixture
def data_folder(monkeypatch, tmp_path):
    """An empty folder that FEDSPAN_DATA names."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDSPAN_DATA", str(folder))
    return folder


@pytest.fixture
def register(monkeypatch):
    """Add a small set to the registry for one test."""

    def add(url, parse, *, checksum=None, mirrors=(), **fields):
        entry = Entry("toy", "the test", (RemoteFile(url, checksum, mirrors),), parse, **fields)
        monkeypatch.setitem(registry.ENTRIES, "toy", entry)
        return entry

    return add


class _Shelf(BaseHTTPRequestHandler):
    """Serves the bytes under each path; an entry (bytes, n) announces n bytes and breaks off."""

    def do_GET(self):
        self.server.asked.append(self.path)
        content = self.server.shelf.get(self.path)
        if content is None:
            self.send_error(404)
            return
        body, length = content if isinstance(content, tuple) else (content, len(content))
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    """A loopback web server: ``server.shelf`` is what it serves, ``server.asked`` what was asked for."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Shelf) as httpd:
        httpd.shelf, httpd.asked = {}, []
        httpd.address = f"http://127.0.0.1:{httpd.server_address[1]}"
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()
