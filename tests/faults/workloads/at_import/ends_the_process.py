"""An import that ends its process."""

import os

print("last words", flush=True)
os._exit(3)
