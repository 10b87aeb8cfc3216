"""`autotune fleet` as a person uses it: on this machine, and on a Ray cluster of two nodes; with what goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.fleet import require_understood
from autotune.errors import UsageError
from autotune.fleet import Campaign, Ending, MachineKind, Plan
from autotune.results.files import write_document
from autotune.results.result import read_result
from autotune.search.interrupts import Stop
from autotune.sessions.fleet_run import FleetRequest, FleetRun
from tests.factories import make_result
from tests.inside import run_inside
from tests.processes import ROOT, budget, run, slowness

TINY = "mine:build"
SECRETIVE = ("python", "train.py", "--hf-token", "abc")
LOCAL = 'engine = "local"\n[machines.cheap]\ndollars_per_hour = 0.1\n[machines.dear]\ndollars_per_hour = 3.0\n'


def fleet_file(text: str, folder: Path) -> str:
    """A fleet's file."""
    path = folder / "fleet.toml"
    path.write_text(text)
    return str(path)


def workload_in(folder: Path) -> str:
    """A workload of the user's own working directory, which must be sent along."""
    (folder / "mine.py").write_text((ROOT / "tests" / "workloads" / "tiny.py").read_text())
    return "mine:build"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "expected --model"),
        (["--model", TINY, "--", "python", "train.py"], "and not both"),
        (["--model", TINY, "--", "--out=x.json"], "--out=x.json is an option that the fleet itself passes"),
        (["--model", TINY, "--", "--dry-run"], "--dry-run is for a single tuning: a machine would tune nothing"),
        (["--model", TINY, "--", "--version"], "--version is for a single tuning: a machine would tune nothing"),
        (["--model", TINY, "--", "--resume"], "--resume is for a single tuning: each job starts in a new folder"),
        (["--model", TINY, "--address", "auto"], "--address names a Ray cluster, but the engine is local; leave it"),
        (["--model", TINY, "--", "--onyl=precision"], "the options of cheap: No such option: --onyl"),
        (["--model", TINY, "--", "--only=precison"], "the options of cheap: --only:"),
        (
            ["--model", TINY, "--", "--objective=speed"],
            "the options of cheap: --objective: expected one of samples_per_second,",
        ),
        (["--model", TINY, "--budget", "soon"], "expected a duration"),
        (["--model", TINY, "--samples", "many"], "--samples: expected a number"),
        (["--model", TINY, "--engine", "pbs"], "engine"),
    ],
)
def test_wrong_arguments_cost_nothing(arguments: list[str], told: str, tmp_path: Path) -> None:
    """One sentence, and nothing was sent anywhere or written."""
    finished = run_inside(["fleet", fleet_file(LOCAL, tmp_path), *arguments], tmp_path)
    assert finished.status == 2, finished.err
    assert told in " ".join(finished.err.split())
    assert not (tmp_path / "results").exists()


def test_no_machine_patches_the_script(tmp_path: Path) -> None:
    """All share it."""
    plan = Plan(engine="local", machines={"any": MachineKind(options=("--patch",))})
    with pytest.raises(UsageError, match="--patch is for a single tuning: all machines would write into the same"):
        FleetRequest.of(plan, tmp_path, require_understood, model="", budget="10m", others=("python", "train.py"))


def test_a_failed_cross_is_not_a_missing_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome names the machine whose config was not measured."""
    plan = Plan(engine="local", machines={"one": MachineKind(), "two": MachineKind()})
    request = FleetRequest.of(plan, tmp_path, require_understood, model="a:build", budget="10m", others=())
    run = FleetRun(request, print, Stop())
    run._paths = dict.fromkeys(plan.machines, tmp_path)
    monkeypatch.setattr(Campaign, "run", lambda self, _job: [Ending(machine, "failed") for machine in self.kinds])
    run._engine = None  # type: ignore[assignment]
    outcomes = [(ending.machine, ending.outcome) for ending in run.cross()]
    assert outcomes == [("one", "did not measure the config of two"), ("two", "did not measure the config of one")]


def test_all_options_of_a_machine_are_understood() -> None:
    """Of a build() and of a script, whose own words are none of autotune's."""
    machines = {"any": MachineKind(options=("--device=mps", "--sampler", "tpe", "--pin", "num_workers<=2"))}
    plan = Plan(engine="local", machines=machines)
    for model, others in (("a:build", ["--evaluation"]), ("", ["python", "train.py", "--onyl"])):
        request = FleetRequest.of(plan, Path("nowhere"), require_understood, model=model, budget="10m", others=others)
        assert request.extra == (("--evaluation",) if model else ())


