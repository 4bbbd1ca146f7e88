"""Pushes of records and models to the Hugging Face Hub.

A push is one commit, so readers see the old revision until it is complete. After a failure the same command resumes:
uploaded files are not sent again. Without changes there is no commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import httpx
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.constants import ENDPOINT  # seen with huggingface_hub 1.33
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id  # seen with huggingface_hub 1.33

from repair_hf.hub.files import Parcel, pack_model, pack_records
from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import without_secrets
from repair_hf.runtime.run_folder import RunStopped

logger = logging.getLogger(__name__)

PASSING = (429, 500, 502, 503, 504)  # statuses of temporary failures
WAITS = (1.0, 4.0)  # seconds between attempts
AGAIN = "Nothing changed on the Hub. Rerun to resume."
LOGIN = "Run `hf auth login`, or set HF_TOKEN, with a token that may write there; HF_TOKEN overrides the login."

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Pushed:
    """Where a push went; `is_new` is False if the repository already held the same files."""

    repo: str
    url: str
    revision: str
    is_new: bool


def push_records(
    folder: str | Path,
    repo: str,
    *,
    private: bool = False,
    tag: str | None = None,
    embed_source_images: bool = True,
    license: str | None = None,
    judgements: Sequence[str | Path] = (),
) -> Pushed:
    """Push a folder of records, with its card.

    Args:
        folder: What `repair-hf synthesize` or `save_records` wrote.
        repo: Id of the dataset; created if missing.
        private: Create it as private; an existing public repository is an error.
        tag: Name of this revision, such as `round-1`, for `load_records(…, revision=…)`.
        embed_source_images: False leaves out the images of queries, ground truths and false positives.
        license: License identifier of the Hub, such as `cc-by-4.0`.
        judgements: Files that pages of `repair-hf annotate` saved; the card says how people judged.

    Raises:
        UserError: If the folder holds no records, or the Hub rejects the token, the id or the tag.
        RunStopped: If the Hub cannot be reached or fails; the same call resumes.
    """
    with TemporaryDirectory(prefix="repair-hf-") as scratch:
        parcel = pack_records(
            folder,
            repo,
            scratch=scratch,
            embed_source_images=embed_source_images,
            license=license,
            judgements=judgements,
        )
        return push(parcel, repo, private=private, tag=tag)


def push_model(
    folder: str | Path,
    repo: str,
    *,
    private: bool = False,
    tag: str | None = None,
    results: str | Path | None = None,
    license: str | None = None,
) -> Pushed:
    """Push a trained encoder with its processor and its card.

    Args:
        folder: What `repair-hf train` wrote.
        repo: Id of the model; created if missing.
        private: Create it as private; an existing public repository is an error.
        tag: Name of this revision.
        results: Folder of `repair-hf evaluate` with this model, best after its base and one without records.
        license: License identifier of the Hub.

    Raises:
        UserError, RunStopped: As `push_records`.
    """
    with TemporaryDirectory(prefix="repair-hf-") as scratch:
        parcel = pack_model(folder, repo, scratch=scratch, results=results, license=license)
        return push(parcel, repo, private=private, tag=tag)


def prepare(repo: str, kind: Literal["dataset", "model"], *, private: bool = False) -> str:
    """Create the repository if it is missing, and return its full id.

    Call it early to find what would stop a push: a missing or invalid token, or a public repository.
    """
    if get_token() is None:
        raise UserError(
            "You are not logged in to the Hub; run `hf auth login`, or set HF_TOKEN to a token with write access."
        )
    with _one_line_errors(repo):
        validate_repo_id(repo)
        api = HfApi()
        made = _retried(lambda: api.create_repo(repo, repo_type=kind, private=private or None, exist_ok=True))
        if private and not _retried(lambda: api.repo_info(made.repo_id, repo_type=kind)).private:
            raise UserError(
                f"{made.repo_id} exists and is public, but a private repository is wanted. Make it private in its "
                "settings on the Hub, or choose another --repo."
            )
        return made.repo_id


def push(parcel: Parcel, repo: str, *, private: bool = False, tag: str | None = None) -> Pushed:
    """Push a parcel as one commit, and tag the revision."""
    name, api = prepare(repo, parcel.kind, private=private), HfApi()
    older = f"the tag {tag!r} names an older revision of {name}; give another --tag."
    with _one_line_errors(name):
        head = _retried(lambda: api.repo_info(name, repo_type=parcel.kind))
        tagged = None if tag is None else _retried(lambda: _revision_of(api, name, parcel.kind, tag))
        if tagged not in (None, head.sha):
            raise UserError(f"Nothing was pushed: {older}")
        revision = _retried(lambda: _commit(api, name, parcel))
        if tagged not in (None, revision):
            raise UserError(f"Pushed as {revision[:8]}, but {older}")
        if tag is not None and tagged is None:
            _retried(lambda: api.create_tag(name, tag=tag, revision=revision, repo_type=parcel.kind, exist_ok=True))
    url = f"{ENDPOINT}/{'' if parcel.kind == 'model' else 'datasets/'}{name}"
    return Pushed(name, url, revision, head.sha != revision)


def _commit(api: HfApi, name: str, parcel: Parcel) -> str:
    """Commit, and return the revision, which is the one before if nothing has changed."""
    head: Any = api.repo_info(name, repo_type=parcel.kind)
    there = [file.rfilename for file in head.siblings or ()]
    stale = [path for path in there if path not in parcel.files and _matches(path, parcel.replaces)]
    operations: list[Any] = [CommitOperationAdd(path, content) for path, content in parcel.files.items()]
    operations += [CommitOperationDelete(path) for path in stale]
    commit = api.create_commit(
        name,
        operations,
        repo_type=parcel.kind,
        commit_message=f"Push {'records' if parcel.kind == 'dataset' else parcel.kind} with repair-hf",
        parent_commit=head.sha,  # a concurrent push is not overwritten
    )
    return commit.oid


def _revision_of(api: HfApi, name: str, kind: str, tag: str) -> str | None:
    """Return the revision of a tag; None if there is no such tag."""
    refs = api.list_repo_refs(name, repo_type=kind)
    return next((ref.target_commit for ref in refs.tags if ref.name == tag), None)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Match a path; `*` does not match a slash."""
    return any(path.count("/") == pattern.count("/") and fnmatch(path, pattern) for pattern in patterns)


