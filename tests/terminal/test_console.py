"""What a person sees at the end of tuning, of a machine, of several machines, and of an error."""

from __future__ import annotations

import ast
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.errors import UsageError, WorkloadError
from autotune.hardware.model import GpuProcess
from autotune.knobs.config import TrainConfig
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.results.result import AblationRow, Result, SearchRecord, Side
from autotune.results.summary import how_to_train, skipped_lines
from autotune.terminal.console import error_lines, hardware_table, make_console, result_table, trials_table, usage_lines
from autotune.units import format_rate
from tests.factories import GIB, make_gpu, make_hardware, make_measurement, make_result

HOSTILE = "[bold]x[/bold] [/] \x1b[2J :smile:"


def shown(renderable: Any, *, width: int = 100, words_only: bool = True) -> str:
    """What is printed at a width; words apart by single spaces unless the layout is looked at."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(renderable)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return " ".join(text.split()) if words_only else text


def on_gpu(**changes: Any) -> Result:
    """A result of a GPU."""
    constraints = make_result().constraints.model_copy(update={"device": "cuda"})
    return make_result(hardware=make_hardware(make_gpu()), constraints=constraints, **changes)


def test_result_shows_both_rates_each_with_its_interval() -> None:
    """No rate stands without its spread."""
    before, after = make_measurement(1000, spread=0.05, seed=1), make_measurement(2000, spread=0.05, seed=2)
    sides = [Side(config=TrainConfig(), measurement=measurement) for measurement in (before, after)]
    text = shown(result_table(make_result(baseline=sides[0], best=sides[1])))
    rates = " ".join(format_rate(measurement.samples_per_second) for measurement in (before, after))
    ends = [format_rate(end).split()[0] for side in (before, after) for end in side.ci95_samples_per_second]
    assert f"rate {rates} 95 % interval {ends[0]} – {ends[1]} {ends[2]} – {ends[3]}" in text
    assert ends[0] != ends[1]


def test_result_shows_the_time_of_an_epoch() -> None:
    """Samples over rate: what a person waits for."""
    sides = [Side(config=TrainConfig(), measurement=make_measurement(rate, spread=0)) for rate in (1000, 2000)]
    text = shown(result_table(make_result(baseline=sides[0], best=sides[1], samples=50_000)))
    assert "epoch of 50,000 50 s 25 s" in text


def test_result_without_a_length_shows_no_epoch() -> None:
    """An endless dataset has no epochs."""
    assert "epoch" not in shown(result_table(make_result(samples=None)))


def test_result_shows_device_memory_only_of_a_device_of_its_own() -> None:
    """On the CPU both memories are one."""
    assert "device memory 3.00 GiB 3.00 GiB host memory 2.00 GiB 2.00 GiB" in shown(result_table(on_gpu()))
    assert "device memory" not in shown(result_table(make_result()))


def test_result_shows_each_changed_knob_and_what_it_was_worth() -> None:
    """Before, after, and the ablation with its interval; knobs that are alike are left out."""
    best = Side(
        config=TrainConfig(precision="bf16", num_workers=2),
        parameters={"max_len": 256},
        measurement=make_measurement(2000),
    )
    worth = (AblationRow(knob="precision", before="fp32", after="bf16", ratio=1.31, ci95=Interval(1.27, 1.35)),)
    baseline = Side(config=TrainConfig(), measurement=make_measurement(1000))
    text = shown(result_table(make_result(baseline=baseline, best=best, ablation=worth)))
    assert "precision fp32 bf16 1.31× (1.27 – 1.35) num_workers 0 2" in text
    assert "max_len build's own 256" in text
    assert "batch_size" not in text


def test_result_with_the_baseline_as_its_best_says_that_nothing_changed() -> None:
    """The honest answer may be: leave it as it is."""
    result = make_result(best=make_result().baseline, speedup=None, speedup_reason="nothing was faster")
    text = shown(result_table(result))
    assert "no knob was changed" in text
    assert "no confirmed speed-up: nothing was faster" in text
    assert "worth" not in text


def test_confirmed_speedup_is_shown_with_interval_and_pairs() -> None:
    """The headline is the confirmed figure."""
    text = shown(result_table(make_result(speedup=Speedup(ratio=1.498, ci95=Interval(1.471, 1.526), pairs=5))))
    assert "confirmed speed-up: 1.50× (95 % interval 1.47 – 1.53, 5 interleaved pairs)" in text
    assert "no confirmed speed-up" not in text


def test_partial_result_says_so_first() -> None:
    """Nobody takes an interrupted tuning for a finished one."""
    text = shown(result_table(make_result(status="partial", stopped_by="interrupted")))
    assert "PARTIAL: tuning was interrupted" in text
    assert text.index("PARTIAL") < text.index("rate")
    assert "PARTIAL" not in shown(result_table(make_result()))


def test_side_without_a_measurement_is_shown_as_such() -> None:
    """What was not measured is not 0."""
    result = make_result(best=Side(config=TrainConfig(), measurement=None), speedup=None)
    assert "rate 998 samples/s not measured" in shown(result_table(result))


def test_compiling_is_shown_with_the_steps_that_win_it_back() -> None:
    """1000 samples/s doubled by 10 s of compiling: 20 s of eager training, so 20,000 samples, are even."""
    baseline = Side(config=TrainConfig(batch_size=10), measurement=make_measurement(1000, spread=0))
    best = Side(
        config=TrainConfig(batch_size=10, compile_mode="default"),
        measurement=make_measurement(2000, spread=0, compile_seconds=10.0),
    )
    speedup = Speedup(ratio=2.0, ci95=Interval(1.5, 3.0), pairs=4)
    text = shown(result_table(make_result(baseline=baseline, best=best, speedup=speedup)))
    assert "compiling takes 10 s; break-even after about 2,000 optimizer steps (95 % interval 1,500 – 3,000)" in text


def test_collating_once_is_paid_back_as_compiling_is() -> None:
    """What is done once, before training, is told together: ten seconds of each cost as many steps again."""
    best = Side(
        config=TrainConfig(compile_mode="default", data_placement="collated"),
        measurement=make_measurement(2000, spread=0, compile_seconds=10.0, placement_seconds=10.0),
    )
    speedup = Speedup(ratio=2.0, ci95=Interval(1.9, 2.1), pairs=5)
    text = shown(result_table(make_result(best=best, speedup=speedup)))
    assert "compiling takes 10 s and collating the data set takes 10 s; break-even after about " in text


def test_compiling_without_a_confirmed_gain_wins_nothing_back() -> None:
    """A break-even point of a gain that may be none would be a claim."""
    best = Side(config=TrainConfig(compile_mode="default"), measurement=make_measurement(2000, compile_seconds=10))
    speedup = Speedup(ratio=1.5, ci95=Interval(0.9, 2.0), pairs=2)
    assert "break-even" not in shown(result_table(make_result(best=best, speedup=speedup)))


def test_result_shows_bottleneck_ceilings_and_advice() -> None:
    """What limits the training now, and what to do about it; a ceiling that is unknown is left out."""
    text = shown(result_table(make_result()))
    assert (
        "bottleneck: compute (busy 95 % of the time) what each part alone could reach: compute 1,580 samples/s" in text
    )
    assert "advice: a larger model would hardly be slower to feed" in text
    assert "samples/s, copy" not in text


def test_result_shows_how_the_search_went() -> None:
    """Bursts, failures by their own words, why it stopped, what an option would search, and notes."""
    search = SearchRecord(
        seconds=596.0,
        bursts=31,
        outcomes={"ok": 27, "oom": 3, "crashed": 1, "timeout": 0},
        measuring_fraction=0.612,
        resumed_bursts=12,
        skipped_knobs={"pin_memory": "there is no GPU", "batch_size": "it is held; --effective-batch free tries it"},
        notes=("the machine was busy",),
    )
    text = shown(result_table(make_result(search=search)))
    assert "31 bursts in 9 m 56 s, and 12 that were known (3 oom, 1 crashed), 61 % of the time" in text
    offered = "not searched: batch_size: it is held; --effective-batch free tries it"
    assert f"stopped by: budget {offered} note: the machine was busy" in text
    assert "pin_memory: there is no GPU" in shown(trials_table(make_result(search=search)))


def test_knobs_that_were_not_searched_for_one_reason_are_told_together() -> None:
    """`--only` would else repeat it for each of them."""
    skipped = {"precision": "not named", "sdpa_backend": "no attention", "allocator": "not named"}
    search = make_result().search.model_copy(update={"skipped_knobs": skipped})
    lines = skipped_lines(make_result(search=search), every=True)
    assert [*lines] == ["precision, allocator: not named", "sdpa_backend: no attention"]


def test_result_fits_a_terminal_of_80_columns_without_losing_a_word() -> None:
    """Long names wrap, and no knob or figure is cut off."""
    config = TrainConfig(compile_mode="max-autotune-no-cudagraphs", accumulation_steps=2)
    worth = (AblationRow(knob="accumulation_steps", before="1", after="2", ratio=1.31, ci95=Interval(1.27, 1.35)),)
    result = on_gpu(best=Side(config=config, measurement=make_measurement(1500)), ablation=worth)
    text = shown(result_table(result), width=80, words_only=False)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "accumulation_steps" in text.split()


@pytest.mark.parametrize("field", ["name", "target"])
def test_names_of_users_are_neither_markup_nor_control_characters(field: str) -> None:
    """A workload named in markup is shown as it is written, and cannot steer the terminal."""
    text = shown(result_table(make_result(**{field: HOSTILE})))
    assert r"[bold]x[/bold] [/] \x1b[2J :smile:" in text
    assert "\x1b" not in text


def test_notes_advice_and_reasons_are_not_markup() -> None:
    """Sentences may quote what a user wrote."""
    result = make_result()
    search = result.search.model_copy(update={"notes": (HOSTILE,), "skipped_knobs": {"a": f"{HOSTILE}; --pin"}})
    diagnosis = result.diagnosis.model_copy(update={"advice": (HOSTILE,)})
    result = make_result(search=search, diagnosis=diagnosis, speedup=None, speedup_reason=HOSTILE)
    text = shown(result_table(result), width=300)
    assert text.count("[bold]x[/bold] [/]") == 4


def test_snippet_is_python_that_loads_the_file() -> None:
    """The lines can be pasted: they are valid, name the file, and use what loading gives."""
    path = Path('results/it\'s "mine"/größe.json')
    lines = how_to_train(make_result(), path)
    tree = ast.parse(lines)
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert path.as_posix() in constants
    assert [line.split()[0] for line in lines.splitlines()] == ["import", "tuned", "loader", "model,"]


def test_a_loss_that_is_compiled_has_a_line_of_its_own() -> None:
    """Without it the model alone would be compiled."""
    result = make_result()
    best = result.best.model_copy(update={"config": result.best.config.replace(compile_mode="loss")})
    lines = how_to_train(result.model_copy(update={"best": best}), Path("a.json"))
    assert lines.splitlines()[-1] == "loss = tuned.compiled_loss(loss)"


def test_usage_names_the_file_and_ends_no_line_of_code_with_spaces() -> None:
    """What is copied from a terminal is clean."""
    text = shown(usage_lines(make_result(), Path("results/digits.json")), words_only=False)
    assert "result file: results/digits.json\n" in text
    assert '    tuned = autotune.load("results/digits.json")\n' in text


def test_machine_without_a_gpu_says_so() -> None:
    """No GPU is an answer, not a gap; why none was found stands with what could not be read."""
    text = shown(hardware_table(make_hardware()))
    assert "GPU none found: training runs on the CPU" in text
    assert "not read gpus: no driver answered" in text


def test_machine_shows_all_that_its_gpu_reports() -> None:
    """Name, memory, capability, precisions with their reason, driver, clocks, and who else is on it."""
    own = GpuProcess(pid=4711, name="python", memory_bytes=GIB)
    gpu = make_gpu(mig=True, processes=(own,), others_processes=2)
    text = shown(hardware_table(make_hardware(gpu)), width=200)
    assert "GPU 0 NVIDIA GeForce RTX 4070 (a MIG slice), cuda, GPU-5e3ad3a5" in text
    assert "12.0 GiB of memory, 11.0 GiB of it free" in text
    assert "compute capability 8.9, 46 multiprocessors" in text
    assert "precisions worth trying: fp32, tf32, bf16, fp16 (compute capability 8.9 has tensor cores" in text
    assert "driver 570.86, CUDA up to 12.8" in text
    assert "12 W now, limit 200 W, 38 °C, 2 % busy" in text
    assert "in use by process 4711, python, 1.00 GiB" in text
    assert "in use by 2 processes of other users or of other containers" in text


def test_machine_shows_no_line_for_what_a_gpu_does_not_report() -> None:
    """A figure that could not be read is neither 0 nor None on the screen."""
    unread = ("memory_total_bytes", "memory_free_bytes", "compute_capability", "sm_count", "driver")
    gpu = make_gpu(**dict.fromkeys(unread))
    text = shown(hardware_table(make_hardware(gpu, unread={"gpus.0.driver": "not permitted"})), width=200)
    assert "None" not in text
    assert "of memory" not in text
    assert "not read gpus.0.driver: not permitted" in text


def test_machine_shows_cpu_memory_software_and_peaks() -> None:
    """The limits of a container and the reasons for them are part of the machine."""
    text = shown(hardware_table(make_hardware()), width=200)
    assert "2 usable (cgroup v2 quota of 200 %)" in text
    assert "64.0 GiB, 7.00 GiB available, limited to 8.00 GiB by its control group" in text
    assert "64.0 MiB free in /dev/shm" in text
    assert "software torch 2.13.0, Python 3.11.7" in text
    assert "matrix products: fp32 184 GFLOP/s, bf16 not measured" in text


def test_error_is_one_line_that_begins_with_error() -> None:
    """People and scripts find it at once."""
    assert shown(error_lines(UsageError("expected a duration, got '[b]'"))) == ("error: expected a duration, got '[b]'")


def test_error_of_the_users_code_shows_their_frames_first() -> None:
    """The sentence comes last, where the eye is; the frames are shown as they are written."""
    trace = '  File "train.py", line 3, in build\n    raise ValueError("[red]")\n'
    text = shown(error_lines(WorkloadError("train:build raised ValueError; fix it", trace)), words_only=False)
    assert text == trace + "error: train:build raised ValueError; fix it\n"


def test_everything_is_printed_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Not a word goes to stdout, which belongs to --json."""
    make_console().print(result_table(make_result()))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "confirmed speed-up" in captured.err
