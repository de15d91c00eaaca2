"""Ask the gate how this site stands there: whether it answers, whether the key is known, how far the clock is off."""

from __future__ import annotations

import datetime as dt
import ssl
from contextlib import suppress

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedlog.errors import InputError, RunError
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.check_in import CHECK_IN_PATH, News, Standing, encode_news, read_standing
from fedlog.flower.server.callers import sign_call

TIMEOUT_SECONDS = 10.0


class UnreachableError(RunError):
    """The server did not answer."""


class CertificateError(RunError):
    """What answered is not the server that this site knows."""


def check_in(folder: SiteFolder, news: News | None = None, now: dt.datetime | None = None) -> Standing:
    """Tell the gate the news and return how this site stands there; `now` is what this machine's clock says.

    An UnreachableError says that nobody answers, a CertificateError that somebody else does.
    """
    server = folder.read_config().server
    key = serialization.load_ssh_private_key(folder.private_key.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"expected an elliptic-curve key, found {type(key).__name__}: {folder.private_key}")
    trust = ssl.create_default_context(cafile=folder.authority)
    headers = sign_call(key, now or dt.datetime.now(dt.UTC))
    try:
        with httpx.Client(verify=trust, timeout=TIMEOUT_SECONDS) as client:
            answer = client.post(f"https://{server}{CHECK_IN_PATH}", content=encode_news(news), headers=headers)
        answer.raise_for_status()
        return read_standing(answer.content)
    except httpx.ConnectError as error:
        if "certificate" in str(error).lower():
            raise CertificateError(
                f"expected the server that {folder.authority} vouches for at {server}, found another: {error}",
                hint="is the address right, and is ca.crt the one of this federation?",
            ) from None
        raise UnreachableError(f"expected a server at {server}, found none: {error}") from None
    except (httpx.HTTPError, InputError) as error:
        raise UnreachableError(f"expected the gate of a federation at {server}, found: {error}") from None


def tell(folder: SiteFolder, news: News) -> None:
    """Tell the gate the news, if it can be reached."""
    with suppress(RunError, InputError, OSError):
        check_in(folder, news)
