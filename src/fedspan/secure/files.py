"""Files that are written once, and whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_once(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write beside the place and link there: a kill leaves no half, and of two at once the first one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(part, path)
    except FileExistsError:
        pass  # another was faster, and its content is the one
    finally:
        part.unlink()
