"""What can be a name on the Hugging Face hub, and whether the hub can be asked: its own retries take half a minute."""

import socket
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import HFValidationError, validate_repo_id

PREFIX = "hf:"
SECONDS = 2.0  # for a connection


def hub_name(given: str) -> str | None:
    """The name on the hub that is meant, by hf:name or by what can be one: runs/tiny is none where runs is a folder."""
    name, owner = given.removeprefix(PREFIX), given.rpartition("/")[0]
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return None if name == given and owner and Path(owner).is_dir() else name


def on_hub(name: str) -> str:
    """The name of a model, if the hub can be asked, else the folder of the copy that was downloaded before."""
    if reachable():
        return name
    try:
        return snapshot_download(name, local_files_only=True)
    except LocalEntryNotFoundError as error:
        what = f"there is no folder {name}, nothing of this name was downloaded before"
        raise ConnectionError(f"{what}, and {constants.ENDPOINT} cannot be reached: give a folder") from error


def check_data_set(name: str) -> None:
    """That the hub can be asked for a data set."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"the data set is {name!r}, expected a name on the Hugging Face hub: owner/name") from error
    if not reachable():
        raise ConnectionError(f"{constants.ENDPOINT} cannot be reached for the data set {name}")


def reachable() -> bool:
    """Whether the hub, or the proxy before it, takes a connection. In a thread: a name's lookup has no time limit."""
    if constants.HF_HUB_OFFLINE:
        return False
    answers: list[bool] = []
    attempt = Thread(target=lambda: answers.append(connects(*address())), daemon=True)
    attempt.start()
    attempt.join(SECONDS)
    return any(answers)


def address() -> tuple[str, int]:
    """Host and port of the configured hub, or of its proxy."""
    hub = urlsplit(constants.ENDPOINT)
    proxies = {} if proxy_bypass(hub.hostname or "") else getproxies()
    proxy = proxies.get(hub.scheme) or proxies.get("all")
    found = urlsplit(proxy if "//" in proxy else f"//{proxy}") if proxy else hub
    return found.hostname or "", found.port or (443 if found.scheme == "https" else 80)


def connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError:
        return False
    return True