@pytest.mark.parametrize(
    ("model", "others", "last"), [("a:build", (), ["--model=a:build"]), ("", SECRETIVE, ["--", *SECRETIVE])]
)
def test_a_cross_on_a_machine_gets_the_target_or_the_whole_command(
    model: str, others: tuple[str, ...], last: list[str], tmp_path: Path
) -> None:
    """With the secrets that no result keeps, and without --trust."""
    plan = Plan(engine="local", machines={"one": MachineKind(), "two": MachineKind()})
    request = FleetRequest.of(plan, tmp_path, require_understood, model=model, budget="10m", others=others)
    run = FleetRun(request, print, Stop())
    for machine in plan.machines:
        run._paths[machine] = tmp_path / f"{machine}.json"
        write_document(make_result(), run._paths[machine])
    arguments = run._crossing("one", "two").arguments
    assert [*arguments[-len(last) :]] == last
    assert "--trust" not in arguments


def test_a_fleets_names_hold_the_device_that_is_asked_for(tmp_path: Path) -> None:
    """For all machines or for one, in either spelling."""
    machines = {"one": MachineKind(), "two": MachineKind(options=("--device=cuda",))}
    plan = Plan(engine="local", machines=machines)
    others = ["--device", "cpu"]
    request = FleetRequest.of(plan, tmp_path, require_understood, model="a:build", budget="10m", others=others)
    assert [request.place(machine).name for machine in machines] == ["a-build-cpu.json", "a-build-cuda.json"]


def test_a_fleet_replaces_no_other_file(tmp_path: Path) -> None:
    """Neither a result's place nor the page's is taken, and nothing is sent."""
    place = tmp_path / "results" / "cheap" / "mine-build.json"
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    for path in (place, tmp_path / "results" / "fleet.html"):
        path.write_text("mine")
        finished = run_inside(["fleet", fleet_file(LOCAL, tmp_path), "--model", TINY], tmp_path)
        assert finished.status == 2
        assert f"{path.name} is neither" in " ".join(finished.err.split())
        path.unlink()


def test_a_partial_result_leaves_the_complete_one(tmp_path: Path) -> None:
    """The message names both files; a complete result replaces the earlier one."""
    plan = Plan(engine="local", machines={"one": MachineKind()})
    request = FleetRequest.of(plan, tmp_path, require_understood, model="a:build", budget="10m", others=())
    run, home = FleetRun(request, print, Stop()), request.place("one")
    beside = home.with_stem(f"{home.stem}-partial")
    for status, path in (("partial", home), ("complete", home), ("partial", beside), ("complete", home)):
        result = make_result().model_copy(update={"status": status})
        message = run._keep_result("one", result.model_dump_json(by_alias=True))
        assert read_result(path).status == status
        assert (f"{beside}; the earlier result stays in {home}" in message) == (path == beside)
    assert read_result(beside).status == "partial"


@pytest.mark.slow
def test_a_fleet_of_processes_is_tuned_crossed_and_compared(tmp_path: Path) -> None:
    """Two kinds at once, which begin with what was there; results come home by name, and the cheaper one is named."""
    plan = fleet_file(LOCAL, tmp_path)
    before = tmp_path / "results" / "cheap" / "mine-build.json"
    write_document(make_result(), before)
    arguments = ["fleet", plan, "--model", workload_in(tmp_path), "--budget", budget(12), "--cross", "--samples", "1M"]
    finished = run([*arguments, "--", "--only=precision,num_threads"], tmp_path)
    assert finished.status == 0, finished.err
    assert finished.left == ()
    results = {name: read_result(tmp_path / "results" / name / "mine-build.json") for name in ("cheap", "dear")}
    assert {name: result.machine for name, result in results.items()} == {"cheap": "cheap", "dear": "dear"}
    assert results["dear"].dollars_per_hour == 3.0
    assert [start.source for start in results["dear"].search.warm_start] == [str(before)]
    assert "cheapest: cheap" in finished.err
    assert "1,000,000 samples:" in finished.err
    assert list((tmp_path / "results" / "cheap" / "cross").iterdir())
    assert "cheapest: cheap" in (tmp_path / "results" / "fleet.html").read_text()
    assert not (tmp_path / ".autotune-fleet").exists()


@pytest.mark.slow
def test_a_machine_that_fails_does_not_take_the_others_along(tmp_path: Path) -> None:
    """Its own error is told, the rest is compared, and the exit status says that something is missing."""
    plan = fleet_file(f'{LOCAL}options = ["--device=mps"]\n', tmp_path)
    finished = run(["fleet", plan, "--model", workload_in(tmp_path), "--budget", budget(10)], tmp_path)
    assert finished.status == 1, finished.err
    assert "dear brought no result: the device 'mps' was asked for" in " ".join(finished.err.split())
    assert read_result(tmp_path / "results" / "cheap" / "mine-build.json").status == "complete"
    assert not (tmp_path / "results" / "dear").exists()


