"""What is left behind by a burst that ends well: processes, shared memory, semaphores, files."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path

import torch
from torch.utils.data import get_worker_info

from tests.faults.workloads import base

healthy = base.healthy
SLEEP = [sys.executable, "-c", "import time; time.sleep(3600)"]


def note(pid):
    """Tells the test which process to look for."""
    with Path(os.environ["FAULTS_PIDS"]).open("a") as file:
        file.write(f"{pid}\n")


def subprocess_running():
    note(subprocess.Popen(SLEEP).pid)
    return base.healthy()


def subprocess_in_its_own_session():
    """Without our environment, too: nothing marks it as ours but its descent."""
    note(subprocess.Popen(SLEEP, start_new_session=True, env={}).pid)
    return base.healthy()


def deaf_subprocess():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    note(subprocess.Popen([sys.executable, "-c", code]).pid)
    return base.healthy()


def daemon():
    """A grandchild that leaves its session and its parent behind."""

    def fault():
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                note(os.getpid())
                time.sleep(3600)
            os._exit(0)

    return base.failing_once(fault)


def daemon_of_a_killed_forkserver():
    """Its parent and its forkserver are gone, so that it is nobody's descendant any more."""
    subprocess.Popen(["sh", "-c", "setsid sleep 3600 &"]).wait()
    return base.failing(lambda: os.kill(os.getppid(), signal.SIGKILL))


def pool():
    """A pool of processes that nobody closes."""
    workers = multiprocessing.get_context("fork").Pool(2)
    for worker in workers._pool:
        note(worker.pid)
    return base.healthy()


KEPT = []


def shared_memory_segment():
    """Python's own shared memory, which only its resource tracker would unlink."""
    KEPT.append(shared_memory.SharedMemory(create=True, size=2**20))
    return base.healthy()


def shared_memory_and_a_kill():
    KEPT.append(shared_memory.SharedMemory(create=True, size=2**20))
    return base.failing(lambda: os.kill(os.getpid(), signal.SIGKILL))


def semaphores():
    """Named semaphores, as every multiprocessing queue has that is not made for a fork."""
    context = multiprocessing.get_context("spawn")
    KEPT.extend((context.Queue(), context.Lock()))
    return base.healthy()


def shared_tensors():
    """Workers that pass tensors by file name (as is advised against too many open files), and that are killed."""
    torch.multiprocessing.set_sharing_strategy("file_system")

    def fault(index):
        if get_worker_info() is not None and index > 400:
            os.kill(os.getpid(), signal.SIGKILL)

    return base.with_dataset(base.Samples(fault))


def temporary_files():
    """A folder of temporary files that may not be written to."""
    folder = Path(tempfile.mkdtemp())
    (folder / "cache").write_bytes(b"x" * 2**20)
    folder.chmod(0o500)
    return base.healthy()


def process_of_a_thread():
    """A process that a thread started, which then ended: it must live as long as the training does."""
    started = []

    def start():
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
        process.start()
        note(process.pid)
        started.append(process)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()

    def check():
        if not started[0].is_alive():
            raise RuntimeError("the helper process has died with the thread that started it")

    time.sleep(0.2)
    return base.failing(check)
