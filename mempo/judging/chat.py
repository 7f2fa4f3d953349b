"""One request to a judge's server, through the ``openai`` package."""

from __future__ import annotations

import logging
from typing import Any, Final
from urllib.parse import urlsplit

from mempo.config import JudgeConfig
from mempo.config.server_key import key_from_environment
from mempo.runtime.errors import MempoError

_SHOWN: Final = 200
_NO_KEY: Final = "none"  # the package wants one; servers of one's own read none
_AT_HOME: Final = ("localhost", "127.0.0.1", "::1")


class JudgeServerError(MempoError):
    """A server that no further request changes: a wrong key, a model that it does not have."""


class NoReplyError(Exception):
    """A request that failed, its retries included."""


class JudgeServer:
    """Requests to ``reward.judge.url``. Thread safe; connections are reused. Close it."""

    def __init__(self, config: JudgeConfig) -> None:
        import openai  # a second, which other runs need not wait for

        self._openai = openai
        self._config = config
        self._key = key_from_environment(config.api_key_env, "reward.judge.api_key_env") or _NO_KEY
        assert config.url is not None
        assert config.model is not None
        self._model = config.model
        # A proxy of the environment is for servers elsewhere.
        at_home = urlsplit(config.url).hostname in _AT_HOME
        self._client = openai.OpenAI(
            base_url=config.url,
            api_key=self._key,
            timeout=config.timeout_s,
            max_retries=config.retries,
            http_client=openai.DefaultHttpxClient(trust_env=not at_home),
        )
        _log_no_requests()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def reply(self, message: str) -> str:
        """What the model replies to one message. Raises ``NoReplyError`` and
        ``JudgeServerError``."""
        config, openai = self._config, self._openai
        fields: dict[str, Any] = dict(config.request or {})
        for name in ("temperature", "max_tokens"):
            if (value := getattr(config, name)) is not None:
                fields.setdefault(name, value)
        sendable = message.encode(errors="replace").decode()  # without half a surrogate pair
        try:
            completion = self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": sendable}],
                extra_body=fields,
            )
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise self._refused(
                error, f"set the environment variable {config.api_key_env} to a key of the server"
            ) from None
        except openai.NotFoundError as error:
            raise self._refused(
                error,
                "correct reward.judge.model, or reward.judge.url, which mostly ends with /v1",
            ) from None
        except openai.APITimeoutError:
            raise NoReplyError(
                f"{config.url}: no reply within reward.judge.timeout_s={config.timeout_s:g} seconds"
            ) from None
        except openai.OpenAIError as error:
            raise NoReplyError(f"{config.url}: {self._told(error)}") from None
        text = self._text(completion)
        if text is None:
            raise NoReplyError(f"{config.url}: the answer is no chat completion with a text")
        return text

    def _text(self, completion: Any) -> str | None:
        """What a model said; ``None`` where something else came."""
        choices = getattr(completion, "choices", None) or [None]
        content = getattr(getattr(choices[0], "message", None), "content", None)
        return content if isinstance(content, str) else None

    def _refused(self, error: Exception, remedy: str) -> JudgeServerError:
        return JudgeServerError(f"the judge at {self._config.url}: {self._told(error)}; {remedy}")

    def _told(self, error: Exception) -> str:
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        text = f"{error}{cause}"
        if self._key != _NO_KEY:
            text = text.replace(self._key, "***")
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _log_no_requests() -> None:
    """A line for each request would be thousands an epoch; a level that somebody set stays."""
    for name in ("httpx", "httpx2", "openai"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
