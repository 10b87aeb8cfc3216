"""Commands that would harm a person's files; run as ``python -m tests.sandbox.adversary PLACE`` it tries them all.

Each case is a line. It runs in a project folder, as a script of the person's would: a command in a start of its own, a
line of Python in a fork of one start, as jobs run. `changes` then says what is not as it was in the project and in a
folder beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import sys
import time
from pathlib import Path

from autotune.sandbox.process_marks import marked
from tests.sandbox.starting import begun, forking, run

SHELL: dict[str, str] = {
    "rm -rf of outputs": "rm -rf out",
    "rm -rf of everything": "rm -rf ./* ./.[a-z]*",
    "find -delete": "find . -delete",
    "truncates in place": ": > keep.txt",
    "appends": "echo more >> keep.txt",
    "truncate to a size": "truncate -s 1 keep.txt",
    "renames over": "echo new > fresh && mv -f fresh keep.txt",
    "renames a folder": "mv out gone",
    "copies over": "cp script.py keep.txt",
    "installs over": "install -m 600 script.py keep.txt",
    "links hard, then writes": "ln keep.txt second && echo bad > second",
    "writes through a hard link": "echo bad > hard.txt",
    "writes through a symbolic link": "echo bad > link.txt",
    "replaces a symbolic link": "ln -sfn /nowhere link.txt",
    "dd in place": "dd if=/dev/zero of=data.bin bs=16 count=1 conv=notrunc",
    "sed -i": "sed -i s/one/two/ keep.txt",
    "perl -pi": "perl -pi -e s/one/two/ keep.txt",
    "tar over": "tar cf - -C out log.txt | tar xf - && tar cf x.tar keep.txt && echo bad > keep.txt && tar xf x.tar",
    "changes modes": "chmod -R 700 .",
    "changes owners": "chown -R 12:12 . || chgrp -R 12 .",
    "changes times": "touch -d 2001-01-01 keep.txt out",
    "changes times of a link": "touch -h -d 2001-01-01 link.txt",
    "changes times of a link that leads to a device": "touch -h -d 2001-01-01 null.txt",
    "changes modes of its input": "chmod 600 /dev/stdin < keep.txt",
    "a name that looks deleted": "chmod 600 'gone (deleted)'",
    "a read-only file": "chmod u+w sealed.txt; echo bad > sealed.txt; rm -f sealed.txt",
    "makes and removes folders": "mkdir -p a/b && rmdir out/empty",
    "makes a pipe": "mkfifo pipe; rm -f pipe.old",
    "makes a device": "mknod device c 1 3 || mknod device p",
    "git": "git init -q . && git add -A && git -c user.name=a -c user.email=a@b.c commit -qm all && git clean -fdxq",
    "a clean environment": f"env -i {sys.executable} -c \"open('keep.txt','w').write('bad')\"",
    "an isolated interpreter": f"{sys.executable} -I -S -c \"open('keep.txt','w').write('bad')\"",
    "another session": "setsid sh -c 'echo bad > keep.txt'",
    "a daemon that outlives it": "env -i setsid nohup sh -c 'sleep 0.5; echo bad > keep.txt' >/dev/null 2>&1 &",
    "by way of /proc/self/cwd": "echo bad > /proc/self/cwd/keep.txt",
    "by way of /proc/self/root": "echo bad > /proc/self/root$PWD/keep.txt",
    "by way of the root of process 1": "echo bad > /proc/1/root$PWD/keep.txt",
    "by way of its parent's root": "echo bad > /proc/$(awk '/PPid/{print $2}' /proc/$PPID/status)/root$PWD/keep.txt",
    "enters other namespaces": 'nsenter -t 1 -m sh -c "echo bad > $PWD/keep.txt"',
    "namespaces of its own": "unshare -Urm sh -c 'umount -l /tmp; umount -l .; umount -l /; echo bad > keep.txt'",
    "unmounts": "umount -l /tmp; umount -l /work; umount -l /; mount -o remount,rw /; echo bad > keep.txt",
    "mounts over": "mount --bind out . ; mount -t tmpfs none out; echo bad > keep.txt; true",
    "outside its folder": "echo bad > ../outside/secret.txt; rm -rf ../outside",
    "fills what it can": "dd if=/dev/zero of=data.bin bs=1M count=64",
}
PYTHON: dict[str, str] = {
    "open w": "open('keep.txt', 'w').write('bad')",
    "open a": "open('keep.txt', 'a').write('bad')",
    "open r+": "open('keep.txt', 'r+').write('bad')",
    "os.open": "import os; os.write(os.open('keep.txt', os.O_RDWR | os.O_TRUNC), b'bad')",
    "os.truncate": "import os; os.truncate('keep.txt', 1)",
    "os.replace": "import os; open('n', 'w').write('bad'); os.replace('n', 'keep.txt')",
    "os.rename of a folder": "import os; os.rename('out', 'gone')",
    "os.remove": "import os; os.remove('keep.txt')",
    "shutil.rmtree": "import shutil; shutil.rmtree('out')",
    "pathlib": "import pathlib; pathlib.Path('keep.txt').write_text('bad'); pathlib.Path('x/y').mkdir(parents=True)",
    "logging": "import logging; logging.basicConfig(filename='out/log.txt'); logging.error('bad')",
    "mmap": "import mmap; f = open('data.bin', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0:3] = b'bad'; m.flush()",
    "numpy": "import numpy; numpy.lib.format.open_memmap('array.npy', 'r+')[:] = 7",
    "SQLite": "import sqlite3; c = sqlite3.connect('base.db'); c.execute('delete from t'); c.commit()",
    "SQLite with a log": (
        "import sqlite3; c = sqlite3.connect('base.db'); c.execute('pragma journal_mode=wal'); "
        "c.execute('insert into t values (2)'); c.commit()"
    ),
    "a writer in C": (
        "import ctypes; c = ctypes.CDLL(None); f = c.fopen(b'keep.txt', b'w'); c.fputs(b'bad', ctypes.c_void_p(f)); "
        "c.unlink(b'data.bin'); c.rename(b'out', b'gone')"
    ).replace("c = ctypes.CDLL(None);", "c = ctypes.CDLL(None); c.fopen.restype = ctypes.c_void_p;"),
    "exchanges two names": "import ctypes; ctypes.CDLL(None).renameat2(-100, b'keep.txt', -100, b'data.bin', 2)",
    "a folder's descriptor": (
        "import os; d = os.open('.', os.O_RDONLY); os.unlink('keep.txt', dir_fd=d); os.mkdir('new', dir_fd=d)"
    ),
    "fchmod": "import os; os.fchmod(os.open('keep.txt', os.O_RDONLY), 0o600)",
    "fchown": "import os; os.fchown(os.open('keep.txt', os.O_RDONLY), 12, 12)",
    "utime": "import os; os.utime('keep.txt', (1, 1)); os.utime(os.open('data.bin', os.O_RDONLY), (1, 1))",
    "xattr": "import os; os.setxattr('keep.txt', 'user.note', b'other')",
    "removexattr": "import os; os.removexattr('keep.txt', 'user.note')",
    "a socket": "import socket; socket.socket(socket.AF_UNIX).bind('socket')",
    "a process that cannot be read": "import ctypes as c, os; c.CDLL(None).prctl(4, 0); os.chmod('keep.txt', 0o600)",
    "fchmod by /proc": "import os; os.chmod(f'/proc/self/fd/{os.open(\"keep.txt\", os.O_RDONLY)}', 0o600)",
    "sendfile": "import os; a = os.open('script.py', 0); os.sendfile(os.open('keep.txt', os.O_WRONLY), a, 0, 9)",
    "copy_file_range": "import os; a = os.open('script.py', 0); os.copy_file_range(a, os.open('keep.txt', 1), 9)",
    "a temporary file beside": "import tempfile; tempfile.NamedTemporaryFile(dir='.', delete=False).write(b'bad')",
    "processes of its own": (
        "import multiprocessing as m\nif __name__ == '__main__':\n"
        "    p = m.get_context('spawn').Process(target=open, args=('keep.txt', 'w')); p.start(); p.join()"
    ),
    "a fork of a fork": "import os\nif not os.fork():\n    if not os.fork(): open('keep.txt', 'w').write('bad')",
    "hard link by Python": "import os; os.link('keep.txt', 'second'); open('second', 'w').write('bad')",
    "symlink over": "import os; os.remove('link.txt'); os.symlink('/nowhere', 'link.txt')",
    "no redirection": "import builtins, _io; _io.open('keep.txt', 'w').write('bad')",
    "compressed": "import gzip, zipfile; gzip.open('keep.txt', 'w').write(b'x'); zipfile.ZipFile('z.zip', 'w').close()",
    "torch.save and torch.jit.save": (
        "import torch; torch.save({}, 'keep.txt'); torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), 'data.bin')"
    ),
    "a tensor on a file": "import torch; torch.from_file('data.bin', shared=True, size=4).fill_(7)",
}


def make_project(place: Path) -> Path:
    """A project, and a folder beside it, with one of each kind of file."""
    project, outside = place / "project", place / "outside"
    (project / "out" / "empty").mkdir(parents=True)
    outside.mkdir()
    for name, text in {
        "keep.txt": "one\n",
        "out/log.txt": "log\n",
        "script.py": "print(1)\n",
        ".hidden": "h",
        "gone (deleted)": "g",
    }.items():
        (project / name).write_text(text)
    (project / "data.bin").write_bytes(bytes(range(256)) * 64)
    (project / "sealed.txt").write_text("sealed")
    (project / "sealed.txt").chmod(0o400)
    (outside / "secret.txt").write_text("secret")
    (outside / "hard.txt").write_text("hard")
    os.link(outside / "hard.txt", project / "hard.txt")
    (project / "link.txt").symlink_to("../outside/secret.txt")
    (project / "null.txt").symlink_to("/dev/null")
    os.mkfifo(project / "pipe.old")
    base = sqlite3.connect(project / "base.db")
    base.execute("create table t (a)")
    base.execute("insert into t values (1)")
    base.commit()
    base.close()
    import numpy as np

    np.save(project / "array.npy", np.zeros(16))
    for path in (project / "keep.txt", outside / "secret.txt"):
        os.setxattr(path, "user.note", b"mine")
    return project


def states(place: Path) -> dict[str, object]:
    """Bytes, kind, mode, owner, time of the last change, links and attributes of all that lies below a folder."""
    found: dict[str, object] = {}
    for path in [place, *sorted(place.rglob("*"))]:
        seen = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(seen.st_mode) else os.readlink(path) if path.is_symlink() else None
        names = os.listxattr(path, follow_symlinks=False)
        attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
        kept = (seen.st_mode, seen.st_uid, seen.st_gid, seen.st_mtime_ns, seen.st_ino, seen.st_nlink, attributes)
        found[str(path.relative_to(place))] = (content, *kept)
    return found


def changes(before: dict[str, object], now: dict[str, object]) -> list[str]:
    """What is not as it was."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def main() -> None:
    """Prints the row, and what each case changed and how it ended, as JSON."""
    place = Path(sys.argv[1]).resolve()
    files, scratch = place / "files", place / "run"
    files.mkdir()
    os.chdir(make_project(files))
    before, answers = states(files), {}
    protection = begun(scratch)

    def judge(name: str, layer: str, status: int, *, alive: int = 0) -> None:
        nonlocal before
        while len(marked(str(scratch))) > alive:  # a daemon goes on for a moment
            time.sleep(0.02)
        protection.drop(layer)
        answers[name] = {"changed": changes(before, states(files)), "status": status}
        if answers[name]["changed"]:  # for the next case
            os.chdir("/")
            shutil.rmtree(files)
            files.mkdir()
            os.chdir(make_project(files))
            before = states(files)

    for number, (name, text) in enumerate(SHELL.items()):
        judge(name, f"start{number}", run(["sh", "-c", text], protection, f"start{number}")[0])
    with forking("import numpy, torch\n", protection) as fork:
        for number, (name, text) in enumerate(PYTHON.items()):
            judge(name, f"job{number}", fork(text, f"job{number}")[0], alive=1)
    protection.close()
    print(json.dumps({"row": protection.offer.row, "cases": answers}))


if __name__ == "__main__":
    main()
