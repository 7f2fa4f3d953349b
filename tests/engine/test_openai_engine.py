"""Engines that ask a server (specification section 4): what they send, what they make of what
comes, and the sentences for servers that fail."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mempo.agent.protocol import STOP_STRINGS, unclosed_action
from mempo.config import EngineConfig
from mempo.engine.errors import EngineError
from mempo.engine.interface import Generation, Sampling
from mempo.engine.openai_engine import ChatEngine, CompletionsEngine, TextCodec
from mempo.engine.server_start import start_server_engine
from mempo.runtime.errors import ConfigError
from tests.support.openai_servers import (
    chat_answer,
    completion_answer,
    error_answer,
    openai_server,
)
from tests.support.servers import Reply, silent_server
from tests.support.small_tokenizers import make_conversation

CONVERSATION = make_conversation("merged", "qwen2.5")
END = CONVERSATION.tokenizer.convert_tokens_to_ids("<|im_end|>")
CODEC = TextCodec(CONVERSATION.encode, [END], END, STOP_STRINGS, unclosed_action)
MESSAGES = [{"role": "user", "content": "Who?"}]
SAMPLED = Sampling(0.7, 0.9, 5)


@contextmanager
def started(
    url: str, codec: TextCodec = CODEC, path: str = "served", **settings: Any
) -> Iterator[CompletionsEngine | ChatEngine]:
    config = EngineConfig(kind="openai", url=url, **{"backoff_s": 0.01, **settings})
    engine = start_server_engine(config, path, codec, lambda line: None)
    try:
        yield engine
    finally:
        engine.close()


def finish(engine: CompletionsEngine | ChatEngine) -> list[Generation]:
    found: list[Generation] = []
    while engine.has_unfinished():
        found += engine.step()
    return found


def exact(path: str, body: Any, number: int) -> Reply:
    """As ``vllm serve``: the first request is the trial."""
    if number == 0:
        read = CONVERSATION.encode(body["prompt"])
        return 200, completion_answer("a", "length", token_ids=[5], prompt_token_ids=read)
    told = {"tokens": ["a", "b"], "token_logprobs": [-0.25, -1.5], "text_offset": [0, 1]}
    return 200, completion_answer("ab", token_ids=[7, END], logprobs=told)


def chat(text: str | None, finish: str = "stop") -> Any:
    return lambda path, body, number: (200, chat_answer(text, finish))


def test_ids_go_out_and_come_in() -> None:
    with openai_server(exact) as (url, requests), started(url) as engine:
        assert isinstance(engine, CompletionsEngine)
        assert engine.max_model_len == 4096
        engine.submit("k", [3, 4, 9], 11, 77, SAMPLED)
        assert finish(engine) == [Generation("k", [7, END], [-0.25, -1.5], "stop")]
        engine.submit("g", [3], 1, 77, Sampling(0.0))
        finish(engine)
    assert requests.paths == ["/v1/completions"] * 3
    body = requests.bodies[1]
    assert body == {
        "model": "served", "prompt": [3, 4, 9], "max_tokens": 11, "temperature": 0.7,
        "top_p": 0.9, "top_k": 5, "seed": 77, "logprobs": 0, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "stop": ["</search>", "</access>", "</answer>"], "stop_token_ids": [END],
        "include_stop_str_in_output": True, "skip_special_tokens": True, "return_token_ids": True,
    }  # fmt: skip
    greedy = requests.bodies[2]
    assert (greedy.get("seed"), greedy["temperature"], greedy["top_k"]) == (None, 0.0, 0)


@pytest.mark.parametrize("status", [200, 400, 404])
def test_a_server_without_ids_is_asked_with_chats(status: int) -> None:
    def reply(path: str, body: Any, number: int) -> Reply:
        if path == "/v1/completions":
            return status, completion_answer("a") if status == 200 else error_answer("no")
        return 200, chat_answer("<think>a</think><search>b")

    with openai_server(reply) as (url, _):
        with started(url) as engine:
            assert isinstance(engine, ChatEngine)
        said = r"gives no token ids back.*engine\.protocol=chat"
        with pytest.raises(EngineError, match=said), started(url, protocol="completions"):
            pass


def test_another_tokenizer_is_noticed() -> None:
    def reply(path: str, body: Any, number: int) -> Reply:
        return 200, completion_answer("a", token_ids=[5], prompt_token_ids=[1, 2])

    said = "another tokenizer"
    with openai_server(reply) as (url, _), pytest.raises(EngineError, match=said), started(url):
        pass


@pytest.mark.parametrize(
    ("said", "finish_reason", "kept", "ended"),
    [
        ("<think>a</think><search> b", "stop", "<think>a</think><search> b</search>", False),
        ("<think>a</think><answer>b", "stop", "<think>a</think><answer>b</answer>", False),
        ("<think>a</think><answer>b", "length", "<think>a</think><answer>b", False),
        ("<think>so I", "stop", "<think>so I", True),
        ("<think>a <search>b", "stop", "<think>a <search>b", True),
        ("plain", "content_filter", "plain", True),
        (None, "tool_calls", "", True),
    ],
)
def test_what_a_chat_says(said: str | None, finish_reason: str, kept: str, ended: bool) -> None:
    with (
        openai_server(chat(said, finish_reason)) as (url, requests),
        started(url, protocol="chat") as engine,
    ):
        assert isinstance(engine, ChatEngine)
        engine.submit_messages("k", MESSAGES, 20, 5, SAMPLED)
        (found,) = finish(engine)
    assert found.ids == CONVERSATION.encode(kept) + [END] * ended
    assert all(math.isnan(one) for one in found.logprobs)
    assert len(found.logprobs) == len(found.ids)
    assert found.finish_reason == ("length" if finish_reason == "length" else "stop")
    (body,) = requests.bodies
    assert body == {
        "model": "served", "messages": MESSAGES, "temperature": 0.7, "top_p": 0.9, "seed": 5,
        "top_k": 5, "max_tokens": 20, "stop": ["</search>", "</access>", "</answer>"],
    }  # fmt: skip


def test_what_newer_models_refuse_is_sent_otherwise() -> None:
    def reply(path: str, body: Any, number: int) -> Reply:
        if "max_tokens" in body:
            time.sleep(0.05)  # so that all have been sent before the first is refused
            return 400, error_answer("Use 'max_completion_tokens' instead of 'max_tokens'.")
        if "stop" in body:
            return 400, error_answer("Unsupported parameter: 'stop' is not supported.")
        return 200, chat_answer("<search>a</search> and more")

    with openai_server(reply) as (url, requests), started(url, protocol="chat") as engine:
        assert isinstance(engine, ChatEngine)
        for key in "abc":
            engine.submit_messages(key, MESSAGES, 20, 5, Sampling())
        assert sorted(one.key for one in finish(engine)) == ["a", "b", "c"]
        first = len(requests.bodies)
        engine.submit_messages("d", MESSAGES, 20, 5, Sampling())
        finish(engine)
    (body,) = requests.bodies[first:]
    assert (body["max_completion_tokens"], body["seed"]) == (20, 5)
    assert not {"max_tokens", "stop"} & set(body)


def test_a_temperature_that_is_refused_is_told() -> None:
    said = "Unsupported value: 'temperature' does not support 0.7 with this model."
    with (
        openai_server(lambda path, body, number: (400, error_answer(said))) as (url, requests),
        pytest.raises(EngineError, match="'temperature' does not support 0"),
    ):
        ask_once(url)
    assert len(requests.bodies) == 1


def ask_once(url: str, **settings: Any) -> Generation:
    with started(url, protocol="chat", **settings) as engine:
        assert isinstance(engine, ChatEngine)
        engine.submit_messages("k", MESSAGES, 20, 5, Sampling())
        (found,) = finish(engine)
        return found


def test_failures_that_pass_are_tried_again() -> None:
    replies: list[Reply] = [
        (503, error_answer("busy")),
        None,
        (429, error_answer("slow down"), {"Retry-After": "0.3"}),
        (200, chat_answer("a")),
    ]
    begun = time.monotonic()
    with openai_server(lambda path, body, number: replies[number]) as (url, requests):
        assert ask_once(url).ids == [*CONVERSATION.encode("a"), END]
    assert len(requests.bodies) == 4
    assert time.monotonic() - begun > 0.3


@pytest.mark.parametrize(
    ("reply", "tries", "said"),
    [
        (
            (500, error_answer("broken")),
            3,
            r"status 500, tried 3 times \(engine\.retries\).*broken",
        ),
        ((404, error_answer("no model")), 1, r"status 404.*engine\.served_model"),
        ((400, error_answer("too long")), 1, r"status 400.*too long.*engine\.max_model_len"),
        ((429, error_answer("paid?", "insufficient_quota")), 1, r"status 429: .*paid\?"),
        (None, 3, r"tried 3 times.*correct engine\.url"),
        ((200, b"<html>"), 1, r"none of OpenAI's protocol: correct engine\.url"),
        ((200, b"{}"), 1, r"none of OpenAI's protocol"),
        ((200, b'{"choices": [{"message": null}]}'), 1, r"none of OpenAI's protocol"),
        ((200, b'{"choices": [{"message": {"content": [5]}}]}'), 1, r"none of OpenAI's protocol"),
    ],
)
def test_failures_that_stay(reply: Reply, tries: int, said: str) -> None:
    with (
        openai_server(lambda path, body, number: reply) as (url, requests),
        pytest.raises(EngineError, match=said),
    ):
        ask_once(url, retries=2)
    assert len(requests.bodies) == tries


def test_the_key_comes_from_the_environment_and_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reply(path: str, body: Any, number: int) -> Reply:
        return 401, error_answer("Incorrect API key provided: sk-secret.")

    monkeypatch.setenv("MY_KEY", "sk-secret")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with openai_server(reply) as (url, requests):
        with pytest.raises(EngineError, match=r"MY_KEY.*a key that it does not take") as refused:
            ask_once(url, api_key_env="MY_KEY")
        with pytest.raises(EngineError, match=r"OPENAI_API_KEY.*is not set"):
            ask_once(url)
    assert "sk-secret" not in str(refused.value)
    sent = [headers["authorization"] for headers in requests.headers]
    assert sent == ["Bearer sk-secret", "Bearer none"]


@pytest.mark.parametrize("key", ["sk-secret\r\n", "  sk-secret "])
def test_white_space_around_a_key_is_left_out(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with openai_server(chat("a")) as (url, requests):
        ask_once(url)
    assert [headers["authorization"] for headers in requests.headers] == ["Bearer sk-secret"]


@pytest.mark.parametrize("key", ["sk-\nsecret", "sk- secret", "sk-\u2026secret", "sk-\x7fsecret"])
def test_what_no_header_carries_is_refused_without_showing_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    said = r"OPENAI_API_KEY \(engine\.api_key_env\) holds a space"
    with (
        openai_server(chat("a")) as (url, requests),
        pytest.raises(ConfigError, match=said) as refused,
    ):
        ask_once(url)
    assert "secret" not in str(refused.value)
    assert requests.bodies == []


def test_a_silent_server_ends_in_a_sentence() -> None:
    with silent_server() as url:
        limits = {"connect_timeout_s": 0.2, "read_timeout_s": 0.2, "ready_timeout_s": 0.1}
        with pytest.raises(EngineError, match=r"not ready within engine\.ready_timeout_s=0\.1"):
            ask_once(f"{url}/v1", **limits)

    def slow(path: str, body: Any, number: int) -> Reply:
        time.sleep(0.6)
        return 200, chat_answer("a")

    with openai_server(slow) as (url, _):
        with pytest.raises(EngineError, match=r"engine\.read_timeout_s=0\.2 seconds, tried 2"):
            ask_once(url, connect_timeout_s=0.2, read_timeout_s=0.2, retries=1)
        with pytest.raises(EngineError, match=r"no answer within engine\.timeout_s=0\.3"):
            ask_once(url, connect_timeout_s=0.3, read_timeout_s=0.3, timeout_s=0.3, retries=50)


def test_many_at_once_and_none_left() -> None:
    release = threading.Event()

    def reply(path: str, body: Any, number: int) -> Reply:
        if body["messages"][0]["content"] == "slow":
            release.wait(20)
        return 200, chat_answer(body["messages"][0]["content"])

    with openai_server(reply) as (url, _), started(url, protocol="chat") as engine:
        assert isinstance(engine, ChatEngine)
        for key in ("slow", "b", "c"):
            message = [{"role": "user", "content": key}]
            engine.submit_messages(key, message, 20, 5, Sampling())
        found: list[Generation] = []
        while len(found) < 2:
            found += engine.step()
        assert sorted(one.key for one in found) == ["b", "c"]
        assert engine.has_unfinished()
        engine.abort_all()
        assert not engine.has_unfinished()
        assert engine.step() == []
        release.set()
    engine.close()
    left = [one.name for one in threading.enumerate() if one.name.startswith(("event", "asyncio"))]
    assert left == []


@pytest.mark.parametrize(
    ("models", "path", "settings", "asked"),
    [
        (["a", "b"], "b", {}, "b"),
        (["a", "b"], "hosted", {}, "hosted"),
        (["a"], ".", {}, "a"),
        (["a", "b"], ".", {"served_model": "b"}, "b"),
    ],
)
def test_which_model_is_asked(
    models: list[str], path: str, settings: dict[str, Any], asked: str
) -> None:
    with (
        openai_server(chat("a"), models, None) as (url, _),
        started(url, path=path, protocol="chat", **settings) as engine,
    ):
        assert engine.model == asked
        assert engine.max_model_len == 131_072


def test_a_folder_among_several_models_has_to_be_named() -> None:
    said = r"serves a, b: .*engine\.served_model=<name>"
    with (
        openai_server(chat("a"), ["a", "b"]) as (url, _),
        pytest.raises(EngineError, match=said),
        started(url, path="."),
    ):
        pass
