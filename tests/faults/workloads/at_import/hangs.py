"""An import that never ends."""

import time

time.sleep(3600)
