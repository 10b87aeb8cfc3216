"""Libraries of a script that would send something in bursts, or run a thread, are kept from it.

Neither Weights & Biases nor MLflow is installed here. Small packages of their names stand in for them, which print what
they are called with: more of them the recorder does not see either.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.knobs.registry import READS
from autotune.recorder import importing
from autotune.scripts import Script, ScriptIsolation
from tests.example_scripts import START_SECONDS, script

WANDB = "def init(project=None, mode=None): print(project, mode)\n"
MLFLOW = """
from . import tracking
from .tracking import MlflowClient, set_tracking_uri
"""
MLFLOW_TRACKING = """
def set_tracking_uri(uri): print("fluent", uri)
class MlflowClient:
    def __init__(self, tracking_uri=None, registry_uri=None): print("client", tracking_uri, registry_uri)
"""
THREADS = """
import threading
from tqdm.auto import tqdm
bar = tqdm(range(3))
print(len(threading.enumerate()))
"""
RICH = """
import threading
from rich.progress import Progress
with Progress() as bars:
    bars.advance(bars.add_task("epoch"))
    threads = len(threading.enumerate())
print(threads)
"""


def printed(code: str, place: Path, role: str = "look", **orders: object) -> list[str]:
    """What a script prints in a burst, with packages that lie in a folder."""
    command = Script((sys.executable, "-c", code))
    variables = command.environment(
        {"role": role, **orders}, {**os.environ, "PYTHONPATH": str(place), "TMPDIR": str(place)}
    )
    return subprocess.run(command.command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout.split(
        "\n"
    )[:-1]


def test_wandb_is_disabled_whatever_mode_a_script_says(tmp_path: Path) -> None:
    """What it says by itself would overrule the environment."""
    (tmp_path / "wandb.py").write_text(WANDB)
    lines = "from wandb import init\ninit(project='mine', mode='online')\ninit('mine')"
    assert printed(lines, tmp_path) == ["mine disabled", "mine disabled"]


def test_wandb_is_not_logged_in_to(tmp_path: Path) -> None:
    """It would start a thread although it is disabled, and the script could not be forked; older ones had no login."""
    (tmp_path / "wandb.py").write_text(f"{WANDB}def login(key=None, **_): print('logged in')\n")
    lines = "import wandb\nprint(wandb.login(), wandb.login('a key', relogin=True))"
    assert printed(lines, tmp_path) == ["True True"]
    assert printed(lines, tmp_path, "launch") == ["logged in", "logged in", "None None"]
    (tmp_path / "wandb.py").write_text(WANDB)
    assert printed("import wandb\nprint(hasattr(wandb, 'login'))", tmp_path) == ["False"]


SWEEP = """
def sweep(config, entity=None, project=None): print("made on the server"); return "own"
def agent(sweep_id, function=None, entity=None, project=None, count=None): print("takes runs of", sweep_id)
"""
SWEEPS = """
import wandb
def train():
    wandb.init("mine")
