"""``python -m tierlog.service.health_check``: whether the service in this container answers ``/livez``; for a health
check.

It is run every few seconds, so it starts in milliseconds: it imports neither the engine nor urllib3, and makes its one
request with the standard library instead of the product's HTTP client. The port and whether there is TLS are read from
the variables of the service's settings, so both have to be given by environment where they are not the default.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from collections.abc import Mapping

_TIMEOUT_S = 3.0


def is_alive(environment: Mapping[str, str]) -> str | None:
    """Returns None if it answers 200; else what was wrong, as a sentence."""
    port = environment.get("TIERLOG_SERVE_PORT") or "8080"
    if not port.isdecimal():
        return f"TIERLOG_SERVE_PORT is {port}, which is no port"
    connection = _connection(environment, int(port))
    try:
        connection.request("GET", "/livez", headers={"Host": "localhost"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"the service does not answer on port {port}: {error}"
    finally:
        connection.close()
    return None if status == http.client.OK else f"/livez answered {status}"


def _connection(environment: Mapping[str, str], port: int) -> http.client.HTTPConnection:
    if not environment.get("TIERLOG_SERVE_TLS_CERTIFICATE"):
        return http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    # the certificate is for the name that others use; this stays inside the container
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    certificate = environment.get("TIERLOG_CLIENT_CERTIFICATE")
    if certificate:
        context.load_cert_chain(certificate, environment.get("TIERLOG_CLIENT_KEY"))
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=_TIMEOUT_S, context=context)


if __name__ == "__main__":
    problem = is_alive(os.environ)
    if problem is not None:
        print(f"tierlog: {problem}", file=sys.stderr)
    sys.exit(problem is not None)