class Nodes:
    """A Ray cluster on this machine whose nodes can be killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.address = str(self._cluster.address)

    def add(self, kind: str) -> Any:
        """A node of one core."""
        return self._cluster.add_node(num_cpus=1, labels={"kind": kind})

    def kill(self, node: Any) -> None:
        """Ends a node as a power cut does."""
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """Ends the node that knows of all others."""
        self.kill(self._cluster.head_node)

    def shutdown(self) -> None:
        """Ends all of it."""
        self._cluster.shutdown()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """A cluster of a head without CPUs."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "3")
    made = Nodes()
    yield made
    made.shutdown()


def ray_file(kinds: list[str], nodes: Nodes, folder: Path) -> str:
    """A fleet's file of a Ray cluster: kinds by their labels."""
    machines = "".join(f'[machines.{kind}]\ncpus = 1\nlabels = {{ kind = "{kind}" }}\n' for kind in kinds)
    return fleet_file(f'engine = "ray"\naddress = "{nodes.address}"\n{machines}', folder)


@pytest.mark.slow
def test_a_ray_cluster_is_tuned_by_labels(nodes: Nodes, tmp_path: Path) -> None:
    """Two nodes work at once on the folder that was sent; a third kind, which no node has, is told at once."""
    nodes.add("left")
    nodes.add("right")
    plan = ray_file(["left", "right", "middle"], nodes, tmp_path)
    finished = run(["fleet", plan, "--model", workload_in(tmp_path), "--budget", budget(20)], tmp_path)
    told = " ".join(finished.err.split())
    assert finished.status == 1, finished.err
    assert "no node of the cluster has CPU=1, kind=middle" in told
    for name in ("left", "right"):
        result = read_result(tmp_path / "results" / name / "mine-build.json")
        assert (result.machine, result.status) == (name, "complete")
    assert finished.seconds < 2 * float(budget(20)[:-1]) + 60  # not one after the other


@pytest.mark.slow
def test_a_node_that_dies_is_told_and_the_other_one_counts(nodes: Nodes, tmp_path: Path) -> None:
    """Its job is sent again, finds no such node any more, and says so."""
    nodes.add("left")
    doomed = nodes.add("right")
    plan = ray_file(["left", "right"], nodes, tmp_path)
    command = [sys.executable, "-m", "autotune", "fleet", plan, "--model", workload_in(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    fleet = subprocess.Popen(
        [*command, "--budget", budget(25)], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    time.sleep(12 * slowness())
    nodes.kill(doomed)
    _, told = fleet.communicate(timeout=200 * slowness())
    assert fleet.returncode == 1, told
    assert "right: ended early" in told
    assert "no node of the cluster has CPU=1, kind=right" in told
    assert read_result(tmp_path / "results" / "left" / "mine-build.json").machine == "left"


@pytest.mark.slow
def test_what_has_come_home_outlives_the_clusters_head(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ran on it is told as lost with the cluster; the other's result is kept and compared."""
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")  # a minute by itself
    nodes.add("left")
    plan = Path(ray_file(["left", "right"], nodes, tmp_path))
    plan.write_text('wait = "5m"\n' + plan.read_text())
    command = [sys.executable, "-m", "autotune", "fleet", str(plan), "--model", workload_in(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    fleet = subprocess.Popen(
        [*command, "--budget", budget(15)], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    home, ends = tmp_path / "results" / "left" / "mine-build.json", time.monotonic() + 200
    while not home.exists() and time.monotonic() < ends:
        time.sleep(0.5)
    nodes.add("right")
    time.sleep(6)
    nodes.kill_head()
    _, told = fleet.communicate(timeout=200 * slowness())
    assert fleet.returncode == 1, told
    assert "right brought no result: the cluster is gone" in " ".join(told.split())
    assert read_result(home).machine == "left"
    assert "left" in (tmp_path / "results" / "fleet.html").read_text()


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Nothing listens at the address."""
    pytest.importorskip("ray")
    plan = fleet_file('engine = "ray"\naddress = "127.0.0.1:1"\n[machines.any]\n', tmp_path)
    finished = run(["fleet", plan, "--model", workload_in(tmp_path)], tmp_path)
    assert finished.status == 2, finished.err
    assert "the Ray cluster at 127.0.0.1:1 cannot be used" in " ".join(finished.err.split())
