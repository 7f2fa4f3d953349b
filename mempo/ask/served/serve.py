"""The server: the engine in the thread that started it, the web in another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from mempo.ask.agent import LoadedAgent
from mempo.ask.passages import example_question
from mempo.ask.served.access import own_machine
from mempo.ask.served.answering import Answering
from mempo.ask.served.application import make_application
from mempo.ask.served.options import Serving
from mempo.retrieval.listening import listen
from mempo.runtime.errors import MempoError

STOPS_WITHIN_SECONDS = 5


def serve(load: Callable[[], LoadedAgent], serving: Serving) -> None:
    """Serves until Ctrl-C or SIGTERM. Raises ``MempoError`` for an address that cannot be listened
    on, before the agent is loaded, and what ``load`` raises."""
    listening, address = listen(serving.host, serving.port)
    with listening, load() as agent:
        answering = Answering(agent)
        application = make_application(
            agent,
            answering,
            rounds=serving.rounds,
            token=serving.token,
            own_names=own_machine(serving.host),
            origins=serving.origins,
            example=example_question(agent.config),
        )
        config = uvicorn.Config(
            application, log_level="warning", timeout_graceful_shutdown=STOPS_WITHIN_SECONDS
        )
        web = uvicorn.Server(config)

        def run_web() -> None:
            try:
                web.run(sockets=[listening])
            finally:
                answering.stop()

        thread = threading.Thread(target=run_web, name="web", daemon=True)
        thread.start()
        with_token = ", with the token" if serving.token else ""
        _say(f"{address}/ asks {agent.label}{with_token}; Ctrl-C ends it")
        _say(f"{address}/v1 speaks the chat-completions protocol (rounds: {serving.rounds})")
        try:
            answering.run()
            raise MempoError("the web server has ended by itself: the lines above may say why")
        finally:
            web.should_exit = True
            with suppress(KeyboardInterrupt):
                thread.join(2 * STOPS_WITHIN_SECONDS)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
