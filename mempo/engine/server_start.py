"""From ``engine=openai`` to the engine that asks the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from mempo.config import EngineConfig
from mempo.engine.errors import EngineError
from mempo.engine.event_loop import EventLoop
from mempo.engine.openai_engine import ChatEngine, CompletionsEngine, TextCodec
from mempo.engine.openai_server import OpenAIServer, ServedModel

ASSUMED_MODEL_LEN: Final = 131_072
"""Tokens of the longest context where neither settings nor server say it."""


def start_server_engine(
    config: EngineConfig, path: str, codec: TextCodec, say: Callable[[str], None] = print
) -> CompletionsEngine | ChatEngine:
    """An engine for the model ``path`` on the server of ``config``, once that answers.

    Raises ``EngineError`` that says which setting to change.
    """
    server = OpenAIServer(config)
    loop = EventLoop()
    try:
        listed = loop.start(server.wait_until_ready(say)).result()
        served = _served(config, path, listed)
        exact = CompletionsEngine(server, codec, loop)
        exact.model = served.name
        engine: CompletionsEngine | ChatEngine = exact
        if not _is_exact(config, codec, loop, exact):
            engine = ChatEngine(server, codec, loop)
            engine.model = served.name
    except BaseException:
        loop.close(server.close)
        raise
    engine.max_model_len = config.max_model_len or served.max_model_len or ASSUMED_MODEL_LEN
    say(_told(engine, config, served))
    return engine


def _is_exact(
    config: EngineConfig, codec: TextCodec, loop: EventLoop, engine: CompletionsEngine
) -> bool:
    if config.protocol == "chat":
        return False
    if codec.exact and loop.start(engine.gives_ids()).result():
        return True
    if config.protocol == "completions":
        why = "gives no token ids back" if codec.exact else "is asked for a model without tokenizer"
        raise EngineError(
            f"engine.protocol=completions: {config.url} {why}: name the folder of the model that "
            "`vllm serve` serves, or set engine.protocol=chat"
        )
    return False


def _served(config: EngineConfig, path: str, listed: Sequence[ServedModel]) -> ServedModel:
    """The model to ask for, by ``engine.served_model``, its own name, or as the only one."""
    by_name = {one.name: one for one in listed}
    name = config.served_model or (path if path in by_name or not Path(path).is_dir() else None)
    if name is not None:
        return by_name.get(name, ServedModel(name, None))
    if len(listed) == 1:
        return listed[0]
    names = ", ".join([*by_name][:5]) or "nothing that it lists"
    raise EngineError(
        f"{config.url} serves {names}: say which is {path}, with engine.served_model=<name>"
    )


def _told(engine: CompletionsEngine | ChatEngine, config: EngineConfig, served: ServedModel) -> str:
    how = "token ids go in and come out"
    if isinstance(engine, ChatEngine):
        how = "asked with chats: tokens are counted here, and no <mem> is begun for the model"
    length = ""
    if config.max_model_len is None and served.max_model_len is None:
        length = f"; contexts of {ASSUMED_MODEL_LEN:,} tokens assumed (engine.max_model_len)"
    return f"{served.name} at {config.url}: {how}{length}"
