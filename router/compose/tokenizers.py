"""The tokenizers of a gateway: loaded before it serves, improved while it does."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from router.adapters.tokenizers import HfTokenizer, TokenizerLoadError
from router.adapters.turn_tokenizers import TurnTokenizer
from router.compose.models import CompositionError
from router.settings import Settings
from router.settings.serving import HfTokenizerSettings

_BREATH_SECONDS = 0.0002
"""About what a thread takes to wake up."""


def _make_threads() -> ThreadPoolExecutor:
    """One processor stays for the event loop: encoding takes whole ones for as long as it lasts."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    return ThreadPoolExecutor(max(1, processors - 1), thread_name_prefix="tokenizer")


class _Stopped(Exception):
    """The gateway ends before a tokenizer was improved."""


@dataclass(frozen=True, slots=True)
class Tokenizers:
    """Every in-process tokenizer, by model name, and the threads in which they encode."""

    by_model: Mapping[str, TurnTokenizer]
    threads: ThreadPoolExecutor = field(default_factory=_make_threads)

    async def run(self) -> None:
        """Improve one after another, in a thread that ends when this is cancelled.

        It gives way to the event loop every millisecond or so, which otherwise would wait for the
        interpreter's switch interval, 5 ms, each time that it has something to do.
        """
        stopping = threading.Event()

        def checkpoint() -> None:
            if stopping.wait(_BREATH_SECONDS):
                raise _Stopped

        try:
            for tokenizer in self.by_model.values():
                await asyncio.to_thread(tokenizer.improve, checkpoint)
        finally:
            stopping.set()

    def close(self) -> None:
        """End the threads; what still waits for one is not encoded."""
        self.threads.shutdown(wait=False, cancel_futures=True)


def load_tokenizers(settings: Settings) -> Tokenizers:
    """Load every in-process tokenizer. Raises CompositionError."""
    return Tokenizers(
        {
            model.name: _load(model.name, model.tokenizer)
            for model in settings.models
            if isinstance(model.tokenizer, HfTokenizerSettings)
        }
    )


def renew_tokenizers(tokenizers: Tokenizers, running: Settings, wanted: Settings) -> Tokenizers:
    """Return the tokenizers of other settings, in the same threads. Raises CompositionError.

    Those that are described as before are kept, with what they remember.
    """
    known = {model.name: model.tokenizer for model in running.models}
    by_model: dict[str, TurnTokenizer] = {}
    for model in wanted.models:
        told = model.tokenizer
        if isinstance(told, HfTokenizerSettings):
            kept = tokenizers.by_model[model.name] if known.get(model.name) == told else None
            by_model[model.name] = kept or _load(model.name, told)
    return Tokenizers(by_model, tokenizers.threads)


def _load(model: str, told: HfTokenizerSettings) -> TurnTokenizer:
    path = Path(told.path)
    directory = path.parent if path.is_file() else path
    try:
        wrapped = HfTokenizer.load(directory)
        # Here, since reading megabytes of JSON would hold up the event loop later on.
        document = HfTokenizer.read_document(directory) if told.encoder == "auto" else None
    except TokenizerLoadError as error:
        raise CompositionError(f"models[{model}].tokenizer: {error}") from error
    return TurnTokenizer(model, wrapped, max_bytes=told.remembered_bytes, document=document)
