"""Training scripts that nobody here wrote: tuned unchanged, then trained with the answer, and timed from outside.

    python -m benchmarks.real_scripts SOURCES                    # an hour and a half
    python -m benchmarks.real_scripts SOURCES --only mnist,gcn   # some of them
    python -m benchmarks.real_scripts SOURCES --look             # only what is found in them, two minutes
    python -m benchmarks.real_scripts SOURCES --work FOLDER --again    # only what is realised, of what was tuned there

SOURCES holds the repositories of `ENTRIES`, each at its commit; no line of them is copied into this project:

    git clone https://github.com/OWNER/NAME SOURCES/OWNER_NAME && git -C SOURCES/OWNER_NAME checkout COMMIT

Their data are made up (`benchmarks.real_data`), so that nothing is downloaded. Some need packages that autotune does
not: torchvision, timm, datasets, evaluate, jsonargparse, six.

For each script: what `autotune run` found, changed and claims, with its interval. Then the script as it is and by
`autotune launch`, side by side in turns, three pairs of processes, timed from outside (`benchmarks.script_turns`).
Then, with --doctor, what train-doctor 0.2.0 says of the same command, in the time it takes.

Writes benchmarks/output/real_scripts.json. The exit status is 1 when fewer than ten were tuned.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autotune.results.result import read_result
from benchmarks import real_data
from benchmarks.output import save, saved
from benchmarks.script_turns import CLOCK, Run, beside, compared_in_pairs

ROOT = Path(__file__).parents[1]
GOAL, LOOK_SECONDS = 10, 480.0
DOCTOR_SECONDS = 300.0
PAIRS = 3
"""Of runs that are timed side by side: two processes of one config differ by some per cent all their lives."""
"""At most; over three times what a tuning has, since train-doctor knows no budget."""
QUIET = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "agg"}


@dataclass(frozen=True)
class Entry:
    """A script, and how it is run.

    Attributes:
        name: Short.
        repository: On GitHub.
        commit: Or tag.
        folder: In the repository, which is copied to run in.
        command: As its README has it, with sizes for a small machine.
        data: Makes its data, in and around the folder that it runs in.
        counts: What a step is: ``steps`` of an optimizer, or ``backwards``.
    """

    name: str
    repository: str
    commit: str
    folder: str
    command: str
    data: Callable[[Path], None]
    counts: str = "steps"

    @property
    def words(self) -> list[str]:
        """The command, by this interpreter."""
        return [sys.executable if word == "python" else word for word in shlex.split(self.command)]


def _beside(run: Path) -> None:
    real_data.digits(run.parent / "data")


def _lightning(run: Path) -> None:
    real_data.digits(run / "data", run.parents[1] / "Datasets")


def _nano(run: Path) -> None:
    folder = run / "data" / "shakespeare_char"
    real_data.words(folder / "input.txt")
    subprocess.run([sys.executable, "prepare.py"], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def _wikitext(run: Path) -> None:
    real_data.wikitext(run / "data" / "wikitext-2")


def _classes(run: Path) -> None:
    real_data.classes(run / "photos")


EXAMPLES = partial(Entry, repository="pytorch/examples", commit="77f55b912142e11fcfdf5b530231fb9c52f181e8")
ENTRIES = (
    Entry(
        "nanoGPT", "karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291", ".",
        "python train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=2 "
        "--log_interval=10 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=20000 "
        "--lr_decay_iters=20000 --dropout=0.0",
        _nano,
    ),
    EXAMPLES(name="mnist", folder="mnist", command="python main.py --no-accel", data=_beside),
    EXAMPLES(name="mnist_rnn", folder="mnist_rnn", command="python main.py", data=_beside),
    EXAMPLES(name="vae", folder="vae", command="python main.py --no-accel --epochs 100", data=_beside),
    EXAMPLES(
        name="dcgan", folder="dcgan",
        command="python main.py --dataset fake --ngf 16 --ndf 16 --batchSize 32 --imageSize 64", data=lambda _: None,
    ),
    EXAMPLES(
        name="word_language_model", folder="word_language_model",
        command="python main.py --epochs 6 --emsize 128 --nhid 128", data=_wikitext, counts="backwards",
    ),
    EXAMPLES(
        name="super_resolution", folder="super_resolution",
        command="python main.py --upscale_factor 3 --batchSize 4 --testBatchSize 10 --nEpochs 30 --lr 0.001",
        data=real_data.bsds300,
    ),
    EXAMPLES(name="gcn", folder="gcn", command="python main.py --no-accel --epochs 200000", data=real_data.cora),
    Entry(
        "run_clm", "huggingface/transformers", "v4.57.3", "examples/pytorch/language-modeling",
        "python run_clm.py --model_type gpt2 --tokenizer_name tokenizer --train_file text.txt --do_train --use_cpu "
        "--config_overrides n_layer=2,n_head=4,n_embd=128,vocab_size=2000 --block_size 128 --output_dir out "
        "--per_device_train_batch_size 8 --num_train_epochs 20 --save_strategy no --report_to none",
        real_data.language_model,
    ),
    Entry(
        "lightning", "Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414",
        "examples/pytorch/basics",
        "python backbone_image_classifier.py --trainer.accelerator=cpu --trainer.max_epochs=50", _lightning,
    ),
    Entry(
        "accelerate", "huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83", "examples",
        "python -m accelerate.commands.launch --cpu --num_processes 1 nlp_example.py --cpu", real_data.paraphrases,
    ),
    Entry(
        "timm", "huggingface/pytorch-image-models", "aa4b5850c1543fa488abf260f18390eda46cf85d", ".",
        "python train.py --data-dir photos --model resnet18 --num-classes 4 --img-size 96 --batch-size 16 --workers 1 "
        "--device cpu --epochs 50 --output out", _classes,
    ),
)  # fmt: skip


def prepared(entry: Entry, sources: Path, work: Path) -> Path:
    """The folder to run in: a copy of the script's, with its data; made once.

    Raises:
        SystemExit: The repository is not there.
    """
    source = sources / entry.repository.replace("/", "_") / entry.folder
    if not source.is_dir():
        raise SystemExit(
            f"{entry.name}: expected {entry.repository} at {source}; git clone https://github.com/{entry.repository} "
            f"there, and check out {entry.commit}"
        )
    run = work / entry.name / "run"
    if not (run.parent / "made").exists():
        shutil.rmtree(run.parent, ignore_errors=True)
        shutil.copytree(source, run, ignore=shutil.ignore_patterns(".git"))
        entry.data(run)
        (run.parent / "made").touch()
    return run


def told(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float
) -> tuple[int, str, str, float]:
    """Runs a command to its end, or ends it with all it has started: status, output, errors, seconds."""
    began = time.perf_counter()
    process = subprocess.Popen(
        words, cwd=folder, env={**os.environ, **QUIET, **environment}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            out, errors = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            out, errors = process.communicate()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out, errors, time.perf_counter() - began


def autotune(*words: str) -> list[str]:
    """The command of this checkout."""
    return [sys.executable, "-m", "autotune", *words]


def on_path(*places: Path) -> dict[str, str]:
    """With these first on Python's path."""
    return {"PYTHONPATH": os.pathsep.join([*map(str, places), *filter(None, [os.environ.get("PYTHONPATH")])])}