def _retried(act: Callable[[], Answer]) -> Answer:
    """Call `act`, again after temporary failures."""
    for wait in WAITS:
        try:
            return act()
        except (HfHubHTTPError, httpx.TransportError) as error:
            if isinstance(error, HfHubHTTPError) and error.response.status_code not in PASSING:
                raise
            logger.info("The Hub failed: %s; next attempt in %g s.", _line(error), wait)
            time.sleep(wait)
    return act()


@contextmanager
def _one_line_errors(repo: str) -> Iterator[None]:
    """Turn errors of the Hub into one line that says what to do."""
    try:
        yield
    except HfHubHTTPError as error:
        raise _http_error(repo, error) from error
    except httpx.TransportError as error:
        raise RunStopped(f"The Hub at {ENDPOINT} cannot be reached: {_line(error)}. {AGAIN}") from error
    except OfflineModeIsEnabled as error:
        raise UserError("HF_HUB_OFFLINE is set, so nothing can be pushed; unset it.") from error
    except HFValidationError as error:
        raise UserError(f"`{repo}` is not a repository id such as me/x-repair: {_line(error)}") from error
    except (UserError, RunStopped):
        raise
    except ValueError as error:  # the Hub's check of the card's header, such as an unknown license
        raise UserError(f"The Hub rejects the card: {_line(error)}") from error
    except RuntimeError as error:  # an upload, after the library's own retries
        raise RunStopped(f"{_line(error)} ({_line(error.__cause__)}) {AGAIN}") from error


def _http_error(repo: str, error: HfHubHTTPError) -> Exception:
    status, reason = error.response.status_code, without_secrets(error.server_message or _line(error))
    what = f"({status}: {reason})"
    if status in (401, 403):
        return UserError(f"The Hub does not let your token write to {repo} {what} {LOGIN}")
    if status in (409, 412):
        return RunStopped(f"{repo} was changed by another push in the meantime {what} {AGAIN}")
    if status in PASSING:
        return RunStopped(f"The Hub failed {what} {AGAIN}")
    return UserError(f"The Hub rejects the push to {repo} {what}")


def _line(error: BaseException | None) -> str:
    return without_secrets(" ".join(str(error).split()) or type(error).__name__)
