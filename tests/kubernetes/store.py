# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The objects of a Kubernetes API in memory, and the rules by which kube-apiserver keeps them.

Status codes and bodies are those of kube-apiserver, because they are what an adapter has to tell apart: 404, the two
kinds of 409, 415, 422, 429 with its budget. What is not known here is answered with 501 and says so, so that nothing
passes by accident. HTTP, and what a test orders, is in api.py.
"""

from __future__ import annotations

import copy
import datetime
import re
import secrets
import threading
import typing as t
import uuid

Data = dict[str, t.Any]


class Resource(t.NamedTuple):
    """A kind of object, as discovery tells it. ``unconditional``: may be replaced without a resourceVersion."""

    api_version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    unconditional: bool = True

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def qualified(self) -> str:
        """As messages name it: ``nodes``, ``daemonsets.apps``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def custom(self) -> bool:
        return self.group == "nvidia.com"


RESOURCES = (
    Resource("v1", "configmaps", "ConfigMap"),
    Resource("v1", "events", "Event"),
    Resource("v1", "namespaces", "Namespace", False, ("status",)),
    Resource("v1", "nodes", "Node", False, ("status",)),
    Resource("v1", "pods", "Pod", True, ("status", "eviction", "binding")),
    Resource("v1", "secrets", "Secret"),
    Resource("v1", "serviceaccounts", "ServiceAccount"),
    Resource("v1", "services", "Service", True, ("status",)),
    Resource("apps/v1", "daemonsets", "DaemonSet", True, ("status",)),
    Resource("apps/v1", "deployments", "Deployment", True, ("status",)),
    Resource("apps/v1", "replicasets", "ReplicaSet", True, ("status",)),
    Resource("nvidia.com/v1", "clusterpolicies", "ClusterPolicy", False, ("status",), unconditional=False),
    Resource("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("status",), unconditional=False),
    Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Resource("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", False),
    Resource("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding"),
    Resource("rbac.authorization.k8s.io/v1", "roles", "Role"),
    Resource("resource.k8s.io/v1", "deviceclasses", "DeviceClass", False),
    Resource("resource.k8s.io/v1", "resourceslices", "ResourceSlice", False),
)
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]

# Besides metadata.name and metadata.namespace, which select everywhere.
FIELDS = {
    "pods": ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase"),
    "nodes": ("spec.unschedulable",),
    "resourceslices": ("spec.nodeName", "spec.driver"),
    "events": ("involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "reason", "type"),
}

# Lists that a strategic merge patch merges, by what their entries are called by. All others it replaces.
MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumes": "name",
}

LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'{LABEL_VALUE.pattern}')"
)
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NAME_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{NAME.pattern}')"
)
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{QUALIFIED.pattern}')"
)
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
PRECONDITIONS = (
    ("uid", "UID", "The object might have been deleted and then recreated"),
    ("resourceVersion", "ResourceVersion", "The object might have been modified"),
)
CREATED = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
TWO_BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
OVER_BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


# --- what goes wrong --------------------------------------------------------------------------------------------


class RefusedError(Exception):
    """An answer that is an error: a ``Status`` as kube-apiserver writes it."""

    def __init__(self, code: int, reason: str, message: str, details: Data | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.body: Data = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }
        if not reason:
            del self.body["reason"]
        if details is None:
            del self.body["details"]


def not_found(resource: Resource, name: str) -> RefusedError:
    return RefusedError(404, "NotFound", f'{resource.qualified} "{name}" not found', about(resource, name))


