# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plays AWX, as far as its modules ask: an API on loopback that keeps what it is given and records every request.

What it refuses is what AWX 24 refuses of these modules: a token it does not know, a name that is taken, a playbook that
is not in the project, a survey or a schedule that is not well-formed, an object that is not there. What it does not
know it answers with 404. Secrets of a credential are kept and never shown.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import itertools
import json
import re
import threading
import typing as t
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Data = dict[str, t.Any]

ENCRYPTED = "$encrypted$"

# Kind of object -> what it has besides its name, with what AWX puts there if nothing is said.
PROMPTS: Data = {
    "extra_data": {},
    "inventory": None,
    "scm_branch": None,
    "job_type": None,
    "job_tags": None,
    "skip_tags": None,
    "limit": None,
    "diff_mode": None,
    "verbosity": None,
    "execution_environment": None,
    "forks": None,
    "job_slice_count": None,
    "timeout": None,
}
ASKS: Data = {
    f"ask_{name}_on_launch": False
    for name in (
        *("scm_branch", "diff_mode", "variables", "limit", "tags", "skip_tags", "job_type", "verbosity", "inventory"),
        *("credential", "execution_environment", "labels", "forks", "job_slice_count", "timeout", "instance_groups"),
    )
}
FIELDS: dict[str, Data] = {
    "organizations": {"description": ""},
    "credential_types": {"kind": "", "secrets": [], "plain": []},
    "credentials": {"description": "", "organization": None, "credential_type": None, "inputs": {}},
    "execution_environments": {"description": "", "organization": None, "image": "", "credential": None, "pull": ""},
    "projects": {
        "description": "",
        "organization": None,
        "scm_type": "",
        "scm_url": "",
        "scm_branch": "",
        "credential": None,
        "scm_update_on_launch": False,
        "scm_update_cache_timeout": 0,
        "default_environment": None,
        "scm_revision": "",
    },
    "inventories": {
        "description": "",
        "organization": None,
        "kind": "",
        "host_filter": None,
        "variables": "",
    },
    "inventory_sources": {
        "description": "",
        "inventory": None,
        "source": "",
        "source_project": None,
        "source_path": "",
        "execution_environment": None,
        "overwrite": False,
        "overwrite_vars": False,
        "update_on_launch": False,
        "update_cache_timeout": 0,
    },
    "job_templates": {
        "description": "",
        "organization": None,
        "project": None,
        "playbook": "",
        "inventory": None,
        "execution_environment": None,
        "job_type": "run",
        "diff_mode": False,
        "become_enabled": False,
        "forks": 0,
        "verbosity": 0,
        "timeout": 0,
        "limit": "",
        "extra_vars": "",
        "survey_enabled": False,
        "allow_simultaneous": False,
        "job_slice_count": 1,
        **ASKS,
    },
    "workflow_job_templates": {
        "description": "",
        "organization": None,
        "inventory": None,
        "limit": None,
        "extra_vars": "",
        "survey_enabled": False,
        "allow_simultaneous": False,
        **ASKS,
    },
    "workflow_job_template_nodes": {
        "identifier": "",
        "workflow_job_template": None,
        "unified_job_template": None,
        "all_parents_must_converge": False,
        **PROMPTS,
    },
    "workflow_approval_templates": {"description": "", "timeout": 0},
    "schedules": {"description": "", "unified_job_template": None, "rrule": "", "enabled": True, **PROMPTS},
    "notification_templates": {"description": "", "organization": None},
    "instance_groups": {},
}
SINGULAR = {kind: kind[:-1] for kind in FIELDS} | {"inventories": "inventory"}
UNIFIED = ("projects", "inventory_sources", "job_templates", "workflow_job_templates")

