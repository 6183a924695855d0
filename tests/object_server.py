"""A server that speaks S3 on this machine: moto's, in a thread, with a bucket of its
own per test module.
"""

import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

_NUMBERS = itertools.count(1)


@contextmanager
def object_server() -> Iterator[str]:
    """Run the server, and let this process and those that it starts find it; give the
    URL of a bucket.

    Parts of an upload have 5 MiB, the least that S3 allows, so that small files are
    uploaded in parts too.
    """
    server_module = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request
    server = server_module.ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    envs = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "something",
        "AWS_DEFAULT_REGION": "us-east-1",
        "FSSPEC_S3": '{"default_block_size": 5242880}',
    }
    try:
        with mock.patch.dict(os.environ, envs):
            from fsspec.config import conf, set_conf_env

            before = dict(conf)
            set_conf_env(conf)  # read once, when fsspec is imported
            s3fs.S3FileSystem.clear_instance_cache()
            # what moto keeps is the process's, not the server's
            bucket = f"training-{next(_NUMBERS)}"
            s3fs.S3FileSystem().mkdir(bucket)
            yield f"s3://{bucket}"
            conf.clear()
            conf.update(before)
            s3fs.S3FileSystem.clear_instance_cache()
    finally:
        server.stop()