def already_exists(resource: Resource, name: str) -> RefusedError:
    return RefusedError(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', about(resource, name))


def conflict(resource: Resource, name: str, why: str = MODIFIED) -> RefusedError:
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return RefusedError(409, "Conflict", message, about(resource, name))


def invalid(kind: str, name: str, group: str, field: str, why: str) -> RefusedError:
    cause = {"reason": "FieldValueInvalid", "message": why, "field": field}
    details = without_nothing({"name": name, "group": group, "kind": kind, "causes": [cause]})
    return RefusedError(422, "Invalid", f'{kind} "{name}" is invalid: {field}: {why}', details)


def bad_request(message: str) -> RefusedError:
    return RefusedError(400, "BadRequest", message)


def unknown_here(what: str) -> RefusedError:
    """Not an answer of kube-apiserver: the test needs more than this server can."""
    return RefusedError(501, "NotImplemented", f"tests/kubernetes/api.py does not know {what}")


def over_budget(name: str, why: str, retry_after: int = 0) -> RefusedError:
    details = {"causes": [{"reason": "DisruptionBudget", "message": f"The disruption budget {name} {why}"}]}
    return RefusedError(
        429, "TooManyRequests", OVER_BUDGET, without_nothing({**details, "retryAfterSeconds": retry_after})
    )


def ordered(code: int, resource: Resource | None, name: str) -> RefusedError:
    """The answer that a test ordered, in the server's words where it has some."""
    if code == 409 and resource:
        return conflict(resource, name)
    reasons = {401: "Unauthorized", 403: "Forbidden", 503: "ServiceUnavailable"}
    messages = {
        401: "Unauthorized",
        403: f'{resource.qualified if resource else "it"} "{name}" is forbidden: User "test" cannot do this',
        500: "Internal error occurred: etcdserver: request timed out",
        503: "the server is currently unable to handle the request",
    }
    return RefusedError(code, reasons.get(code, "InternalError"), messages.get(code, f"ordered by a test: {code}"))


def about(resource: Resource, name: str) -> Data:
    return without_nothing({"name": name, "group": resource.group, "kind": resource.plural})


def without_nothing(values: Data) -> Data:
    return {key: value for key, value in values.items() if value}


# --- selectors --------------------------------------------------------------------------------------------------


def matches_labels(expression: str, labels: dict[str, str]) -> bool:
    """Whether labels match a selector in its written form: ``a=b,c!=d,e,!f,g in (h,i),j notin (k)``."""
    for part in filter(None, (part.strip() for part in re.split(r",(?![^(]*\))", expression))):
        found = re.fullmatch(
            r"(!?)([\w./-]+)|([\w./-]+)\s*(==|=|!=)\s*([\w.-]*)|([\w./-]+)\s+(in|notin)\s*\((.*)\)", part
        )
        if not found:
            raise bad_request(f"unable to parse requirement: {part!r}")
        absent, key, equal_key, operator, value, set_key, set_operator, values = found.groups()
        if key:
            wrong = (key in labels) == bool(absent)
        elif operator:
            wrong = (labels.get(equal_key) == value) == (operator == "!=")
        else:
            listed = {value.strip() for value in values.split(",")}
            wrong = (labels.get(set_key) in listed) == (set_operator == "notin")
        if wrong:
            return False
    return True


def matches_selector(selector: Data | None, labels: dict[str, str]) -> bool:
    """Whether labels match a selector in its object form. An empty one matches nothing, as in a budget."""
    if not selector or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    tests = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, values: key in labels,
        "DoesNotExist": lambda key, values: key not in labels,
    }
    wanted = selector.get("matchExpressions") or []
    return all(tests[one["operator"]](one["key"], one.get("values") or []) for one in wanted)


def check_fields(resource: Resource, expression: str) -> None:
    """Refuses a field selector that the server has not for this kind."""
    for part in filter(None, expression.split(",")):
        field = re.split("!=|==|=", part)[0]
        if field not in ("metadata.name", "metadata.namespace", *FIELDS.get(resource.plural, ())):
            if resource.plural in FIELDS:
                raise bad_request(f"field label not supported: {field}")
            known = 'only "metadata.name", "metadata.namespace"'
            raise bad_request(f'"{field}" is not a known field selector: {known}')


def matches_fields(expression: str, obj: Data) -> bool:
    for part in filter(None, expression.split(",")):
        field, operator, value = re.fullmatch(r"([^=!]*)(==|!=|=|$)(.*)", part).groups()  # type: ignore[union-attr]
        current: t.Any = obj
        for step in field.split("."):
            current = (current or {}).get(step)
        text = str(current or "").lower() if isinstance(current, bool) or current is None else str(current)
        if field == "spec.unschedulable" and current is None:
            text = "false"
        if (text == value) == (operator == "!="):
            return False
    return True


# --- patches ----------------------------------------------------------------------------------------------------


def merge_patch(old: t.Any, patch: t.Any, strategic: bool = False) -> t.Any:
    """RFC 7386; or, with ``strategic``, Kubernetes' own, which merges some lists."""
    if not isinstance(patch, dict):
        return patch
    if strategic and patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if strategic and key.startswith("$"):
            if key.startswith("$setElementOrder/"):
                continue
            raise unknown_here(f"{key} in a strategic merge patch")
        if value is None:
            new.pop(key, None)
        elif strategic and key in MERGE_KEYS and isinstance(value, list):
            new[key] = merge_lists(new.get(key) or [], value, MERGE_KEYS[key])
        elif strategic and key == "finalizers" and isinstance(value, list):
            new[key] = list(dict.fromkeys([*(new.get(key) or []), *value]))
        else:
            new[key] = merge_patch(new.get(key), value, strategic)
    return new