def refusal(errors: str) -> str:
    """Why a script is not tuned, as autotune says it."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    start = next((place for place, line in enumerate(lines) if line.startswith("error")), max(0, len(lines) - 1))
    return " ".join(lines[start:])[:600]


def looked_at(entry: Entry, run: Path) -> dict[str, Any]:
    """What a look finds."""
    words = autotune("run", "--dry-run", "--json", "--quiet", "--budget", f"{LOOK_SECONDS:.0f}s", "--", *entry.words)
    status, out, errors, seconds = told(words, run, on_path(ROOT), LOOK_SECONDS)
    if status != 0:
        return {"refused": refusal(errors)}
    found = json.loads(out)
    seen = found["seen"]
    return {
        "models": seen["model_names"],
        "optimizer": seen["optimizer"],
        "loaders": [loader["dataset"] for loader in seen["loaders"]],
        "batch_size": seen["loaders"][0]["batch_size"] if seen["loaders"] else seen["step_samples"],
        "accumulation": seen["accumulation"],
        "seconds_to_loop": round(seen["seconds_to_loop"], 1),
        "choices": sorted(found["choices"]),
        "seconds": round(seconds, 1),
    }


def tuned(entry: Entry, run: Path, budget: float) -> dict[str, Any]:
    """Tunes a script; what is to be told of the result."""
    file = run.parent / "result.json"
    file.unlink(missing_ok=True)
    words = autotune("run", "--budget", f"{budget:.0f}s", "--quiet", "--out", str(file), "--", *entry.words)
    _, _, errors, seconds = told(words, run, on_path(ROOT), budget + 60)
    if not file.exists():
        return {"refused": refusal(errors), "seconds": round(seconds, 1)}
    result = read_result(file)
    speedup = result.speedup
    return {
        "seconds": round(seconds, 1),
        "changed": {knob: list(values) for knob, values in result.changed_knobs.items()},
        "claimed": speedup.ratio if speedup is not None else None,
        "ci95": list(speedup.ci95) if speedup is not None else None,
        "why_not": result.speedup_reason,
        "notes": list(result.search.notes),
        "bursts": result.search.bursts,
    }


def realised(entry: Entry, run: Path, seconds: float) -> dict[str, Any]:
    """The script as it is and launched, side by side in turns; some pairs of processes, which differ by themselves."""
    beside_it = beside(run)
    launched_words = autotune("launch", str(run.parent / "result.json"), "--", *entry.words)
    environment = {**QUIET, **on_path(CLOCK, ROOT)}

    def pair() -> tuple[Run, Run]:
        plain, launched = (
            Run(words, folder, environment, entry.counts, folder.with_suffix(".clock"))
            for folder, words in ((run, entry.words), (beside_it, launched_words))
        )
        return plain, launched

    return compared_in_pairs(pair, PAIRS, seconds)


def doctored(entry: Entry, run: Path, doctor: Path) -> dict[str, Any]:
    """What train-doctor says of the same command."""
    out = run.parent / "doctor"
    shutil.rmtree(out, ignore_errors=True)
    words = [sys.executable, "-m", "train_doctor", "fix", "--no-card", "--quiet", "--out", str(out), "--", *entry.words]
    status, text, errors, seconds = told(words, run, on_path(doctor), DOCTOR_SECONDS)
    answer: dict[str, Any] = {"seconds": round(seconds, 1), "status": status}
    file = next(iter(sorted(out.rglob("fix.json"))), None)
    if file is None:
        return {**answer, "failed": " ".join((errors or text).split())[-400:]}
    fix = json.loads(file.read_text(encoding="utf-8"))
    proven = fix.get("proven")
    tried = [one.get("ratio") for one in fix.get("candidates", []) if one.get("ratio")]
    return {
        **answer,
        "headline": fix.get("headline"),
        "change": proven["describe"] if proven else None,
        "ratio": proven["ratio"] if proven else None,
        "tried": tried,
    }


def line(row: Mapping[str, Any]) -> str:
    """A script's figures."""
    if "refused" in row:
        return f"{row['name']:<20} refused: {row['refused']}"
    if "models" in row:
        step = f"{row['batch_size']} × {row['accumulation']}"
        return (
            f"{row['name']:<20} {' and '.join(row['models'])}, {row['optimizer']}, {step}, {', '.join(row['choices'])}"
        )
    claimed, real = row["claimed"], row.get("realised", {}).get("ratio")
    shown = f"{claimed:.3f} ({row['ci95'][0]:.3f} to {row['ci95'][1]:.3f})" if claimed is not None else "none"
    off = f", off by {100 * (claimed / real - 1):+.1f} %" if claimed is not None and real is not None else ""
    doctor = row.get("doctor", {}).get("headline") or row.get("doctor", {}).get("failed")
    return (
        f"{row['name']:<20} claimed {shown}, realised {real and round(real, 3)}{off}; {len(row['changed'])} changes"
        + (f"; train-doctor: {doctor}" if doctor else "")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, help="folder with the repositories")
    parser.add_argument("--only", default="", help="names, with commas between")
    parser.add_argument("--look", action="store_true", help="only look at them")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of a tuning")
    parser.add_argument("--run-seconds", type=float, default=7.0, help="of training, of each side and pair; 0: none")
    parser.add_argument("--again", action="store_true", help="only train again with what was found in --work")
    parser.add_argument("--doctor", type=Path, help="where train-doctor 0.2.0 lies (pip install --target)")
    parser.add_argument("--work", type=Path, help="folder to run in; kept, with the data that were made")
    options = parser.parse_args(arguments)
    wanted = {name for name in options.only.split(",") if name}
    if unknown := wanted - {entry.name for entry in ENTRIES}:
        parser.error(
            f"--only: expected names of {', '.join(entry.name for entry in ENTRIES)}, got {', '.join(unknown)}"
        )
    work = (options.work or Path(tempfile.mkdtemp(prefix="real-scripts-"))).resolve()
    rows = {row["name"]: row for row in saved("real_scripts").get("rows", [])}
    for entry in ENTRIES:
        if wanted and entry.name not in wanted:
            continue
        run = prepared(entry, options.sources.resolve(), work)
        row: dict[str, Any] = {
            "name": entry.name, "repository": entry.repository, "commit": entry.commit, "command": entry.command,
        }  # fmt: skip
        if options.look:
            found = looked_at(entry, run)
            print(line(row | found), flush=True)
            if entry.name in rows:
                rows[entry.name]["look"] = found
                save("real_scripts", {"budget_seconds": options.budget, "rows": list(rows.values())})
            continue
        if options.again:
            row = rows.get(entry.name, row)
        else:
            kept = rows.get(entry.name, {})  # what is not asked for again stands
            row |= {part: kept[part] for part in ("look", "doctor") if part in kept}
            row |= tuned(entry, run, options.budget)
        if row.get("changed") and options.run_seconds:
            row["realised"] = realised(entry, run, options.run_seconds)
        if options.doctor is not None:
            row["doctor"] = doctored(entry, run, options.doctor.resolve())
        print(line(row), flush=True)
        rows[entry.name] = row
        kept = [rows[each.name] for each in ENTRIES if each.name in rows]
        save("real_scripts", {"budget_seconds": options.budget, "rows": kept})
    return int(not wanted and not options.look and sum("refused" not in row for row in rows.values()) < GOAL)


if __name__ == "__main__":
    sys.exit(main())
