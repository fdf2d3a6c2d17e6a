"""An authenticated Kaggle client, with nothing secret in any message that leaves it.

The client finds its credentials itself: KAGGLE_API_TOKEN, KAGGLE_USERNAME with KAGGLE_KEY, or a
key file. It prints and exits where it should raise, and does so on import already, so both happen
only inside `kaggle_session`.
"""

import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from common.kaggle.errors import explain, redact
from common.retry import RetryPolicy

POLICY = RetryPolicy(attempts=4, first_wait_s=2.0)
ANSWER_WITHIN_S = 120.0

_APIS = {
    "blobs": "blob_api",
    "competitions": "competition_api",
    "datasets": "dataset_api",
    "kernels": "kernels_api",
}
_HOW_TO_LOG_IN = (
    "set KAGGLE_API_TOKEN, or KAGGLE_USERNAME and KAGGLE_KEY, or put kaggle.json with both into "
    "~/.kaggle (the account's settings on kaggle.com make either)"
)


@dataclass(frozen=True)
class KaggleSession:
    """An authenticated client, its user's name, and what is done with it.

    Attributes:
        action: the start of every line that is logged or raised ("upload a.csv to …").
        policy: how often a request is made that does no harm, and with which waits; a server that
            asks for longer ones is not waited for.
    """

    api: Any  # KaggleApi, whose import is heavy and untyped
    username: str
    action: str
    policy: RetryPolicy

    def own(self, name: str) -> str:
        """Return "owner/slug" of a kernel or dataset; a slug alone is one's own."""
        return name if "/" in name else f"{self.username}/{name}"

    def call(self, service: str, method: str, facts: Mapping[str, Any]) -> Any:
        """Call a method of a service, such as "kernels" and "get_kernel", with its JSON's keys."""
        api = _APIS[service]
        types = import_module(f"kagglesdk.{service}.types.{api}_service")
        request = getattr(types, f"Api{method.title().replace('_', '')}Request").from_dict(facts)
        with self.api.build_kaggle_client() as client:
            return getattr(getattr(getattr(client, service), f"{api}_client"), method)(request)


@contextmanager
def kaggle_session(action: str, policy: RetryPolicy = POLICY) -> Iterator[KaggleSession]:
    """Yield an authenticated client; whatever goes wrong in the block becomes one line.

    What the client prints on standard output is caught, and shown nowhere: it may hold signed
    addresses and, where VERBOSE=1 is set, authorization headers.

    Raises:
        PipelineError: no or refused credentials, a refused request, no connection, or a fault of
            the client. Its cause is cut off, because the client's errors hold the credentials.
    """
    try:
        with redirect_stdout(io.StringIO()):
            yield _log_in(action, policy)
    except PipelineError as error:
        raise type(error)(redact(str(error))) from None
    except SystemExit as error:
        raise PipelineError(f"{action}: the Kaggle client gave up (exit {error.code})") from None
    except Exception as error:
        raise PipelineError(redact(str(explain(error, action)))) from None


def _log_in(action: str, policy: RetryPolicy) -> KaggleSession:
    # Its import calls `basicConfig` where VERBOSE=1 is set, and would log signed addresses; that
    # leaves alone what has a handler.
    silent = logging.NullHandler()
    logging.getLogger().addHandler(silent)
    try:
        api = _limited_client()
    finally:
        logging.getLogger().removeHandler(silent)
    key_file = Path(api.config)
    try:
        api.authenticate()
    except (SystemExit, TypeError):  # the latter where a key file is a list
        found = f"{key_file} does not hold them" if key_file.exists() else "none found or accepted"
        raise PipelineError(f"{action}: no Kaggle credentials: {found}; {_HOW_TO_LOG_IN}") from None
    user = api.config_values.get(api.CONFIG_NAME_USER, "")
    return KaggleSession(api, user, action, policy)


def _limited_client() -> Any:
    from kaggle.api.kaggle_api_extended import KaggleApi
    from requests.adapters import HTTPAdapter

    class LimitedAdapter(HTTPAdapter):
        def send(self, request: Any, *args: Any, **options: Any) -> Any:
            options["timeout"] = options.get("timeout") or ANSWER_WITHIN_S
            return super().send(request, *args, **options)

    class LimitedApi(KaggleApi):
        def build_kaggle_client(self) -> Any:
            client = super().build_kaggle_client()
            http = client.http_client().__enter__()
            for scheme in ("http://", "https://"):
                http._session.mount(scheme, LimitedAdapter())  # there is no setting for it
            return client

    return LimitedApi()
