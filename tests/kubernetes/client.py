# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A client of a Kubernetes API for the tests' own needs: the stand-ins and what a test prepares and looks at.

Everything comes from a kubeconfig, so that the same test runs against api.py and against a real server. It is not
the Python client ``kubernetes``: that is what the code under test uses, and nothing here may lean on its ideas.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import threading
import typing as t
import urllib.parse
from pathlib import Path

import yaml

Data = dict[str, t.Any]

MERGE = "application/merge-patch+json"


class ApiError(Exception):
    """An answer that is an error; ``body`` is its Status."""

    def __init__(self, code: int, body: t.Any) -> None:
        super().__init__(f"{code}: {body.get('message') if isinstance(body, dict) else body}")
        self.code = code
        self.body = body


class Client:
    """Objects by path: ``client.get("/api/v1/nodes/node-1")``. May be used by several threads."""

    def __init__(self, kubeconfig: Path, user_agent: str = "stand-in") -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        self.cluster = config["clusters"][0]["cluster"]
        self.headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}", "User-Agent": user_agent}
        self.mine = threading.local()

    # The verbs

    def get(self, path: str) -> Data:
        return self._ask("GET", path)

    def find(self, path: str) -> Data | None:
        """The object, or None if there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def select(self, path: str, **selectors: str) -> list[Data]:
        """The objects of a collection that ``labelSelector`` and ``fieldSelector`` choose."""
        return t.cast("list[Data]", self.get(f"{path}?{urllib.parse.urlencode(selectors)}")["items"])

    def create(self, path: str, body: Data) -> Data:
        return self._ask("POST", path, body)

    def replace(self, path: str, body: Data) -> Data:
        return self._ask("PUT", path, body)

    def patch(self, path: str, body: Data) -> Data:
        return self._ask("PATCH", path, body, MERGE)

    def delete(self, path: str, **options: t.Any) -> Data:
        return self._ask("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    def delete_if_there(self, path: str, **options: t.Any) -> None:
        """Delete an object that may be gone, or be another one of the same name, by now."""
        try:
            self.delete(path, **options)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    def watch(self, path: str, seen: t.Callable[[Data], object], stop: threading.Event, seconds: int = 300) -> None:
        """Calls ``seen`` with every event from now on until ``stop`` is set and one more event came, or time is up."""
        connection = self._connect(timeout=seconds + 10.0)
        with contextlib.closing(connection):
            connection.request("GET", f"{path}?watch=true&timeoutSeconds={seconds}", headers=self.headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ApiError(answer.status, answer.read().decode(errors="replace"))
            while not stop.is_set():
                line = answer.readline()
                if not line:
                    return
                seen(json.loads(line))

    # HTTP

    def _connect(self, timeout: float = 30.0) -> http.client.HTTPConnection:
        server = urllib.parse.urlsplit(self.cluster["server"])
        host, port = server.hostname or "", server.port
        if server.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout)
        authority = self.cluster.get("certificate-authority-data")
        context = ssl.create_default_context(cadata=base64.b64decode(authority).decode() if authority else None)
        if self.cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)

    def _ask(self, method: str, path: str, body: Data | None = None, content_type: str = "application/json") -> Data:
        headers = {**self.headers, "Content-Type": content_type}
        raw = None if body is None else json.dumps(body).encode()
        for attempt in (1, 2):
            connection = getattr(self.mine, "connection", None) or self._connect()
            self.mine.connection = connection
            try:
                connection.request(method, path, raw, headers)
                answer = connection.getresponse()
                text = answer.read()
                break
            except (http.client.HTTPException, OSError):
                # A kept connection may have ended meanwhile. Only what changes nothing is asked again.
                connection.close()
                self.mine.connection = None
                if method != "GET" or attempt == 2:
                    raise
        told = json.loads(text) if "json" in (answer.getheader("Content-Type") or "") else text.decode()
        if answer.status >= 400:
            raise ApiError(answer.status, told)
        return t.cast(Data, told)


def path_of(obj: Data, collection: bool = False) -> str:
    """Where an object lives: its kind's plural is what English makes of it."""
    version, kind = obj["apiVersion"], obj["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("s") else f"{kind}s"
    namespace = obj["metadata"].get("namespace")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    folder = f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"
    return folder if collection else f"{folder}/{obj['metadata']['name']}"
