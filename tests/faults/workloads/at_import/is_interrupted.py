"""An import that raises what Ctrl-C raises, with a handler for the end that hangs."""

import atexit
import time

atexit.register(time.sleep, 3600)
raise KeyboardInterrupt