def merge_lists(old: list[Data], patch: list[Data], merge_key: str) -> list[Data]:
    merged = {entry.get(merge_key): entry for entry in old}
    for entry in patch:
        if merge_key not in entry:
            raise bad_request(f"map: {entry} does not contain declared merge key: {merge_key}")
        if entry.get("$patch") == "delete":
            merged.pop(entry[merge_key], None)
        else:
            merged[entry[merge_key]] = merge_patch(merged.get(entry[merge_key]), entry, strategic=True)
    return list(merged.values())


def json_patch(old: Data, operations: list[Data]) -> Data:
    """RFC 6902. An operation that does not fit is a 422 that does not say more, as kube-apiserver's."""
    document = {"": copy.deepcopy(old)}
    try:
        for operation in operations:
            one_operation(document, operation)
    except (KeyError, IndexError, ValueError, TypeError):
        message = "the server rejected our request due to an error in our request"
        raise RefusedError(422, "Invalid", message, {}) from None
    return document[""]


def one_operation(document: Data, operation: Data) -> None:
    kind, value = operation["op"], operation.get("value")
    if kind in ("move", "copy"):
        holder, last = place(document, operation["from"])
        value = copy.deepcopy(holder[last])
        if kind == "move":
            del holder[last]
        kind = "add"
    holder, last = place(document, operation["path"])
    if kind == "test":
        if (holder[last] if isinstance(holder, list) else holder.get(last)) != value:
            raise ValueError
    elif kind == "add" and isinstance(holder, list):
        holder.insert(len(holder) if last == "-" else int(last), value)
    elif kind == "remove":
        del holder[last]
    elif kind in ("add", "replace"):
        if kind == "replace":
            holder[last]
        holder[last] = value
    else:
        raise ValueError(kind)


