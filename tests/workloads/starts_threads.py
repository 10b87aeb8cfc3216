"""A module that starts a thread while it is imported: forking it would lose the thread."""

import threading
import time

from tests.workloads import tiny

threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
build = tiny.build
