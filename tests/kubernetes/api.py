# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Kubernetes API on loopback, kept in memory: what the Python client and kubernetes.core talk to in tests.

There are no controllers and no kubelet in it, as there are none in kube-apiserver: kubelet.py plays those, over HTTP
like everybody else.

    with Api() as api:
        api.write_kubeconfig(path)
        api.fail("/api/v1/nodes/node-1", verb="patch", code=409, times=2)
        ...
        assert api.writes == []

Requests of the stand-ins (their user agent says so) are recorded like all others, but they are no ``writes``, and no
fault and no hook is for them: what a test orders is for the client that it tests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import re
import select
import socket
import sys
import threading
import time
import typing as t
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ansible_collections.gpufleet.mig.tests.kubernetes.store import (
    RESOURCES,
    VERBS,
    Data,
    RefusedError,
    Store,
    Where,
    about,
    bad_request,
    is_selected,
    json_patch,
    merge_patch,
    ordered,
    resource_named,
    unknown_here,
)

VERSION = {"major": "1", "minor": "34", "gitVersion": "v1.34.0", "platform": "linux/amd64"}
STAND_IN = "stand-in"  # how the user agent of everything begins that plays a part of the cluster
READING = ("get", "list", "watch")


class NoAnswerError(Exception):
    """Raised by a hook: the connection ends without an answer, as when the server dies."""


# --- requests and what a test orders for them -------------------------------------------------------------------


@dataclasses.dataclass
class Request:
    """A request as it was recorded. ``number`` counts those of clients under test; stand-ins have 0."""

    verb: str
    path: str
    query: dict[str, str]
    body: t.Any
    user_agent: str
    content_type: str = ""
    number: int = 0
    code: int = 0

    @property
    def of_a_stand_in(self) -> bool:
        return self.user_agent.startswith(STAND_IN)

    @property
    def manager(self) -> str:
        """Whose change it is, as the server calls a client that does not say so itself."""
        return self.user_agent.partition("/")[0] or "unknown"

    @property
    def dry_run(self) -> bool:
        return "dryRun" in self.query

    @property
    def is_write(self) -> bool:
        return self.verb not in READING and not self.dry_run

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


@dataclasses.dataclass
class Fault:
    """What is to happen to the next ``times`` requests of this verb to a path that matches this pattern."""

    pattern: str
    verb: str
    times: int
    code: int
    hang: float
    drop: bool
    carried_out: bool

    def is_for(self, request: Request) -> bool:
        return (
            self.times > 0
            and fnmatch.fnmatchcase(request.path, self.pattern)
            and fnmatch.fnmatchcase(request.verb, self.verb)
        )


Hook = t.Callable[[Request], object]