def place(document: Data, pointer: str) -> tuple[t.Any, t.Any]:
    """The container that a JSON pointer leads to, and the last step in it."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]
    holder: t.Any = document
    for step in steps[:-1]:
        holder = holder[int(step)] if isinstance(holder, list) else holder[step]
    last = steps[-1]
    return holder, int(last) if isinstance(holder, list) and last != "-" else last


# --- what the server adds to an object and refuses in it --------------------------------------------------------


def checked(resource: Resource, obj: Data, old: Data | None = None, patch: bool = False) -> Data:
    """An object as it is stored: quantities as text, defaults filled in. What no server takes is refused."""
    for field, holder in texts_in(resource, obj):
        for value in holder.values():
            if not isinstance(value, str):
                raise not_a_string(resource, field, value, patch)
    for field, text, why in mistakes_in(resource, obj, old):
        raise invalid(resource.kind, obj["metadata"]["name"], resource.group, field, f'Invalid value: "{text}": {why}')
    if resource.kind == "Pod":
        fill_pod(obj["spec"])
    if resource.kind == "Node":
        for field in ("capacity", "allocatable"):
            with_text(obj.get("status") or {}, field)
    if resource.kind == "DaemonSet":
        fill_pod(obj["spec"]["template"].setdefault("spec", {}))
        obj["spec"].setdefault("revisionHistoryLimit", 10)
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
        obj["spec"].setdefault("updateStrategy", rolling)
    return obj


def texts_in(resource: Resource, obj: Data) -> t.Iterator[tuple[str, Data]]:
    """Everything whose values have to be text, with its Go name: YAML makes numbers and booleans of some."""
    for field in ("labels", "annotations"):
        yield f"ObjectMeta.metadata.{field}", obj["metadata"].get(field) or {}
    if resource.kind == "ConfigMap":
        yield "ConfigMap.data", obj.get("data") or {}
    for path, spec in pod_specs_in(resource, obj):
        for container in spec.get("containers") or []:
            for variable in container.get("env") or []:
                yield f"EnvVar.{path}.containers.env.value", {"value": variable.get("value", "")}


def pod_specs_in(resource: Resource, obj: Data) -> t.Iterator[tuple[str, Data]]:
    if resource.kind == "Pod":
        yield "spec", obj["spec"]
    if resource.kind == "DaemonSet":
        yield "spec.template.spec", (obj["spec"].get("template") or {}).get("spec") or {}


def mistakes_in(resource: Resource, obj: Data, old: Data | None) -> t.Iterator[tuple[str, str, str]]:
    """Field, value and reason of what validation refuses; of all that it refuses, what templates get wrong."""
    metadata = obj["metadata"]
    if not NAME.fullmatch(metadata["name"]) and not resource.group.startswith("rbac."):
        yield "metadata.name", metadata["name"], NAME_RULE
    for field in ("labels", "annotations"):
        for key in metadata.get(field) or {}:
            prefix, _slash, name = key.rpartition("/")
            if (prefix and not NAME.fullmatch(prefix)) or not QUALIFIED.fullmatch(name) or len(name) > 63:
                yield f"metadata.{field}", key, QUALIFIED_RULE
    for value in (metadata.get("labels") or {}).values():
        if len(value) > 63:
            yield "metadata.labels", value, "must be no more than 63 bytes"
        if not LABEL_VALUE.fullmatch(value):
            yield "metadata.labels", value, LABEL_VALUE_RULE
    if resource.kind == "DaemonSet":
        selector = obj["spec"].get("selector")
        labels = ((obj["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {}
        if old and selector != old["spec"]["selector"]:
            yield "spec.selector", str(selector), "field is immutable"
        if not matches_selector(selector, labels):
            yield "spec.template.metadata.labels", str(labels), "`selector` does not match template `labels`"


def not_a_string(resource: Resource, field: str, value: t.Any, patch: bool) -> RefusedError:
    if patch:
        return invalid("", "", "", "patch", 'Invalid value: "map[...]": unrecognized type: string')
    kind = {bool: "bool", int: "number", float: "number", list: "array"}.get(type(value), "object")
    version = resource.api_version.rpartition("/")[2]
    return bad_request(
        f'{resource.kind} in version "{version}" cannot be handled as a {resource.kind}: json: cannot unmarshal {kind} '
        f"into Go struct field {field} of type string"
    )


def fill_pod(spec: Data) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        container.setdefault("imagePullPolicy", "IfNotPresent")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        resources = container.setdefault("resources", {})
        for field in ("limits", "requests"):
            with_text(resources, field)
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}


def with_text(holder: Data, field: str) -> None:
    if holder.get(field):
        holder[field] = {name: str(amount) for name, amount in holder[field].items()}


def initial_status(resource: Resource, obj: Data) -> Data | None:
    """What a new object's status is, whatever the client said."""
    if resource.kind == "Node":
        return t.cast(Data, obj.get("status") or {})
    if resource.kind == "Pod":
        return {"phase": "Pending", "qosClass": "BestEffort"}
    if resource.kind == "Namespace":
        return {"phase": "Active"}
    if resource.custom:
        return None
    return {} if "status" in resource.subresources else obj.get("status")


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- the store --------------------------------------------------------------------------------------------------