sweep = wandb.sweep({"method": "grid"}, project="mine")
print(sweep)
wandb.agent(sweep, train, count=5)
wandb.agent(sweep_id=sweep, function=train)
wandb.agent(sweep)
"""


def test_wandb_makes_no_sweep_and_takes_no_run_of_one(tmp_path: Path) -> None:
    """Both ask the server in any mode; the function that trains is called once. A launched script takes its runs."""
    (tmp_path / "wandb.py").write_text(WANDB + SWEEP)
    assert printed(SWEEPS, tmp_path) == ["autotune", "mine disabled", "mine disabled"]
    assert printed(SWEEPS, tmp_path, "launch") == ["made on the server", "own", *["takes runs of own"] * 3]


def test_swanlab_and_trackio_send_nothing(tmp_path: Path) -> None:
    """As transformers uses them, too: a run is begun, told of a configuration, logged to, and finished."""
    (tmp_path / "swanlab.py").write_text(WANDB)
    (tmp_path / "trackio.py").write_text("config = {}\ndef init(project): print('sent')\nlog = finish = init\n")
    lines = "import swanlab, trackio\nswanlab.init('mine', mode='cloud')\n"
    lines += "run = trackio.init(project='mine', config={'b': 2})\nrun.config['b']\n"
    lines += "trackio.config.update({'a': 1})\ntrackio.log({'loss': 1})\nrun.log({'loss': 1})\nrun.finish()\n"
    lines += "with trackio.init('mine') as run:\n    run.log({'loss': 1})\n"
    assert printed(lines + "trackio.finish()", tmp_path) == ["mine disabled"]


def test_aim_writes_nothing(tmp_path: Path) -> None:
    """By its own runs and by those of its callbacks; its storage would write below Python."""
    (tmp_path / "aim" / "sdk").mkdir(parents=True)
    (tmp_path / "aim" / "__init__.py").write_text("from aim.sdk.run import Run\n")
    (tmp_path / "aim" / "sdk" / "__init__.py").touch()
    (tmp_path / "aim" / "sdk" / "run.py").write_text(
        "class Run:\n    def __init__(self, *args, **kwargs): print('written')\n"
    )
    lines = "from os.path import join\nfrom aim import Run\nrun = Run(repo='.', experiment='mine')\n"
    lines += "for name in (run.hash, run.name, run.id): join('checkpoints', name)\n"
    lines += "run['hparams'] = {'lr': 0.1}\nrun['hparams']['lr']\nrun.name = 'first'\n"
    assert printed(lines + "run.track(0.5, name='loss', step=1)\nrun.close()", tmp_path) == []


def test_mlflow_logs_into_the_folder_of_the_run(tmp_path: Path) -> None:
    """By its functions and by a client of the script's own, before and after it names a server."""
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").write_text(MLFLOW)
    (tmp_path / "mlflow" / "tracking.py").write_text(MLFLOW_TRACKING)
    lines = (
        "import mlflow\nmlflow.set_tracking_uri('http://tracking:5000')\nmlflow.MlflowClient('http://tracking:5000')"
    )
    place = (tmp_path / "mlflow").as_uri()
    assert printed(lines, tmp_path) == [f"fluent {place}", f"fluent {place}", f"client {place} {place}"]


def test_a_whole_training_logs_as_ever(tmp_path: Path) -> None:
    """With `launch`, trackers and bars are the script's own business."""
    (tmp_path / "wandb.py").write_text(WANDB)
    assert printed("import wandb\nwandb.init('mine', mode='online')", tmp_path, "launch") == ["mine online"]
    assert printed(THREADS, tmp_path, "launch") == ["2"]


def test_a_bar_starts_no_thread(tmp_path: Path) -> None:
    """A process with threads could not be forked; subclasses of the bar start none either."""
    assert printed(THREADS, tmp_path) == ["1"]
    assert printed(RICH, tmp_path)[-1] == "1"


def test_a_library_that_is_not_what_was_expected_does_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    """The script goes on, with the error told."""

    def fails() -> None:
        raise AttributeError("no such function")

    importing.after_import("sys", fails)
    assert "no such function" in capsys.readouterr().err


@pytest.mark.slow
def test_a_loop_below_a_bar_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is made before the loader is iterated."""
    monkeypatch.chdir(tmp_path)
    notes: list[str] = []
    with ScriptIsolation(script("with_bar"), notes.append) as isolation:
        isolation.start(START_SECONDS)
        isolation._ready_server(START_SECONDS)
        assert isolation.fork_unsafe_reason is None
    assert notes == []


TENSORBOARD = """
import threading
from tensorboardX import SummaryWriter
writer = SummaryWriter("runs")
writer.add_scalar("loss", 1.0, 1)
writer.flush()
print(len(threading.enumerate()))
writer.close()
"""


def test_a_tensorboard_writer_starts_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else most scripts of research could not be forked."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as parent:
        parent.bind("parent")
        parent.listen()
        sandbox = {"any_network": True, "mirror": None, "row": "none"}
        orders = {"socket": str(tmp_path / "parent"), "shared": str(tmp_path), "port": 0, "seconds": 60, "reads": READS}
        assert printed(TENSORBOARD, tmp_path, sandbox=sandbox, **orders) == ["1"]
    loop = {"loaders": [], "models": [], "device": "cpu"}
    assert int(*printed(TENSORBOARD, tmp_path, "launch", loop=loop, changes={})) > 1


def test_nothing_is_written_to_the_hugging_face_hub(tmp_path: Path) -> None:
    """By its functions and by a client; who makes a repository gets its name, who waits for an upload need not wait."""
    lines = (
        "from huggingface_hub import HfApi, create_repo, upload_folder\n"
        "print(create_repo('me/model').repo_id, HfApi().create_repo(repo_id='out').repo_id)\n"
        "print(upload_folder(repo_id='me/model', folder_path='.', run_as_future=True).result())\n"
        "print(HfApi().upload_file(path_or_fileobj=b'', path_in_repo='a', repo_id='me/model'))"
    )
    assert printed(lines, tmp_path) == ["me/model user/out", "None", "None"]
