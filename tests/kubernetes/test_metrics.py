"""What the dashboard shows and the monitors scrape is there: the pages of a real server with a member are asked for it."""
import json
import os
import pathlib
import re
import subprocess
import urllib.request

import pytest
from resources import FOLDER, find, load

DASHBOARD = json.loads((FOLDER / "monitoring/dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# Labels that Prometheus adds: by the cluster, and by the ServiceMonitor.
ADDED = {"namespace", "pod", "training_job", "longhaul_dev_role"}


def expressions():
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["label"], variable["query"], ""


def names(expression):
    return set(re.findall(r"\blonghaul_(?!dev_)\w+", expression))


def labels(expression, legend):
    found = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)) | set(re.findall(r"{{(\w+)}}", legend))
    for group in re.findall(r"(?:by|on)\s*\(([^)]*)\)", expression):
        found |= {word.strip() for word in group.split(",")}
    return found


@pytest.fixture(scope="module")
def page():
    """{metric: its labels} of a server's page while a member trains."""
    longhaul = pytest.importorskip("longhaul")
    numpy = pytest.importorskip("numpy")
    if "LONGHAUL_PROGRAMS" not in os.environ:
        pytest.skip("LONGHAUL_PROGRAMS names no folder of programs")
    process = subprocess.Popen(
        [str(pathlib.Path(os.environ["LONGHAUL_PROGRAMS"]) / "longhaul-server"), "--listen", "127.0.0.1:0", "--workers", "1", "--insecure",
         "--progress", "json", "--metrics", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        said = {}
        for line in process.stdout:
            event = json.loads(line)
            said[event["event"]] = event.get("address")
            if {"metrics", "listening"} <= said.keys():
                break
        with longhaul.connect(join=said["listening"], insecure=True) as client:
            tensor = client.declare("w", 1000)
            client.push_pull(tensor, numpy.ones(1000, numpy.float32), numpy.zeros(1000, numpy.float32)).wait(30)
            text = urllib.request.urlopen(f"http://{said['metrics']}/metrics", timeout=30).read().decode()
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()
    found = {}
    for name, values in re.findall(r"^(longhaul_\w+)(?:{(.*)})? \S+$", text, re.M):
        found.setdefault(name, set()).update(re.findall(r"(\w+)=\"", values))
    return found


def test_every_metric_of_the_dashboard_exists(page):
    asked = {(title, name) for title, expression, _ in expressions() for name in names(expression)}
    assert len(asked) > 30
    assert sorted((title, name) for title, name in asked if name not in page) == []


def test_every_label_of_the_dashboard_exists(page):
    for title, expression, legend in expressions():
        of_metrics = set().union(*(page.get(name, set()) for name in names(expression)))
        assert labels(expression, legend) <= of_metrics | ADDED, title


def test_counters_are_asked_for_their_rate_and_states_are_not(page):
    for title, expression, _ in expressions():
        for name in names(expression):
            inside = re.search(r"(?:rate|increase)\(%s\b" % name, expression) is not None
            assert inside == name.endswith("_total"), (title, name)


def test_the_pages_for_users_name_what_exists(page):
    """The how-to's rules ask for the same kinds of names."""
    asked = names((FOLDER.parents[1] / "docs/howto/probes_and_metrics.md").read_text(encoding="utf-8"))
    assert asked and asked <= page.keys()


def test_panels_are_told_apart_and_do_not_overlap():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_expressions_have_balanced_brackets():
    for title, expression, _ in expressions():
        plain = re.sub(r'"[^"]*"', "", expression)
        assert all(plain.count(a) == plain.count(b) for a, b in ("()", "{}", "[]")), title


def test_monitors_look_for_labels_and_ports_that_there_are():
    jobs, operator = load("monitoring/servicemonitor.yaml")
    assert jobs["spec"]["selector"]["matchExpressions"] == [{"key": "longhaul.dev/job", "operator": "Exists"}]
    assert ADDED >= {relabelling["targetLabel"] for endpoint in jobs["spec"]["endpoints"] for relabelling in endpoint["relabelings"]
                     if "targetLabel" in relabelling}
    service = find("Service", "longhaul-operator")
    assert operator["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {endpoint["port"] for endpoint in operator["spec"]["endpoints"]} <= {port["name"] for port in service["spec"]["ports"]}