class Where(t.NamedTuple):
    """What a path means. ``name`` is empty for a collection, ``namespace`` for all namespaces."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.resource.qualified, self.namespace, self.name


class Event(t.NamedTuple):
    version: int
    resource: Resource
    old: Data | None
    new: Data | None


class Store:
    """The objects, and everything that happened to them. Every method is one transaction."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.objects: dict[tuple[str, str, str], Data] = {}
        self.events: list[Event] = []
        self.version = 0
        self.oldest = 0  # versions up to this one are compacted

    def get(self, where: Where) -> Data:
        with self.changed:
            if where.key not in self.objects:
                raise not_found(where.resource, where.name)
            return copy.deepcopy(self.objects[where.key])

    def select(self, where: Where, labels: str = "", fields: str = "") -> tuple[list[Data], int]:
        def wanted(obj: Data) -> bool:
            return is_selected(where, obj, labels, fields)

        check_fields(where.resource, fields)
        with self.changed:
            kind = where.resource.qualified
            found = [obj for key, obj in sorted(self.objects.items()) if key[0] == kind and wanted(obj)]
            return copy.deepcopy(found), self.version

    def create(self, where: Where, obj: Data, dry_run: bool = False, manager: str = "") -> Data:
        resource = where.resource
        obj = copy.deepcopy(obj)
        metadata = obj["metadata"] = dict(obj.get("metadata") or {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        name = metadata.get("name", "")
        if not name:
            raise invalid(
                resource.kind, "", resource.group, "metadata.name", "Required value: name or generateName is required"
            )
        if metadata.get("namespace", where.namespace) != where.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        obj.setdefault("apiVersion", resource.api_version)
        obj.setdefault("kind", resource.kind)
        if (obj["apiVersion"], obj["kind"]) != (resource.api_version, resource.kind):
            raise bad_request(f"{obj['kind']} in version {obj['apiVersion']!r} cannot be handled as a {resource.kind}")
        if resource.namespaced:
            metadata["namespace"] = where.namespace
        if resource.kind == "Namespace":
            metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = name
        if resource.kind in ("Node", "Pod", "DaemonSet"):
            obj.setdefault("spec", {})
        status = initial_status(resource, obj)
        obj.pop("status", None)
        if status is not None:
            obj["status"] = status
        with self.changed:
            if resource.namespaced and ("namespaces", "", where.namespace) not in self.objects:
                raise not_found(resource_named("namespaces"), where.namespace)
            if (resource.qualified, where.namespace, name) in self.objects:
                raise already_exists(resource, name)
            checked(resource, obj)
            metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now())
            metadata.pop("resourceVersion", None)
            if resource.custom or resource.kind in ("DaemonSet", "Deployment", "PodDisruptionBudget", "Pod"):
                metadata["generation"] = 1
            note_manager({"metadata": {}}, obj, manager)
            return self._put(where._replace(name=name), None, obj, dry_run)

    def change(
        self,
        where: Where,
        make: t.Callable[[Data], Data],
        replace: bool = False,
        dry_run: bool = False,
        manager: str = "",
    ) -> Data:
        """Replaces an object by what ``make`` makes of it: a patch, or (``replace``) what the client sent."""
        resource = where.resource
        with self.changed:
            old = self.get(where)
            new = make(copy.deepcopy(old))
            metadata = new["metadata"] = dict(new.get("metadata") or {})
            if metadata.get("name", where.name) != where.name:
                raise bad_request(
                    f"the name of the object ({metadata['name']}) does not match the name on the URL ({where.name})"
                )
            version = metadata.get("resourceVersion")
            if replace and not version and not resource.unconditional:
                why = "Invalid value: 0: must be specified for an update"
                raise invalid(resource.qualified, where.name, "", "metadata.resourceVersion", why)
            if version and version != old["metadata"]["resourceVersion"]:
                raise conflict(resource, where.name)
            for field in ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion"):
                keep(metadata, old["metadata"], field)
            for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
                keep(metadata, old["metadata"], field)
            keep(new, old, "apiVersion")
            keep(new, old, "kind")
            if where.subresource == "status":
                keep(new, old, "spec")
            elif "status" in resource.subresources:
                keep(new, old, "status")
            checked(resource, new, old, patch=not replace)
            if "generation" in metadata and new.get("spec") != old.get("spec"):
                metadata["generation"] += 1
            if new == old:
                return old  # nothing to say to those who watch
            note_manager(old, new, manager)
            return self._put(where, old, new, dry_run)

    def delete(self, where: Where, options: Data | None = None, dry_run: bool = False) -> Data:
        """Deletes an object; a pod on a node only gets its deletionTimestamp unless its grace period is zero."""
        options = options or {}
        with self.changed:
            old = self.get(where)
            metadata = old["metadata"]
            for field, text, what in PRECONDITIONS:
                wanted = (options.get("preconditions") or {}).get(field, metadata[field])
                if wanted != metadata[field]:
                    why = f"the {text} in the precondition ({wanted}) does not match the {text} in record "
                    # Here, of all places, the server says the kind instead of the resource.
                    kind = where.resource._replace(plural=where.resource.kind)
                    raise conflict(kind, where.name, f"{why}({metadata[field]}). {what}")
            grace = grace_period(where.resource, old, options.get("gracePeriodSeconds"))
            if grace <= 0:
                return self._put(where, old, None, dry_run)
            if "deletionTimestamp" in metadata and grace >= metadata["deletionGracePeriodSeconds"]:
                return old
            new = copy.deepcopy(old)
            ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=grace)
            new["metadata"].update(
                deletionTimestamp=ends.strftime("%Y-%m-%dT%H:%M:%SZ"), deletionGracePeriodSeconds=grace
            )
            return self._put(where, old, new, dry_run)

    def evict(self, where: Where, eviction: Data, dry_run: bool) -> Data:
        """Deletes a pod if its disruption budget allows it."""
        name = (eviction.get("metadata") or {}).get("name", "")
        if name != where.name:
            raise bad_request("name in URL does not match name in Eviction object")
        options = eviction.get("deleteOptions") or {}
        dry_run = dry_run or bool(options.get("dryRun"))
        with self.changed:
            pod = self.get(where)
            ended = pod["status"].get("phase") in ("Succeeded", "Failed", "Pending")
            if not ended and "deletionTimestamp" not in pod["metadata"]:
                budgets = self._budgets_of(pod)
                if len(budgets) > 1:
                    raise RefusedError(500, "", TWO_BUDGETS)
                for budget in budgets:
                    self._take_from(budget, pod, dry_run)
            self.delete(where, options, dry_run)
        return dict(CREATED)

    def _budgets_of(self, pod: Data) -> list[Data]:
        budgets = Where(resource_named("poddisruptionbudgets"), pod["metadata"]["namespace"])
        labels = pod["metadata"].get("labels") or {}
        found, _version = self.select(budgets)
        return [one for one in found if matches_selector((one.get("spec") or {}).get("selector"), labels)]

    def _take_from(self, budget: Data, pod: Data, dry_run: bool) -> None:
        metadata, status = budget["metadata"], budget.get("status") or {}
        healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        if not is_ready(pod) and healthy >= desired > 0:
            return
        if status.get("observedGeneration", 0) < metadata["generation"]:
            raise over_budget(metadata["name"], "is still being processed by the server.", retry_after=10)
        if status.get("disruptionsAllowed", 0) <= 0:
            raise over_budget(metadata["name"], f"needs {desired} healthy pods and has {healthy} currently")
        disrupted = {**(status.get("disruptedPods") or {}), pod["metadata"]["name"]: now()}
        left = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1, "disruptedPods": disrupted}
        where = Where(resource_named("poddisruptionbudgets"), metadata["namespace"], metadata["name"], "status")
        self.change(where, lambda old: {**old, "status": left}, dry_run=dry_run)

    def bind(self, where: Where, binding: Data) -> Data:
        target = binding["target"]["name"]

        def bound(pod: Data) -> Data:
            if pod["spec"].get("nodeName"):
                raise conflict(where.resource, where.name, f'pod {where.name} is already assigned to node "{target}"')
            return {**pod, "spec": {**pod["spec"], "nodeName": target}}

        self.change(where._replace(subresource=""), bound)
        return dict(CREATED)

    def _put(self, where: Where, old: Data | None, new: Data | None, dry_run: bool) -> Data:
        """Stores a new object, or that there is none any more; what the client gets to see."""
        if dry_run:
            return copy.deepcopy(new or old or {})
        self.version += 1
        shown = copy.deepcopy(new or old or {})
        shown["metadata"]["resourceVersion"] = str(self.version)
        if new is None:
            del self.objects[where.key]
        else:
            self.objects[where.key] = shown
        self.events.append(Event(self.version, where.resource, old, None if new is None else shown))
        self.changed.notify_all()
        return copy.deepcopy(shown)