# What can be associated with what, by POST to a list below the object.
NOTIFICATIONS = ("notification_templates_started", "notification_templates_success", "notification_templates_error")
LISTS: dict[str, dict[str, str]] = {
    "job_templates": {
        "credentials": "credentials",
        "instance_groups": "instance_groups",
        **dict.fromkeys(NOTIFICATIONS, "notification_templates"),
    },
    "workflow_job_templates": dict.fromkeys(
        (*NOTIFICATIONS, "notification_templates_approvals"), "notification_templates"
    ),
    "workflow_job_template_nodes": dict.fromkeys(
        ("success_nodes", "failure_nodes", "always_nodes"), "workflow_job_template_nodes"
    ),
}

ANSWER_TYPES: dict[str, type] = {"text": str, "textarea": str, "multiplechoice": str, "integer": int, "float": float}


class Refused(Exception):
    """An answer that is not 2xx."""

    def __init__(self, status: int, **body: t.Any) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


class Asked(t.NamedTuple):
    """One request. ``body`` is what was sent; the secret of whoever asked is not kept."""

    method: str
    path: str
    body: Data


class Awx:
    """The state, and the rules that it keeps to. ``url`` is where it listens between ``start`` and ``stop``."""

    def __init__(self, token: str, *, users: dict[str, str] | None = None, playbooks: t.Iterable[str] = ()) -> None:
        self.token = token
        self.users = users or {}
        self.playbooks = set(playbooks)
        self.update_of_project = "successful"
        self.asked: list[Asked] = []
        self.objects: dict[str, dict[int, Data]] = {kind: {} for kind in FIELDS}
        self.surveys: dict[int, Data] = {}
        self.associations: dict[tuple[int, str], list[int]] = {}
        self.tokens: dict[int, str] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        for name, kind, secrets, plain in (
            ("Machine", "ssh", ["password", "ssh_key_data"], ["username"]),
            ("Source Control", "scm", ["password", "ssh_key_data"], ["username"]),
            ("Container Registry", "registry", ["password"], ["host", "username"]),
        ):
            self.add("credential_types", name, kind=kind, secrets=secrets, plain=plain)

    # --- for tests ----------------------------------------------------------------------------------------------

    def add(self, where: str, name: str, **fields: t.Any) -> Data:
        """Something that is there before anybody asks."""
        return self._create(where, {"name": name, **fields})

    def named(self, kind: str, name: str) -> Data:
        """The one object of this name; a node's name is its identifier."""
        (found,) = [item for item in self.objects[kind].values() if name in (item.get("name"), item.get("identifier"))]
        return found

    def names(self, kind: str) -> list[str]:
        return sorted(item.get("identifier") or item["name"] for item in self.objects[kind].values())

    def survey(self, template: str) -> dict[str, Data]:
        """The questions of a template, by variable."""
        kinds = ("job_templates", "workflow_job_templates")
        (item,) = [i for kind in kinds for i in self.objects[kind].values() if i["name"] == template]
        return {question["variable"]: question for question in self.surveys[item["id"]]["spec"]}

    def related(self, item: Data, name: str) -> list[str]:
        """Names of what is associated with an object."""
        everything = {i: thing for kind in self.objects.values() for i, thing in kind.items()}
        found = [everything[number] for number in self.associations.get((item["id"], name), [])]
        return sorted(thing.get("identifier") or thing["name"] for thing in found)

    def writes(self) -> list[Asked]:
        """What changed something, without the comings and goings of tokens."""
        return [asked for asked in self.asked if asked.method != "GET" and "/tokens/" not in asked.path]

    def forget(self) -> None:
        self.asked.clear()

    def copy(self) -> Awx:
        """Another one in the same state."""
        other = Awx(self.token, users=self.users, playbooks=self.playbooks)
        for name in ("objects", "surveys", "associations"):
            setattr(other, name, copy.deepcopy(getattr(self, name)))
        other._ids = itertools.count(1 + max(number for kind in self.objects.values() for number in kind))
        return other

    # --- the API ------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, query: dict[str, str], body: Data, authorization: str) -> tuple[int, Data]:
        """Status and body of an answer."""
        with self._lock:
            self.asked.append(Asked(method, path, body))
            try:
                parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
                if parts[:2] != ["api", "v2"] or len(parts) < 3:
                    raise Refused(404, detail="Not found.")
                self._check_who_asks(parts[2:], authorization)
                return self._route(method, parts[2:], query, body)
            except Refused as refused:
                return refused.status, refused.body

    def _check_who_asks(self, parts: list[str], authorization: str) -> None:
        kind, _space, value = authorization.partition(" ")
        if kind == "Bearer" and value in (self.token, *self.tokens.values()):
            return
        if kind == "Basic" and parts[0] == "tokens":
            user, _colon, password = base64.b64decode(value).decode().partition(":")
            if self.users.get(user) == password:
                return
        raise Refused(401, detail="Authentication credentials were not provided.")

    def _route(self, method: str, parts: list[str], query: dict[str, str], body: Data) -> tuple[int, Data]:
        kind = parts[0]
        if kind == "tokens":
            return self._token(method, parts, body)
        if kind == "project_updates" and method == "GET":
            if self.update_of_project == "successful":
                self._get("projects", parts[1])["scm_revision"] = "1" * 40
            return 200, {"id": int(parts[1]), "status": self.update_of_project}
        if kind == "unified_job_templates" and len(parts) == 1:
            return 200, self._page(self._search(UNIFIED, query))
        if kind not in FIELDS:
            raise Refused(404, detail="Not found.")
        if len(parts) == 1:
            if method == "GET":
                return 200, self._page(self._search((kind,), query))
            return 201, self._show(kind, self._create(kind, body))
        item = self._get(kind, parts[1])
        if len(parts) == 2:
            if method == "PATCH":
                self._change(kind, item, body)
            return 200, self._show(kind, item)
        return self._below(method, kind, item, parts[2], body)

    def _token(self, method: str, parts: list[str], body: Data) -> tuple[int, Data]:
        if method == "DELETE":
            self.tokens.pop(int(parts[1]), None)
            return 204, {}
        number = next(self._ids)
        self.tokens[number] = f"made-for-a-password-{number}"
        return 201, {"id": number, "token": self.tokens[number]}

    def _below(self, method: str, kind: str, item: Data, name: str, body: Data) -> tuple[int, Data]:
        """What is below an object: its survey, its associations, the approval of a node."""
        if name == "survey_spec" and kind in ("job_templates", "workflow_job_templates"):
            if method == "POST":
                check_survey(body)
                self.surveys[item["id"]] = body
                return 200, {}
            return 200, self.surveys.get(item["id"], {})
        if name == "create_approval_template" and kind == "workflow_job_template_nodes" and method == "POST":
            approval = self._create("workflow_approval_templates", body)
            item["unified_job_template"] = approval["id"]
            return 201, self._show("workflow_approval_templates", approval)
        if name not in LISTS.get(kind, {}):
            raise Refused(404, detail="Not found.")
        numbers = self.associations.setdefault((item["id"], name), [])
        other = LISTS[kind][name]
        if method == "GET":
            return 200, self._page([(other, self.objects[other][number]) for number in numbers])
        number = self._get(other, str(body["id"]))["id"]
        if body.get("disassociate"):
            numbers.remove(number)
        else:
            if other == "credentials":
                self._check_credential_of_job(self.objects[other][number])
            numbers.append(number)
        return 204, {}

    # --- objects ------------------------------------------------------------------------------------------------

    def _get(self, kind: str, number: str) -> Data:
        with contextlib.suppress(KeyError, ValueError):
            return self.objects[kind][int(number)]
        raise Refused(404, detail="Not found.")

    def _search(self, kinds: t.Iterable[str], query: dict[str, str]) -> list[tuple[str, Data]]:
        wanted = {name: value for name, value in query.items() if name not in ("page", "page_size", "order_by")}
        either = {name.removeprefix("or__"): wanted.pop(name) for name in list(wanted) if name.startswith("or__")}
        return [
            (kind, item)
            for kind in kinds
            for item in self.objects[kind].values()
            if all(str(self._field(kind, item, name)) == value for name, value in wanted.items())
            and (not either or any(str(self._field(kind, item, name)) == value for name, value in either.items()))
        ]

    def _field(self, kind: str, item: Data, name: str) -> t.Any:
        if name == "type":
            return SINGULAR[kind]
        if name == "organization" and kind == "inventory_sources":
            return self.objects["inventories"][item["inventory"]]["organization"]
        if name not in item:
            raise Refused(400, detail=f"{SINGULAR[kind]} has no field named '{name}'")
        return item[name]

    def _page(self, found: list[tuple[str, Data]]) -> Data:
        return {"count": len(found), "next": None, "results": [self._show(kind, item) for kind, item in found]}

    def _show(self, kind: str, item: Data) -> Data:
        url = f"/api/v2/{kind}/{item['id']}/"
        related = {"survey_spec": f"{url}survey_spec/"}
        if item.get("unified_job_template") in self.objects["workflow_approval_templates"]:
            related["unified_job_template"] = f"/api/v2/workflow_approval_templates/{item['unified_job_template']}/"
        shown = {"type": SINGULAR[kind], "url": url, "related": related, "summary_fields": {}, **item}
        if kind == "projects" and not item["scm_revision"]:
            shown["summary_fields"] = {"current_update": {"id": item["id"], "status": "pending"}}
        if kind == "credentials":
            secret = self.objects["credential_types"][item["credential_type"]]["secrets"]
            shown["inputs"] = {
                name: ENCRYPTED if name in secret and value else value for name, value in item["inputs"].items()
            }
        return shown

    def _create(self, kind: str, body: Data) -> Data:
        item: Data = {"id": next(self._ids), **json.loads(json.dumps(FIELDS[kind]))}
        if kind != "workflow_job_template_nodes":
            item["name"] = ""
        self._change(kind, item, body)
        self.objects[kind][item["id"]] = item
        return item

    def _change(self, kind: str, item: Data, body: Data) -> None:
        changed = dict(item)
        for name in item.keys() & body.keys() - {"id"}:
            # As its serializers do: null is an empty text where there can be no null.
            changed[name] = "" if body[name] is None and FIELDS[kind].get(name, "") == "" else body[name]
        self._check(kind, changed)
        item.update(changed)

    def _check(self, kind: str, item: Data) -> None:
        if "name" in item:
            same = [
                other
                for other in self.objects[kind].values()
                if other["id"] != item["id"]
                and [other["name"], other.get("organization"), other.get("inventory"), other.get("credential_type")]
                == [item["name"], item.get("organization"), item.get("inventory"), item.get("credential_type")]
            ]
            if same and kind != "workflow_approval_templates":
                raise Refused(400, __all__=[f"{SINGULAR[kind]} with this name already exists."])
        if kind == "credentials":
            self._check_inputs(item)
        if kind == "job_templates":
            if not self.objects["projects"][item["project"]]["scm_revision"] or item["playbook"] not in self.playbooks:
                raise Refused(400, playbook=["Playbook not found for project."])
            json.loads(item["extra_vars"] or "{}")
        if kind == "schedules":
            check_rule(item["rrule"])
        if kind in ("schedules", "workflow_job_template_nodes"):
            self._check_prompts(item)

    def _check_inputs(self, item: Data) -> None:
        kind = self._get("credential_types", str(item["credential_type"]))
        unknown = item["inputs"].keys() - {*kind["secrets"], *kind["plain"]}
        if unknown:
            raise Refused(400, inputs={name: [f"'{name}' is not allowed"] for name in unknown})

    def _check_credential_of_job(self, credential: Data) -> None:
        kind = self.objects["credential_types"][credential["credential_type"]]["kind"]
        if kind not in ("ssh", "vault", "cloud", "net", "kubernetes"):
            raise Refused(400, detail=f"Cannot assign a Credential of kind `{kind}`.")

    def _check_prompts(self, item: Data) -> None:
        """A value can only be given in advance where the template asks for it at its launch."""
        template = self.objects["job_templates"].get(item["unified_job_template"] or 0)
        for field, prompt in (("limit", "ask_limit_on_launch"), ("job_type", "ask_job_type_on_launch")):
            if item[field] and not (template and template[prompt]):
                raise Refused(400, **{field: ["Field is not configured to prompt on launch."]})
        asked = {q["variable"] for q in self.surveys.get(item["unified_job_template"] or 0, {}).get("spec", [])}
        if item["extra_data"].keys() - asked:
            raise Refused(400, extra_data=["Variables are not allowed on launch."])

    # --- the listener -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def listening(self) -> t.Iterator[str]:
        """Its URL, as long as it listens."""
        awx = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                target = urllib.parse.urlsplit(self.path)
                sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, body = awx.answer(
                    self.command,
                    target.path,
                    dict(urllib.parse.parse_qsl(target.query)),
                    json.loads(sent or "{}"),
                    self.headers.get("Authorization", ""),
                )
                answer = b"" if status == 204 else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("X-API-Product-Name", "AWX")
                self.send_header("X-API-Product-Version", "24.6.1")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_any

            def log_message(self, *_arguments: t.Any) -> None:
                """Nothing: the requests are in ``asked``."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def check_survey(survey: Data) -> None:
    """As AWX checks a survey; the first thing that is wrong is its answer."""
    types: dict[str, type] = {"name": str, "description": str, "spec": list}
    for field, kind in types.items():
        if not isinstance(survey.get(field), kind):
            raise Refused(400, error=f"Field '{field}' is missing from survey spec.")
    if not survey["spec"]:
        raise Refused(400, error="'spec' doesn't contain any items.")
    seen: set[str] = set()
    for number, question in enumerate(survey["spec"]):
        types = {"type": str, "question_name": str, "variable": str, "required": bool}
        for field, kind in types.items():
            if not isinstance(question.get(field), kind):
                raise Refused(400, error=f"'{field}' missing from survey question {number}")
        if question["variable"] in seen or " " in question["variable"]:
            raise Refused(400, error=f"'variable' '{question['variable']}' duplicated in survey question {number}.")
        seen.add(question["variable"])
        if question["type"] not in ANSWER_TYPES:
            raise Refused(400, error=f"'{question['type']}' in survey question {number} is not an allowed type.")
        default = question.get("default", "")
        if default != "" and (not isinstance(default, ANSWER_TYPES[question["type"]]) or isinstance(default, bool)):
            raise Refused(400, error=f"Default value {default} in survey question {number} has another type.")
        for limit in ("min", "max"):
            if question.get(limit) is not None and not isinstance(question[limit], int):
                raise Refused(400, error=f"The {limit} limit in survey question {number} expected to be integer.")
        if question["type"] == "multiplechoice":
            if not isinstance(question.get("choices"), list) or not question["choices"]:
                raise Refused(400, error=f"Survey question {number} of type multiplechoice must specify choices.")
            if "default" in question and default not in question["choices"]:
                raise Refused(400, error="Default choice must be answered from the choices listed.")


def check_rule(rule: str) -> None:
    """The part of AWX's rules for schedules that people trip over."""
    if not re.match(r"DTSTART(;TZID=[\w/+-]+:\d{8}T\d{6}|:\d{8}T\d{6}Z)[ \n]", rule):
        raise Refused(400, rrule=["Valid DTSTART required in rrule. Value should start with: DTSTART:YYYYMMDDTHHMMSSZ"])
    if "RRULE:" not in rule:
        raise Refused(400, rrule=["One or more rule required in rrule."])
    if "INTERVAL=" not in rule and "SECONDLY" not in rule:
        raise Refused(400, rrule=["INTERVAL required in rrule."])
