# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An exporter that does not have every MIG instance is told of; what it says is data, and it cannot fail a task."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import typing as t

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpufleet.mig.plugins.module_utils import node_metrics
from ansible_collections.gpufleet.mig.plugins.module_utils.node_metrics import Compared, Instance
from ansible_collections.gpufleet.mig.plugins.modules import mig_metrics_info

UUID = "GPU-1f027ee8-6e1e-2b8c-0108-3d370e5f0418"


def gpu(*numbers: t.Optional[int], index: int = 0, uuid: str = UUID) -> dict[str, t.Any]:
    instances = [{"id": number, "profile": "1g.5gb", "compute_instances": [{"id": 0}]} for number in numbers]
    return {"index": index, "uuid": uuid, "instances": instances}


def series(number: int, **labels: str) -> str:
    said = {"gpu": "0", "UUID": UUID, "modelName": "NVIDIA A100-SXM4-40GB", "GPU_I_ID": str(number), **labels}
    return "DCGM_FI_DEV_FB_USED{" + ",".join(f'{key}="{value}"' for key, value in said.items()) + "} 12\n"


def of(text: str, *gpus: dict[str, t.Any]) -> Compared:
    return node_metrics.compare(node_metrics.told_by(text), gpus)


@pytest.fixture(name="ask")
def run_module(capsys, monkeypatch):
    """Run the module; what it warned of is in the answer."""
    warned: list[str] = []
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.warn", lambda _module, text: warned.append(text))
    monkeypatch.setattr(node_metrics, "_POLL_SECONDS", 0.01)

    def ask(url: str, **arguments: t.Any) -> dict[str, t.Any]:
        given = {"url": url, "gpus": [gpu(7)], "timeout": 1, **arguments}
        with patch_module_args(given), pytest.raises(SystemExit):
            mig_metrics_info.main()
        return {**json.loads(capsys.readouterr().out), "warned": warned}

    return ask


@contextlib.contextmanager
def exporter(*answers: t.Callable[[http.server.BaseHTTPRequestHandler], object]) -> t.Iterator[str]:
    """Answers request by request, the last one for ever."""
    left = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                (left.pop(0) if len(left) > 1 else left[0])(self)

        def log_message(self, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


def says(text: str) -> t.Callable[[http.server.BaseHTTPRequestHandler], object]:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(text.encode())

    return answer


def trickles(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"#")


@pytest.mark.parametrize("label", ["UUID", "uuid", "gpu_uuid"])
def test_an_instance_is_found_by_the_uuid_of_its_gpu_however_that_is_called(label):
    text = series(7).replace("UUID=", f"{label}=").replace('gpu="0"', 'gpu="5"')
    assert of(text, gpu(7)).right


def test_without_a_uuid_the_number_of_the_gpu_counts():
    text = series(7).replace(f'UUID="{UUID}",', "")
    assert of(text, gpu(7)).right
    assert not of(text, gpu(7, index=1)).right


def test_gpus_may_be_those_of_a_change():
    changed = gpu(7)
    changed["gpu"] = changed.pop("index")
    text = series(7).replace(f'UUID="{UUID}",', "")
    assert of(text, changed).right
    assert of("", changed).missing == ("1g.5gb (GPU 0, GI 7)",)


def test_an_instance_that_no_series_has_is_named_and_so_is_one_that_is_gone():
    found = of(series(7) + series(8), gpu(7, 9))
    assert found.missing == ("1g.5gb (GPU 0, GI 9)",)
    assert found.stale == (f"GI 8 of GPU {UUID.lower()}",)


def test_a_gpu_without_mig_and_its_series_are_no_matter():
    whole = series(7).replace(',GPU_I_ID="7"', "")
    assert "GPU_I_ID" not in whole
    assert of(whole, gpu()).right


def test_of_gpus_that_are_not_asked_about_nothing_is_said():
    assert of(series(7) + series(3, UUID="GPU-other", gpu="1"), gpu(7)).right


def test_an_instance_without_a_compute_instance_has_no_device_and_is_not_expected():
    without = gpu(7)
    without["instances"][0]["compute_instances"] = []
    assert of("", without).right


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "\x00\xff",
        'x{GPU_I_ID="1"} 1',
        'x{gpu="0",GPU_I_ID="-1"} 1',
        'x{gpu="0",GPU_I_ID="' + "9" * 5000 + '"} 1',
        '# x{gpu="0",GPU_I_ID="1"} 1',
        "x{" + 'a="' * 50000,
    ],
)
def test_what_is_no_metric_of_an_instance_is_none(text):
    assert node_metrics.told_by(text) == set()


def test_values_with_quotes_in_them_do_not_end_a_label():
    text = series(7, Hostname='a\\"b,GPU_I_ID=\\"8')
    assert node_metrics.told_by(text) == {Instance(UUID.lower(), 7)}


def test_an_exporter_that_comes_later_is_waited_for(ask):
    with exporter(says(""), says(""), says(series(7))) as url:
        answer = ask(url)
    assert answer["right"]
    assert answer["warned"] == []


def test_one_that_lacks_an_instance_until_the_end_is_a_warning(ask):
    with exporter(says(series(3))) as url:
        answer = ask(url, timeout=0.3)
    assert (answer["right"], answer["missing"]) == (False, ["1g.5gb (GPU 0, GI 7)"])
    (warning,) = answer["warned"]
    assert f"the metrics of {url} lack 1g.5gb (GPU 0, GI 7) and have GI 3 of GPU" in warning
    assert "Look at the log of the exporter, or start it again." in warning


def test_one_that_never_comes_to_an_end_is_given_up(ask):
    with exporter(trickles) as url:
        answer = ask(url, timeout=0.6)
    assert not answer["right"]
    assert "cannot be told: it " in answer["warned"][0]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:1/metrics", "refused"),
        ("file:///etc/passwd", "it is no URL"),
        ("http://user:secret@localhost/", "no password in it"),
        ("localhost:9400", "it is no URL"),
        ("http://[::1/metrics", "Invalid IPv6"),
    ],
)
def test_one_that_cannot_be_read_is_a_warning_and_no_failure(ask, url, why):
    answer = ask(url, timeout=0.1)
    assert "failed" not in answer
    assert not answer["right"]
    assert why in answer["warned"][0]
    assert "secret" not in answer["msg"]


def test_where_it_points_elsewhere_is_not_followed(ask):
    def elsewhere(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "http://127.0.0.1:1/")
        handler.end_headers()

    with exporter(elsewhere) as url:
        assert "302" in ask(url, timeout=0.1)["warned"][0]