def note_manager(old: Data, new: Data, manager: str) -> None:
    """Notes who has changed an object, and when; of the fields only labels, which each have one manager."""
    if not manager:
        return
    labels, before = (each["metadata"].get("labels") or {} for each in (new, old))
    taken = {f"f:{name}" for name in {*labels, *before} if labels.get(name) != before.get(name)}
    kept: dict[str, tuple[str, Data]] = {}
    for entry in new["metadata"].get("managedFields") or []:
        owned = entry["fieldsV1"]["f:metadata"]["f:labels"]
        kept[entry["manager"]] = (entry["time"], {field: {} for field in owned if field not in taken})
    mine = {**kept.get(manager, ("", {}))[1], **{f"f:{name}": {} for name in labels if f"f:{name}" in taken}}
    kept[manager] = (now(), mine)
    new["metadata"]["managedFields"] = [
        {"manager": name, "operation": "Update", "time": time, "fieldsV1": {"f:metadata": {"f:labels": owned}}}
        for name, (time, owned) in kept.items()
    ]


def keep(new: Data, old: Data, field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def is_selected(where: Where, obj: Data, labels: str, fields: str) -> bool:
    if where.namespace and obj["metadata"].get("namespace") != where.namespace:
        return False
    return matches_labels(labels, obj["metadata"].get("labels") or {}) and matches_fields(fields, obj)


def is_ready(pod: Data) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def grace_period(resource: Resource, obj: Data, asked: int | None) -> int:
    if resource.kind != "Pod" or not obj["spec"].get("nodeName"):
        return 0
    if obj["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    if asked is None:
        asked = obj["metadata"].get("deletionGracePeriodSeconds", obj["spec"]["terminationGracePeriodSeconds"])
    return max(asked, 0)


def resource_named(plural: str) -> Resource:
    return next(resource for resource in RESOURCES if resource.plural == plural)
