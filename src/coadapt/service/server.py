"""The HTTP server that serves the API."""

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from coadapt.service.app import Service, create_app

try:
    from coadapt.service.bounded_http import BoundedHttp
except ImportError:
    # No httptools: no wheel for this machine. It costs more, and slow or many clients
    # stay.
    HTTP: type = H11Protocol
else:
    HTTP = BoundedHttp

# Followed logs keep their connections open for as long as they are read: they are cut
# off then.
SHUTDOWN_GRACE_S = 1


def http_server(service: Service) -> uvicorn.Server:
    """Return the server of `service`; its `run` serves sockets until `should_exit`."""
    config = uvicorn.Config(
        create_app(service),
        http=HTTP,
        # The address of the client is not used, and a socket in the file system has no
        # address.
        proxy_headers=False,
        ws="none",
        # A warning for each that is no HTTP: any client that reaches the port could
        # fill the operator's log.
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
    return uvicorn.Server(config)
