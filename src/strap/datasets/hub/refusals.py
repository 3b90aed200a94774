"""The error messages for requests to the hub that fail."""

from __future__ import annotations

import re

from strap.datasets.hub.names import DEFAULT_REVISION, HubName
from strap.errors import StrapError

NO_CONNECTION = {"ConnectError", "ConnectTimeout", "ProxyError", "ConnectionError"}
"""names of the connection errors of httpx, httpx2 and requests, one of which the client uses"""
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def name_error(name: HubName, error: BaseException) -> StrapError:
    """Return the error for a name, of a repository or of a path, that cannot be opened."""
    from huggingface_hub import constants, errors

    error = _cause(error)
    page = f"{constants.ENDPOINT}/datasets/{name.repo}"
    nothing_here = f"no such dataset: '{name}' is not a file or folder here"
    if is_unreachable(error):
        return StrapError(
            f"{nothing_here}, it is not in the cache of the hub, and the hub cannot be reached "
            f"({describe_failure(error)}): check the path, or on a machine with a network "
            f"run `{_command(name)}`, copy that folder here and pass its path"
        )
    if isinstance(error, errors.GatedRepoError):
        return StrapError(f"'{name}' is gated on the hub: ask for access at {page}, then {LOG_IN}")
    if isinstance(error, errors.RepositoryNotFoundError):
        return StrapError(
            f"{nothing_here}, and {constants.ENDPOINT} has no dataset of that name that you may "
            f"read: check the path or the name; for a private one {LOG_IN}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return StrapError(
            f"the hub's dataset '{name.repo}' has no revision '{name.revision}': name a branch, a "
            f"tag or a commit of it, listed at {page}/tree/{DEFAULT_REVISION}"
        )
    if isinstance(error, errors.EntryNotFoundError):
        return StrapError(
            f"the hub's dataset '{name}' has no meta/info.json: only LeRobot datasets are fetched "
            f"by name; fetch this one whole with `{_command(name)}` and pass that folder's path"
        )
    return StrapError(
        f"cannot fetch '{name}' from the hub ({describe_failure(error)}): try again later"
    )


def files_error(name: HubName, lacking: str, cache: str, error: BaseException) -> StrapError:
    """Return the error for files of a commit that cannot be fetched.

    Args:
        name: the repository and the commit.
        lacking: the missing files.
        cache: the folder of the hub's cache.
        error: the client's error.
    """
    from huggingface_hub import errors

    error = _cause(error)
    if is_unreachable(error):
        folder = f"datasets--{name.repo.replace('/', '--')}"
        return StrapError(
            f"'{name.repo}' is only partly here, without {lacking}, and the hub cannot be reached "
            f"({describe_failure(error)}): on a machine with a network run `hf download "
            f"{name.repo} --repo-type dataset --revision {name.revision}`, and copy the folder "
            f"{folder} of its cache into '{cache}'"
        )
    if isinstance(error, errors.GatedRepoError):
        return name_error(name, error)
    what = f"cannot fetch {lacking} of '{name}' ({describe_failure(error)})"
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        return StrapError(f"{what}: it was removed, or is now private; {LOG_IN}")
    if isinstance(error, OSError) and error.errno is not None:
        return StrapError(f"{what}: make '{cache}' writable, or choose another folder with HF_HOME")
    return StrapError(f"{what}: try again later; files already fetched are kept")


def is_unreachable(error: BaseException) -> bool:
    """Return whether the hub could not be reached, as opposed to refusing the request."""
    from huggingface_hub import errors

    cause = _cause(error)
    if isinstance(cause, errors.HfHubHTTPError):
        return False
    kinds = {kind.__name__ for kind in type(cause).__mro__}
    silent = (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError)
    return bool(kinds & NO_CONNECTION) or isinstance(cause, silent)


def _cause(error: BaseException) -> BaseException:
    """Return the cause of an error that only says that a file is not in the cache."""
    from huggingface_hub import errors

    while isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _command(name: HubName) -> str:
    """Return the command that fetches a repository into a folder."""
    revision = "" if name.revision == DEFAULT_REVISION else f" --revision {name.revision}"
    folder = name.repo.partition("/")[2]
    return f"hf download {name.repo} --repo-type dataset{revision} --local-dir {folder}"


def describe_failure(error: BaseException) -> str:
    """Return a short description of an error without URLs, which can contain signatures."""
    from huggingface_hub import errors

    cause = _cause(error)
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    response = getattr(cause, "response", None)
    if status := getattr(response, "status_code", None):
        return f"HTTP status {status}"
    text = re.sub(r"\S*://\S*", "…", " ".join(str(cause).split()))[:200]
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__