class Api:
    """The server. A context manager; ``url`` and ``write_kubeconfig`` tell clients where it is."""

    def __init__(self, without: t.Collection[str] = (), token: str = "test-token") -> None:
        """``without`` are API groups that the cluster lacks: ``nvidia.com`` where there is no operator."""
        self.resources = [resource for resource in RESOURCES if resource.group not in without]
        self.token = token
        self.store = Store()
        self.asked: list[Request] = []
        self.before_each: Hook | None = None
        self.after_each: Hook | None = None
        self.closing = threading.Event()
        self._faults: list[Fault] = []
        self._acts: list[tuple[int, t.Callable[[], object], bool]] = []
        self._count = 0
        self._lock = threading.Lock()
        for name in ("default", "kube-node-lease", "kube-public", "kube-system"):
            self.store.create(Where(resource_named("namespaces")), {"metadata": {"name": name}})
        self._server = Server(("127.0.0.1", 0), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Api:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.closing.set()
        with self.store.changed:
            self.store.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def write_kubeconfig(self, path: Path) -> Path:
        """For any client: YAML, written as JSON."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config, indent=2))
        path.chmod(0o600)
        return path

    # What a test orders

    def fail(
        self,
        pattern: str,
        *,
        verb: str = "*",
        times: int = 1,
        code: int = 0,
        hang: float = 0.0,
        drop: bool = False,
        carried_out: bool = False,
    ) -> None:
        """Have the next requests to matching paths fail: with this code, after a while, or without an answer.

        A request that only hangs is carried out afterwards. With ``carried_out`` the others are, too: the client is
        told of a failure, or nothing, although its wish came true.
        """
        with self._lock:
            self._faults.append(Fault(pattern, verb, times, code, hang, drop, carried_out))

    def at(self, number: int, act: t.Callable[[], object], carried_out: bool = True) -> None:
        """Have something happen when the request of this number, counted from now on, arrives.

        ``api.at(3, lambda: os.killpg(run.pid, signal.SIGKILL))`` kills a client that has just made its third request;
        without ``carried_out`` the request dies with it.
        """
        with self._lock:
            self._acts.append((self._count + number, act, carried_out))

    def delete_at(self, number: int, path: str) -> None:
        """Have the object at this path gone when the request of this number, from now on, is answered."""
        where = self.where(path)

        def act() -> None:
            with contextlib.suppress(RefusedError):
                self.store.delete(where, {"gracePeriodSeconds": 0})

        self.at(number, act)

    def compact(self) -> None:
        """Forget the past: who watches from an older version is told that it expired."""
        with self.store.changed:
            self.store.oldest = self.store.version

    # What a test asks

    @property
    def requests(self) -> list[Request]:
        """Those of clients under test."""
        return [request for request in self.asked if not request.of_a_stand_in]

    @property
    def writes(self) -> list[Request]:
        """Those of clients under test that would change something, also when they were refused."""
        return [request for request in self.requests if request.is_write]

    def forget(self) -> None:
        """Start the record, the count and the orders anew."""
        with self._lock:
            self.asked.clear()
            self._faults.clear()
            self._acts.clear()
            self._count = 0

    # What the handler asks

    def record(self, request: Request) -> None:
        """Writes a request down and does what was ordered for its number."""
        with self._lock:
            self.asked.append(request)
            if request.of_a_stand_in:
                return
            self._count += 1
            request.number = self._count
            due = [one for one in self._acts if one[0] == request.number]
        for _number, act, carried_out in due:
            act()
            if not carried_out:
                raise NoAnswerError

    def fault_for(self, request: Request) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if not request.of_a_stand_in and fault.is_for(request):
                    fault.times -= 1
                    return fault
        return None

    def where(self, path: str) -> Where:
        """What a path means; 404 if nothing."""
        found = re.fullmatch(r"/(api/v1|apis/[^/]+/[^/]+)/(?:namespaces/([^/]+)/)?([^/]+)(?:/([^/]+))?(?:/(.+))?", path)
        if found:
            api_version = found.group(1).removeprefix("apis/").removeprefix("api/")
            namespace, plural, name, subresource = (urllib.parse.unquote(text or "") for text in found.groups()[1:])
            if namespace and plural == "status":  # /api/v1/namespaces/NAME/status
                plural, name, subresource, namespace = "namespaces", namespace, "status", ""
            for resource in self.resources:
                fits = resource.namespaced or not namespace
                if (resource.api_version, resource.plural) == (api_version, plural) and fits:
                    if subresource and subresource not in resource.subresources:
                        break
                    if resource.namespaced and name and not namespace:
                        break
                    return Where(resource, namespace, name, subresource)
        raise RefusedError(404, "NotFound", "the server could not find the requested resource", {})

    def discovery(self, path: str) -> Data | None:
        """The answer to questions about the API itself."""
        if path == "/version":
            return VERSION
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        versions = sorted({resource.api_version for resource in self.resources})
        if path == "/apis":
            groups = []
            for version in versions:
                if "/" in version:
                    name, _slash, number = version.partition("/")
                    told = {"groupVersion": version, "version": number}
                    groups.append({"name": name, "versions": [told], "preferredVersion": told})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        version = path.removeprefix("/apis/" if path.count("/") == 3 else "/api/")
        if version not in versions:
            return None
        listed = []
        for resource in self.resources:
            if resource.api_version == version:
                entry = {"singularName": resource.kind.lower(), "namespaced": resource.namespaced}
                listed.append({**entry, "name": resource.plural, "kind": resource.kind, "verbs": VERBS})
                for name in resource.subresources:
                    verbs = ["get", "patch", "update"] if name == "status" else ["create"]
                    kind = {"eviction": "Eviction", "binding": "Binding"}.get(name, resource.kind)
                    sub = {**entry, "singularName": "", "name": f"{resource.plural}/{name}", "kind": kind}
                    listed.append({**sub, "verbs": verbs})
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}


# --- HTTP -------------------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], api: Api) -> None:
        super().__init__(address, Handler)
        self.api = api

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:
        """A client that was killed is no news; anything else is a mistake in here."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, *_words: t.Any) -> None:
        """Requests are recorded, not printed."""

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def do_PUT(self) -> None:
        self.answer("PUT")

    def do_PATCH(self) -> None:
        self.answer("PATCH")

    def do_DELETE(self) -> None:
        self.answer("DELETE")

    def answer(self, method: str) -> None:
        """One request: recorded, perhaps made to fail as a test ordered, carried out, answered."""
        api = self.server.api
        request = self.read(method)
        try:
            api.record(request)
            if not request.of_a_stand_in and api.before_each:
                api.before_each(request)
            fault = api.fault_for(request)
            if fault and fault.hang:
                api.closing.wait(fault.hang)
            if fault and (fault.code or fault.drop) and not fault.carried_out:
                self.break_down(request, fault)
                return
            if request.verb == "watch":
                self.watch(request)
                return
            code, body = self.carry_out(request)
            if not request.of_a_stand_in and api.after_each:
                api.after_each(request)
            if fault and (fault.code or fault.drop):
                self.break_down(request, fault)
                return
            self.send(request, code, body)
        except NoAnswerError:
            self.hang_up()

    def break_down(self, request: Request, fault: Fault) -> None:
        if fault.drop:
            self.hang_up()
            return
        if fault.code == 429:  # as API priority and fairness says it: not a Status, unlike a disruption budget's
            self.send(request, 429, "Too many requests, please try again later.\n", retry_after=1)
            return
        where = None
        with contextlib.suppress(RefusedError):
            where = self.server.api.where(request.path)
        refused = ordered(fault.code, where.resource if where else None, where.name if where else "")
        self.send(request, refused.code, refused.body)

    def read(self, method: str) -> Request:
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = raw.decode(errors="replace")
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}[method]
        named = True
        with contextlib.suppress(RefusedError):
            named = bool(self.server.api.where(parts.path).name)
        if verb == "get" and not named:
            verb = "watch" if query.get("watch", "").lower() in ("true", "1") else "list"
        if verb == "delete" and not named:
            verb = "deletecollection"
        content_type = self.headers.get("Content-Type", "").partition(";")[0]
        return Request(verb, parts.path, query, body, self.headers.get("User-Agent", ""), content_type)

    def carry_out(self, request: Request) -> tuple[int, t.Any]:
        api = self.server.api
        try:
            if request.path in ("/healthz", "/livez", "/readyz"):
                return 200, "ok"
            if self.headers.get("Authorization") != f"Bearer {api.token}":
                raise RefusedError(401, "Unauthorized", "Unauthorized")
            told = api.discovery(request.path)
            if told is not None:
                return 200, told
            known = ("/" + version for resource in api.resources for version in [resource.api_version])
            group = request.path.removeprefix("/apis").removeprefix("/api")
            if not group.startswith(tuple(known)):
                return 404, "404 page not found\n"
            return getattr(self, f"do_{request.verb}")(request, api.where(request.path))  # type: ignore[no-any-return]
        except RefusedError as refused:
            return refused.code, refused.body

    # The verbs

    def do_get(self, request: Request, where: Where) -> tuple[int, t.Any]:
        return 200, self.server.api.store.get(where)

    def do_list(self, request: Request, where: Where) -> tuple[int, t.Any]:
        selectors = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        found, version = self.server.api.store.select(where, *selectors)
        resource = where.resource
        if not resource.custom:  # the entries of a list of built-in objects do not say what they are
            found = [{key: value for key, value in obj.items() if key not in ("apiVersion", "kind")} for obj in found]
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return 200, {**head, "metadata": {"resourceVersion": str(version)}, "items": found}

    def do_create(self, request: Request, where: Where) -> tuple[int, t.Any]:
        store = self.server.api.store
        body = self.object_in(request)
        if where.subresource == "eviction":
            return 201, store.evict(where, body, request.dry_run)
        if where.subresource == "binding":
            return 201, store.bind(where, body)
        if where.name or (where.resource.namespaced and not where.namespace):
            message = "the server does not allow this method on the requested resource"
            raise RefusedError(405, "MethodNotAllowed", message, {})
        return 201, store.create(where, body, request.dry_run, request.manager)

    def do_update(self, request: Request, where: Where) -> tuple[int, t.Any]:
        body = self.object_in(request)
        store = self.server.api.store
        return 200, store.change(where, lambda _old: body, True, request.dry_run, request.manager)

    def do_patch(self, request: Request, where: Where) -> tuple[int, t.Any]:
        patch = request.body
        makers: dict[str, t.Callable[[Data], Data]] = {
            "application/json-patch+json": lambda old: json_patch(old, patch),
            "application/merge-patch+json": lambda old: merge_patch(old, patch),
        }
        if not where.resource.custom:
            makers["application/strategic-merge-patch+json"] = lambda old: merge_patch(old, patch, strategic=True)
        if request.content_type == "application/apply-patch+yaml":
            raise unknown_here("server-side apply")
        if request.content_type not in makers:
            types = ", ".join([*makers, "application/apply-patch+yaml"])
            message = f"the body of the request was in an unknown format - accepted media types include: {types}"
            raise RefusedError(415, "UnsupportedMediaType", message, {})
        if not isinstance(patch, list if "json-patch" in request.content_type else dict):
            raise bad_request("the patch is not of the form that its Content-Type says")
        store = self.server.api.store
        return 200, store.change(where, makers[request.content_type], dry_run=request.dry_run, manager=request.manager)

    def do_delete(self, request: Request, where: Where) -> tuple[int, t.Any]:
        options = dict(request.body or {})
        if "gracePeriodSeconds" in request.query:
            options.setdefault("gracePeriodSeconds", int(request.query["gracePeriodSeconds"]))
        dry_run = request.dry_run or bool(options.get("dryRun"))
        gone = self.server.api.store.delete(where, options, dry_run)
        if where.resource.kind in ("Pod", "Namespace"):
            return 200, gone
        details = {**about(where.resource, where.name), "uid": gone["metadata"]["uid"]}
        return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    def do_deletecollection(self, request: Request, where: Where) -> tuple[int, t.Any]:
        code, listed = self.do_list(request, where)
        for obj in listed["items"]:
            one = where._replace(namespace=obj["metadata"].get("namespace", ""), name=obj["metadata"]["name"])
            with contextlib.suppress(RefusedError):
                self.server.api.store.delete(one, request.body, request.dry_run)
        return code, listed

    def object_in(self, request: Request) -> Data:
        if not isinstance(request.body, dict):
            raise bad_request("couldn't get version/kind; json parse error")
        return request.body

    # Answers

    def send(self, request: Request, code: int, body: t.Any, retry_after: int = 0) -> None:
        request.code = code
        text = isinstance(body, str)
        raw = body.encode() if text else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; charset=utf-8" if text else "application/json")
        self.send_header("Content-Length", str(len(raw)))
        details = None if text else body.get("details")
        if isinstance(details, dict):
            retry_after = details.get("retryAfterSeconds", 0)
        if retry_after:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(raw)

    def hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def watch(self, request: Request) -> None:
        """Tells what happens to objects, line by line, until the client has enough."""
        code, first = self.carry_out(dataclasses.replace(request, verb="list"))
        if code != 200:
            self.send(request, code, first)
            return
        where = self.server.api.where(request.path)
        request.code = 200
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        asked = request.query.get("resourceVersion") or "0"
        position = int(asked)
        if asked == "0":
            position = int(first["metadata"]["resourceVersion"])
            head = {"apiVersion": where.resource.api_version, "kind": where.resource.kind}
            for obj in first["items"]:
                self.tell("ADDED", {**head, **obj})
        seconds = float(request.query.get("timeoutSeconds") or 1800)
        self.tell_on(where, request, position, time.monotonic() + seconds)
        with contextlib.suppress(OSError):
            self.wfile.write(b"0\r\n\r\n")

    def tell_on(self, where: Where, request: Request, position: int, deadline: float) -> None:
        api, store = self.server.api, self.server.api.store
        selectors = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")

        def seen(obj: Data | None) -> bool:
            return obj is not None and is_selected(where, obj, *selectors)

        while not api.closing.is_set() and time.monotonic() < deadline:
            with store.changed:
                expired = position < store.oldest
                events = store.events[position:]  # every version is one event
                if not events and not expired:
                    store.changed.wait(min(0.5, max(deadline - time.monotonic(), 0)))
            if expired:
                message = f"too old resource version: {position} ({store.oldest})"
                self.tell("ERROR", RefusedError(410, "Expired", message).body)
                return
            if not events and self.client_is_gone():
                return
            for event in events:
                position = event.version
                if event.resource != where.resource or not (seen(event.old) or seen(event.new)):
                    continue
                kind = "DELETED" if not seen(event.new) else "MODIFIED" if seen(event.old) else "ADDED"
                told = event.new or {**(event.old or {})}
                if event.new is None:
                    told["metadata"] = {**told["metadata"], "resourceVersion": str(event.version)}
                self.tell(kind, told)

    def tell(self, kind: str, obj: Data) -> None:
        line = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def client_is_gone(self) -> bool:
        readable, _writable, _broken = select.select([self.connection], [], [], 0)
        try:
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True
